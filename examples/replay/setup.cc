#include <algorithm>

#include "runs.h"

namespace replay {

std::string ConfigJson(const Options& options) {
  // Long deadlines: on a busy machine a slow answer is not a miss.
  return "{\"role\": \"both\", \"namespace\": \"replay\", \"model_key\": \"miniature\", "
         "\"global_segment_size\": \"" +
         options.pool_bytes +
         "\", \"staging_buffer_bytes\": \"64MiB\", \"kvbridge\": {\"store\": \"" + options.store +
         "\", \"pool\": \"replay\", \"lookup_timeout_ms\": 30000, \"load_timeout_ms\": 30000}}";
}

bool ContextOnly(const Options& options) { return options.lookahead > 0 || options.adp; }

miniature::EngineOptions BaseEngine(const Options& options, const Trace& trace, uint32_t index,
                                    uint64_t live) {
  miniature::EngineOptions engine;
  engine.name = "engine " + std::to_string(index);
  engine.config_json = ConfigJson(options);
  engine.tokens_per_block = options.block;
  engine.lookahead = options.lookahead;
  engine.context_only = ContextOnly(options);
  engine.tp_size = options.tp;
  if (options.adp) {
    engine.adp_owner = index;
    engine.adp_owners = options.engines;
  }
  uint64_t longest = 0;
  for (const TraceRequest& request : trace) longest = std::max(longest, request.input_length);
  engine.blocks = static_cast<uint32_t>(((longest + 2 * kMaxOutputs) / options.block + 2) * live);
  return engine;
}

miniature::RequestSpec BaseRequest(const Trace& trace, size_t index) {
  miniature::RequestSpec request;
  request.id = index + 1;
  request.prompt = PromptTokens(trace[index]);
  request.max_outputs =
      static_cast<uint32_t>(std::clamp<uint64_t>(trace[index].output_length, 1, kMaxOutputs));
  return request;
}

PoolView::PoolView(const Options& options, const miniature::EngineOptions& engine)
    : config_(miniature::ParseConfig(ConfigJson(options))) {
  const kvb_engine described = miniature::DescribeEngine(engine, 0);
  kvb_store* store = nullptr;
  miniature::Check(kvb_store_open(config_.get(), &described, nullptr, &store), "pool");
  store_.reset(store);
}

std::optional<kvb_pool_stats> PoolView::Stats() const {
  kvb_pool_stats stats{};
  stats.struct_size = sizeof stats;
  const kvb_status status = kvb_store_stats(store_.get(), &stats);
  if (status == KVB_UNSUPPORTED) return std::nullopt;
  miniature::Check(status, "pool statistics");
  return stats;
}

uint64_t PoolView::CountStored(const std::vector<std::string>& keys) const {
  constexpr size_t kBatch = 4096;
  uint64_t stored = 0;
  std::vector<kvb_bytes> batch;
  std::vector<int32_t> presence;
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    const size_t end = std::min(keys.size(), begin + kBatch);
    batch.clear();
    for (size_t i = begin; i < end; ++i) {
      batch.push_back({reinterpret_cast<const uint8_t*>(keys[i].data()), keys[i].size()});
    }
    presence.assign(batch.size(), KVB_UNKNOWN);
    miniature::Check(kvb_store_exist(store_.get(), batch.data(), batch.size(), presence.data()),
                     "exist");
    stored += static_cast<uint64_t>(std::count(presence.begin(), presence.end(), KVB_PRESENT));
  }
  return stored;
}

}  // namespace replay
