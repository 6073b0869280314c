#include "options.h"

#include <charconv>
#include <limits>
#include <string_view>
#include <vector>

namespace replay {

const char kHelp[] =
    R"(Replays a request trace through miniature engines that share one pool.

usage: replay [options] [TRACE]

TRACE is a file of one JSON object per line, plain or gzip: timestamp, input_length, output_length,
hash_ids (one id per 512 tokens). Without it, a trace is generated: conversations of several turns
over shared system prompts.

  --requests N       replay the first N requests (all; 300 of a generated trace)
  --engines N        engines that share the pool (2)
  --block TOKENS     tokens per block (512; 64 with --concurrent)
  --lookahead L      prompt lookahead of a one-model draft; context servers (0)
  --concurrent       many live requests per engine, engines in parallel, local reuse, preemption and
                     more; every output is compared with a run without pool. Otherwise requests
                     run alone, one after another, and hits and saves are exact figures.
  --pool-bytes SIZE  capacity of the embedded pool, such as 512MiB (4GiB)
  --store KIND       which pool: embedded, or over TCP mooncake or mooncake-tcp (embedded)
  --master HOST:PORT the master of a Mooncake pool; scripts/replay starts a pool of its own without
  --keys SCHEME      how pages are named: kvb1 or trtllm (kvb1)
  --processes        each engine is a process, and each of its ranks but the first too; not with --concurrent, nor
                     on the embedded pool, which is one process's own
  --peer COMMAND     the second engine is this program, which knows the pool and its keys by itself
                     (replay/peer.h says what it is told); with --keys trtllm, one group and rank
  --json FILE        write the result there, too
  --seed N           of a generated trace (1)
  --tp N             tensor-parallel ranks per engine, a thread each (1)
  --adp N            N engines, which are owners under attention data parallelism; context servers
  --async            loads are asynchronous: requests wait outside the batch for their pages; with
                     --concurrent also behind an allocation fence
  --groups N         layer groups (1; 2 with --concurrent: the second one is windowed)
  --explain N        why the N-th request got the offer it got, by the library's own account
  --generate FILE    write the generated trace there and stop
  --help             this text

exit status: 0 all as it should be, 1 a wrong result, 2 it could not run.
)";

namespace {

template <typename T>
T Number(std::string_view option, std::string_view text, T low, T high) {
  T value{};
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end || value < low ||
      value > high) {
    throw UsageError(std::string(option) + ": expected a number from " + std::to_string(low) +
                     " to " + std::to_string(high) + ", got \"" + std::string(text) + "\"");
  }
  return value;
}

// Goes into the JSON configuration as it is, where the library checks its meaning.
std::string Word(std::string_view option, std::string_view text) {
  for (const char c : text) {
    const bool fine = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                      c == '.' || c == '-' || c == '_' || c == ' ' || c == ':';
    if (!fine)
      throw UsageError(std::string(option) + ": unexpected character in " + std::string(text));
  }
  return std::string(text);
}

}  // namespace

Options ParseOptions(int argc, char** argv) {
  Options options;
  bool only_paths = false;
  for (int i = 1; i < argc; ++i) {
    std::string_view name = argv[i];
    if (only_paths || name.empty() || name[0] != '-') {
      if (!options.trace_path.empty()) {
        throw UsageError("more than one trace: " + options.trace_path + ", " + std::string(name));
      }
      if (name.empty()) throw UsageError("the trace's path is empty");
      options.trace_path = name;
      continue;
    }
    std::string_view inline_value;
    bool has_inline = false;
    if (const size_t equals = name.find('='); equals != std::string_view::npos) {
      inline_value = name.substr(equals + 1);
      name = name.substr(0, equals);
      has_inline = true;
    }
    const auto value = [&]() -> std::string_view {
      if (has_inline) return inline_value;
      if (i + 1 >= argc) throw UsageError(std::string(name) + " needs a value");
      return argv[++i];
    };
    const auto flag = [&] {
      if (has_inline) throw UsageError(std::string(name) + " takes no value");
      return true;
    };
    if (name == "--") {
      only_paths = true;
    } else if (name == "--help" || name == "-h") {
      options.help = flag();
    } else if (name == "--requests") {
      options.requests = Number<uint64_t>(name, value(), 1, 1'000'000'000);
    } else if (name == "--engines") {
      options.engines = Number<uint32_t>(name, value(), 1, 64);
    } else if (name == "--block") {
      options.block = Number<uint32_t>(name, value(), 1, 65536);
    } else if (name == "--lookahead") {
      options.lookahead = Number<uint32_t>(name, value(), 0, 64);
    } else if (name == "--concurrent") {
      options.concurrent = flag();
    } else if (name == "--pool-bytes") {
      options.pool_bytes = Word(name, value());
    } else if (name == "--store") {
      options.store = Word(name, value());
    } else if (name == "--master") {
      options.master = Word(name, value());
    } else if (name == "--keys") {
      options.keys = value();
      if (options.keys != "kvb1" && options.keys != "trtllm") {
        throw UsageError("--keys: expected kvb1 or trtllm, got \"" + options.keys + "\"");
      }
    } else if (name == "--processes") {
      options.processes = flag();
    } else if (name == "--peer") {
      options.peer = value();
    } else if (name == "--json") {
      options.json_path = value();
    } else if (name == "--seed") {
      options.seed = Number<uint64_t>(name, value(), 0, std::numeric_limits<uint64_t>::max());
    } else if (name == "--tp") {
      options.tp = Number<uint32_t>(name, value(), 1, 16);
    } else if (name == "--adp") {
      options.adp = true;
      options.engines = Number<uint32_t>(name, value(), 2, 64);
    } else if (name == "--async") {
      options.async_load = flag();
    } else if (name == "--explain") {
      options.explain = Number<uint64_t>(name, value(), 1, std::numeric_limits<uint64_t>::max());
    } else if (name == "--groups") {
      options.groups = Number<uint32_t>(name, value(), 1, 3);
    } else if (name == "--generate") {
      options.generate_path = value();
      if (options.generate_path.empty()) throw UsageError("--generate needs a file name");
    } else {
      throw UsageError("unknown option " + std::string(name));
    }
  }
  if (options.explain > 0 && options.concurrent) {
    throw UsageError("--explain is for requests that run alone, not for --concurrent");
  }
  if (options.processes && (options.concurrent || options.store == "embedded")) {
    throw UsageError("--processes needs a pool between processes, and is not for --concurrent");
  }
  if (!options.peer.empty() &&
      (options.store == "embedded" || options.keys != "trtllm" || options.concurrent ||
       options.tp > 1 || options.adp || options.groups > 1 || options.lookahead > 0 ||
       options.engines < 2)) {
    throw UsageError(
        "--peer needs another store, --keys trtllm, and engines of one rank and group");
  }
  if (options.adp && options.tp > 1) throw UsageError("--adp and --tp exclude each other");
  if (!options.generate_path.empty() && !options.trace_path.empty()) {
    throw UsageError("--generate writes a generated trace; it takes no TRACE");
  }
  if (options.block == 0) options.block = options.concurrent ? 64 : 512;
  if (options.groups == 0) options.groups = options.concurrent ? 2 : 1;
  return options;
}

}  // namespace replay
