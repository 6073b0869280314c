// Replays a request trace through miniature engines that share one pool.
#include <kvbridge/kvbridge.h>

#include <cstdio>
#include <exception>

#include "options.h"
#include "oracle.h"
#include "report.h"
#include "runs.h"
#include "trace.h"

namespace {

constexpr size_t kGeneratedRequests = 300;

void LogLine(void* /*context*/, int32_t level, const char* target, size_t target_size,
             const char* message, size_t message_size) {
  std::fprintf(stderr, "kvbridge %s: %.*s: %.*s\n", level == KVB_LOG_ERROR ? "error" : "warning",
               static_cast<int>(target_size), target, static_cast<int>(message_size), message);
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
  miniature::Check(kvb_set_log(&LogLine, nullptr, KVB_LOG_WARN), "log");
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
