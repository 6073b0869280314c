#include "report.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace replay {
namespace {

double Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string Grouped(uint64_t value) {
  std::string text = std::to_string(value);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string Bytes(uint64_t value) {
  char text[32];
  if (value < (1 << 20)) return Grouped(value) + " B";
  const double mib = static_cast<double>(value) / (1 << 20);
  std::snprintf(text, sizeof text, mib < 1024 ? "%.1f MiB" : "%.0f MiB", mib);
  return text;
}

void Row(const char* name, const std::string& value, const std::string& note = "") {
  std::printf("  %-28s %16s%s%s\n", name, value.c_str(), note.empty() ? "" : "   ", note.c_str());
}

const char* const kPhaseNames[miniature::kPhaseCount] = {
    "match", "allocate", "build", "load", "forward", "save_wait", "get_finished", "check"};

}  // namespace

void Result::Add(const std::vector<kvb_stats>& workers) {
  for (const kvb_stats& worker : workers) {
    stats.loaded_pages += worker.loaded_pages;
    stats.loaded_bytes += worker.loaded_bytes;
    stats.failed_load_pages += worker.failed_load_pages;
    stats.saved_pages += worker.saved_pages;
    stats.saved_bytes += worker.saved_bytes;
    stats.already_stored_pages += worker.already_stored_pages;
    stats.failed_save_pages += worker.failed_save_pages;
  }
}

Progress::Progress(std::string what, uint64_t total)
    : what_(std::move(what)), total_(total), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', stderr);
}

void Progress::Show(uint64_t done, const std::string& details) {
  const uint64_t percent = total_ == 0 ? 100 : done * 100 / total_;
  if (terminal_) {
    const double now = Now();
    if (done < total_ && now - last_shown_ < 0.1) return;
    last_shown_ = now;
    std::fprintf(stderr, "\r%s: %llu of %llu requests (%llu %%)%s\033[K", what_.c_str(),
                 static_cast<unsigned long long>(done), static_cast<unsigned long long>(total_),
                 static_cast<unsigned long long>(percent), details.c_str());
    line_open_ = true;
  } else if (percent >= next_percent_) {
    next_percent_ = percent / 10 * 10 + 10;
    std::fprintf(stderr, "%s: %llu of %llu requests (%llu %%)%s\n", what_.c_str(),
                 static_cast<unsigned long long>(done), static_cast<unsigned long long>(total_),
                 static_cast<unsigned long long>(percent), details.c_str());
  }
}

void PrintTable(const Options& options, const Result& result) {
  const miniature::Counters& c = result.counters;
  const uint64_t T = options.block;
  const auto expected = [&](uint64_t Ideal::*field) {
    if (!result.expected) return std::string();
    return "expected " + Grouped((*result.expected).*field);
  };
  std::printf("\n%s replay, %u engine%s%s, %u tokens per block, lookahead %u, store %s, %s keys\n",
              options.concurrent ? "concurrent" : "exact", options.engines,
              options.engines == 1 ? "" : "s",
              options.processes ? " in processes of their own" : "", options.block,
              options.lookahead, options.store.c_str(), options.keys.c_str());
  Row("requests", Grouped(c.requests));
  Row("prompt tokens", Grouped(c.prompt_tokens));
  Row("output tokens", Grouped(c.output_tokens));
  Row("hit blocks, from the pool", Grouped(c.hit_blocks), expected(&Ideal::hit_blocks));
  Row("hit tokens, from the pool", Grouped(c.hit_blocks * T));
  Row("hit blocks, local", Grouped(c.local_hit_blocks));
  Row("hit tokens, local", Grouped(c.local_hit_blocks * T));
  Row("prompt blocks saved", Grouped(result.saved_blocks),
      result.refused_puts > 0 ? "reported; the pool refused some" : expected(&Ideal::saved_blocks));
  Row("pages saved", Grouped(result.stats.saved_pages), Bytes(result.stats.saved_bytes));
  Row("pages loaded", Grouped(result.stats.loaded_pages), Bytes(result.stats.loaded_bytes));
  Row("pages compared", Grouped(c.compared_pages));
  Row("wrong pages", Grouped(c.wrong_pages));
  Row("failed loads", Grouped(c.failed_loads), "requests that were handed back");
  Row("free pages touched", Grouped(c.touched_pages));
  if (options.async_load) {
    Row("requests parked", Grouped(c.parked),
        Grouped(c.parked_for_nothing) + " for no page, " + Grouped(c.left_parked) +
            " left meanwhile");
  }
  if (result.evicted_objects + result.refused_puts > 0) {
    Row("evicted from the pool", Grouped(result.evicted_objects),
        Grouped(result.refused_puts) + " puts refused");
  }
  if (options.concurrent) {
    Row("preemptions", Grouped(c.preemptions));
    Row("cancelled", Grouped(c.cancelled));
    Row("passes prepared, not run", Grouped(c.abandoned_passes));
    Row("draft tokens", Grouped(c.drafts), Grouped(c.rejected_drafts) + " rejected");
    Row("offered, not honoured", Grouped(c.given_back_blocks), "blocks");
    Row("pages left by windows", Grouped(c.detached_pages));
    Row("wrong outputs", Grouped(result.wrong_outputs.value_or(0)), "against a run without pool");
  }
  std::printf("\n  %-28s %16s\n", "time, all engines", "seconds");
  for (size_t i = 0; i < miniature::kPhaseCount; ++i) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", result.phases[i]);
    Row(kPhaseNames[i], text);
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", result.seconds);
  Row("wall clock", text);
  for (const std::string& failure : result.failures) std::printf("FAILED: %s\n", failure.c_str());
  std::fflush(stdout);
  if (!result.explanation.empty()) {
    std::printf("\nrequest %llu: %s", static_cast<unsigned long long>(options.explain),
                result.explanation.c_str());
  }
}

void WriteJson(const Options& options, const Result& result) {
  if (options.json_path.empty()) return;
  const miniature::Counters& c = result.counters;
  std::ofstream out(options.json_path);
  bool first = true;
  const auto name = [&](const char* key) -> std::ofstream& {
    out << (first ? "{\n  \"" : ",\n  \"") << key << "\": ";
    first = false;
    return out;
  };
  out.precision(6);
  out << std::fixed;
  name("mode") << (options.concurrent ? "\"concurrent\"" : "\"exact\"");
  name("store") << '"' << options.store << '"';
  name("keys") << '"' << options.keys << '"';
  name("processes") << (options.processes ? "true" : "false");
  name("engines") << options.engines;
  name("tokens_per_block") << options.block;
  name("lookahead") << options.lookahead;
  name("tp") << options.tp;
  name("adp") << (options.adp ? "true" : "false");
  name("async") << (options.async_load ? "true" : "false");
  name("groups") << options.groups;
  name("requests") << c.requests;
  name("prompt_tokens") << c.prompt_tokens;
  name("output_tokens") << c.output_tokens;
  name("hit_blocks") << c.hit_blocks;
  name("hit_tokens") << c.hit_blocks * options.block;
  name("local_hit_blocks") << c.local_hit_blocks;
  name("local_hit_tokens") << c.local_hit_blocks * options.block;
  name("saved_blocks") << result.saved_blocks;
  if (result.expected) {
    name("expected_hit_blocks") << result.expected->hit_blocks;
    name("expected_saved_blocks") << result.expected->saved_blocks;
  }
  name("saved_pages") << result.stats.saved_pages;
  name("saved_bytes") << result.stats.saved_bytes;
  name("already_stored_pages") << result.stats.already_stored_pages;
  name("loaded_pages") << result.stats.loaded_pages;
  name("loaded_bytes") << result.stats.loaded_bytes;
  name("compared_pages") << c.compared_pages;
  name("wrong_pages") << c.wrong_pages;
  name("failed_loads") << c.failed_loads;
  name("touched_pages") << c.touched_pages;
  name("parked") << c.parked;
  name("parked_for_nothing") << c.parked_for_nothing;
  name("left_parked") << c.left_parked;
  name("failed_load_pages") << result.stats.failed_load_pages;
  name("failed_save_pages") << result.stats.failed_save_pages;
  name("evicted_objects") << result.evicted_objects;
  name("refused_puts") << result.refused_puts;
  name("passes") << c.passes;
  name("abandoned_passes") << c.abandoned_passes;
  name("preemptions") << c.preemptions;
  name("cancelled") << c.cancelled;
  name("drafts") << c.drafts;
  name("rejected_drafts") << c.rejected_drafts;
  name("given_back_blocks") << c.given_back_blocks;
  name("detached_pages") << c.detached_pages;
  if (result.wrong_outputs) {
    name("wrong_outputs") << *result.wrong_outputs;
    name("seconds_without_pool") << result.seconds_without_pool;
  }
  name("seconds") << result.seconds;
  for (size_t i = 0; i < miniature::kPhaseCount; ++i) {
    name((std::string("seconds_") + kPhaseNames[i]).c_str()) << result.phases[i];
  }
  name("passed") << (result.failures.empty() ? "true" : "false");
  out << "\n}\n";
  out.close();
  if (!out) throw std::runtime_error(options.json_path + ": cannot be written");
}

}  // namespace replay
