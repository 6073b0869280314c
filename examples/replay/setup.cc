#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "runs.h"

namespace replay {

// Of a pool that lives on after this run, or that others use, only this run's pages count. A pool
// of the process has no others.
std::string ModelKey(const Options& options) {
  static const std::string run = std::to_string(getpid()) + "-" + std::to_string(time(nullptr));
  return options.store == "embedded" ? "miniature" : "miniature-" + run;
}

namespace {

std::string Text(const char* name, const std::string& value) {
  return std::string("\"") + name + "\": \"" + value + "\", ";
}

// What a pool of other processes needs to be found; the memory is lent by others.
std::string Whereabouts(const Options& options) {
  if (options.store == "embedded") return Text("global_segment_size", options.pool_bytes);
  return Text("master_server_address", options.master) + Text("protocol", "tcp") +
         Text("global_segment_size", "0") + Text("local_buffer_size", "16MiB");
}

std::string Library() {
  const char* path = std::getenv("KVB_MOONCAKE_LIBRARY");
  return path == nullptr ? std::string() : Text("library", path);
}

}  // namespace

std::string ConfigJson(const Options& options) {
  // Long deadlines: on a busy machine a slow answer is not a miss.
  return "{\"role\": \"both\", " + Text("namespace", kNamespace) +
         Text("model_key", ModelKey(options)) + Whereabouts(options) +
         "\"async_load\": " + (options.async_load ? "true" : "false") +
         ", \"staging_buffer_bytes\": \"64MiB\", \"kvbridge\": {" + Text("store", options.store) +
         Text("key_scheme", options.keys) + Library() +
         "\"pool\": \"replay\", \"lookup_timeout_ms\": 30000, \"load_timeout_ms\": 30000}}";
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
    : config_(kvb::Config::from_json(ConfigJson(options))),
      store_(kvb::Store::open(config_, miniature::DescribeEngine(engine, 0))) {}

std::optional<kvb_pool_stats> PoolView::Stats() const {
  try {
    return store_.stats();
  } catch (const kvb::Error& error) {
    if (error.status() == KVB_UNSUPPORTED) return std::nullopt;
    throw;
  }
}

uint64_t PoolView::CountStored(const std::vector<std::string>& keys) const {
  constexpr size_t kBatch = 4096;
  uint64_t stored = 0;
  std::vector<kvb_bytes> batch;
  for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
    batch.clear();
    for (size_t i = begin; i < std::min(keys.size(), begin + kBatch); ++i) {
      batch.push_back(kvb::bytes(keys[i]));
    }
    const std::vector<int32_t> presence = store_.exist(batch);
    stored += static_cast<uint64_t>(std::count(presence.begin(), presence.end(), KVB_PRESENT));
  }
  return stored;
}

}  // namespace replay
