// Replays a request trace through miniature engines that share one pool.
#include <cstdio>
#include <exception>
#include <kvbridge/kvbridge.hpp>
#include <string_view>

#include "options.h"
#include "oracle.h"
#include "report.h"
#include "runs.h"
#include "trace.h"

namespace {

constexpr size_t kGeneratedRequests = 300;

void LogLine(int32_t level, std::string_view target, std::string_view message) {
  std::fprintf(stderr, "kvbridge %s: %.*s: %.*s\n", level == KVB_LOG_ERROR ? "error" : "warning",
               static_cast<int>(target.size()), target.data(), static_cast<int>(message.size()),
               message.data());
}

int Main(int argc, char** argv) {
  const replay::Options options = replay::ParseOptions(argc, argv);
  if (options.help) {
    std::fputs(replay::kHelp, stdout);
    return 0;
  }
  replay::Trace trace;
  if (options.trace_path.empty()) {
    const size_t count = options.requests > 0 ? options.requests : kGeneratedRequests;
    trace = replay::GenerateTrace(options.seed, count);
    if (!options.generate_path.empty()) {
      replay::WriteTrace(options.generate_path, trace);
      return 0;
    }
  } else {
    trace = replay::ReadTrace(options.trace_path, options.requests);
  }
  kvb::set_log(LogLine, KVB_LOG_WARN);
  const replay::Result result =
      options.concurrent ? replay::RunConcurrent(options, trace) : replay::RunExact(options, trace);
  replay::PrintTable(options, result);
  replay::WriteJson(options, result);
  return result.failures.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const replay::UsageError& error) {
    std::fprintf(stderr, "replay: %s (--help shows the options)\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "replay: %s\n", error.what());
  }
  return 2;
}
