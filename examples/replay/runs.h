// The two ways to replay, and what both set up.
#ifndef KVBRIDGE_EXAMPLES_REPLAY_RUNS_H_
#define KVBRIDGE_EXAMPLES_REPLAY_RUNS_H_

#include <optional>
#include <string>
#include <vector>

#include "../engine/bridge.h"
#include "../engine/types.h"
#include "options.h"
#include "report.h"
#include "trace.h"

namespace replay {

// Output tokens per request are capped, so that a replay is about prompts.
constexpr uint64_t kMaxOutputs = 32;

constexpr char kNamespace[] = "replay";

// The model key of this run. Ask first in the process that makes others.
std::string ModelKey(const Options& options);
std::string ConfigJson(const Options& options);
// Whether engines are context servers: one output token per request and no decode steps.
bool ContextOnly(const Options& options);
// What both modes agree on: shapes, ranks, lookahead; pages for `live` of the longest requests.
miniature::EngineOptions BaseEngine(const Options& options, const Trace& trace, uint32_t index,
                                    uint64_t live);
miniature::RequestSpec BaseRequest(const Trace& trace, size_t index);

// The pool, held open beside the engines: for questions about it, and so that it outlives them.
class PoolView {
 public:
  explicit PoolView(const Options& options, const miniature::EngineOptions& engine);
  // Absent for pools that keep no statistics.
  std::optional<kvb_pool_stats> Stats() const;
  // How many of these keys are stored.
  uint64_t CountStored(const std::vector<std::string>& keys) const;
  const kvb::Config& config() const { return config_; }

 private:
  kvb::Config config_;
  kvb::Store store_;
};

// Requests run alone, request i on engine i mod N, and the next one starts when all saves of the
// last one are reported. Hits and saves are then exact figures.
Result RunExact(const Options& options, const Trace& trace);

// Many live requests per engine and engines in parallel, with everything that real engines do; then
// the same requests without a pool. Outputs must be the same.
Result RunConcurrent(const Options& options, const Trace& trace);

}  // namespace replay

#endif  // KVBRIDGE_EXAMPLES_REPLAY_RUNS_H_
