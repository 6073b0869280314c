#include "bridge.h"

#include <kvbridge/kvbridge_kvcache.hpp>
#include <stdexcept>
#include <utility>

namespace miniature {

kvb_engine DescribeEngine(const EngineOptions& options, uint32_t rank) {
  kvb_engine engine = kvb::engine(options.tokens_per_block);
  engine.attention_dp = options.adp_owners > 0 ? 1 : 0;
  engine.tp_rank = options.adp_owners > 0 ? options.adp_owner : rank;
  engine.tp_size = options.adp_owners > 0 ? options.adp_owners : options.tp_size;
  engine.ranks_on_node = engine.tp_size;
  engine.serving = options.context_only ? KVB_SERVING_CONTEXT : KVB_SERVING_AGGREGATED;
  engine.drafter = options.lookahead == 0   ? KVB_DRAFTER_NONE
                   : options.lookahead == 1 ? KVB_DRAFTER_MTP_EAGLE
                                            : KVB_DRAFTER_MTP_VANILLA;
  engine.max_draft_len = static_cast<int32_t>(options.lookahead);
  engine.draft_shares_cache = options.lookahead > 0 ? 1 : 0;
  engine.device_kind = options.device ? KVB_DEVICE_CUDA : KVB_DEVICE_HOST;
  engine.supplies_fences = options.fences == Fences::kNone ? 0 : 1;
  return engine;
}

namespace {

kvb::KvCacheContent ContentOf(const PoolSpec& pool) {
  if (pool.layer_first) return kvb::KvCacheContent::kRecurrent;
  return pool.replicated ? kvb::KvCacheContent::kIndexer : kvb::KvCacheContent::kKeysAndValues;
}

}  // namespace

kvb::Layout DescribeLayout(const EngineOptions& options, const CacheMemory& cache) {
  std::vector<kvb::KvCacheWindow> windows;
  uint32_t next_layer = 0;
  for (size_t g = 0; g < options.groups.size(); ++g) {
    const GroupSpec& spec = options.groups[g];
    kvb::KvCacheWindow& window = windows.emplace_back();
    window.group_id = spec.id;
    window.window = spec.window;
    window.number_format = "float16";
    window.layout_tag = "NHD";
    window.layers.resize(spec.pools.front().layers);
    for (uint32_t& layer : window.layers) layer = next_layer++;
    for (size_t p = 0; p < spec.pools.size(); ++p) {
      const PoolSpec& from = spec.pools[p];
      kvb::KvCachePool& pool = window.pools.emplace_back();
      pool.content = ContentOf(from);
      pool.address = cache.PoolBase(g, p);
      pool.bytes = cache.PoolBytes(g, p);
      pool.blocks = options.blocks;
      pool.layers = from.layers;
      pool.kv_factor = from.kv_factor;
      pool.replicated = from.replicated;
    }
  }
  return kvb::kv_cache_layout(windows);
}

kvb_request DescribeRequest(const RequestSpec& spec, const int32_t* tokens, size_t count,
                            bool context_only) {
  kvb_request request = kvb::request(spec.id, kvb::tokens(tokens, count));
  if (spec.cache_salt) {
    request.has_cache_salt = 1;
    request.cache_salt = kvb::bytes(*spec.cache_salt);
  }
  if (spec.lora) {
    request.has_lora_identity = 1;
    request.lora_identity = kvb::bytes(*spec.lora);
  }
  request.has_media = spec.has_media ? 1 : 0;
  if (!spec.media_digests.empty()) {
    request.media_digests = spec.media_digests.front().data();
    request.media_count = spec.media_digests.size();
  }
  request.context_only = context_only ? 1 : 0;
  return request;
}

Bridge::Bridge(const EngineOptions& options,
               const std::vector<std::unique_ptr<CacheMemory>>& caches)
    : threads_(options.config_json && !options.rank_processes ? caches.size() : 0) {
  if (!options.config_json) return;
  const auto describe = [&options, &caches](uint32_t rank) -> DescribeMemory {
    return [&options, &caches, rank] {
      // The library takes the context of the thread that registers.
      if (options.device) options.device->MakeCurrent();
      return DescribeLayout(options, *caches[rank]);
    };
  };
  // Processes come first: a pool that is open in this one does not survive in another.
  std::vector<std::unique_ptr<Rank>> others;
  for (uint32_t rank = 1; rank < caches.size(); ++rank) {
    if (options.rank_processes) {
      others.push_back(std::make_unique<RemoteRank>(options, rank, describe(rank)));
    }
  }
  auto leader = std::make_unique<LocalRank>(options, 0, describe(0));
  leader_ = leader.get();
  ranks_.push_back(std::move(leader));
  for (uint32_t rank = 1; rank < caches.size(); ++rank) {
    if (!options.rank_processes) {
      others.push_back(std::make_unique<LocalRank>(options, rank, describe(rank)));
    }
  }
  for (auto& other : others) ranks_.push_back(std::move(other));
  if (options.rank_processes) threads_.Start(ranks_.size());
  // The declarations are read before the cache manager is made. This engine arranges in any case
  // what they can ask for: block-aligned reuse, failed loads, admission queries.
  for (const auto& rank : ranks_) {
    if (rank->PromptLookahead() != options.lookahead) {
      throw std::runtime_error("the library derived another prompt lookahead");
    }
  }
  Register();
  const kvb::Config config = kvb::Config::from_json(*options.config_json);
  scheduler_ = kvb::Scheduler::beside(leader_->worker(), config, DescribeEngine(options, 0));
}

Bridge::~Bridge() {
  // An engine that is thrown away early. What cannot be shut down in time is kept by the library.
  threads_.Run([this](size_t rank) {
    try {
      ranks_[rank]->Shutdown(10000);
    } catch (const std::exception&) {
      // It was said when it happened, and there is nobody left to hear it.
    }
  });
}

std::string Bridge::Explain(const kvb_request& request, uint64_t local_tokens) const {
  if (!connected()) return "there is no pool\n";
  return leader_->worker().explain(request, local_tokens).text + "\n";
}

kvb::Scheduler::Offer Bridge::Match(const kvb_request& request, uint64_t local_tokens) {
  if (!connected()) return {};
  return scheduler_.match(request, local_tokens);
}

void Bridge::Allocated(uint64_t request_id, uint64_t honoured_tokens,
                       const std::vector<kvb_group_pages>& pages) {
  if (connected()) scheduler_.allocated(request_id, honoured_tokens, pages);
}

void Bridge::CancelLoad(uint64_t request_id, uint64_t from_token, uint64_t to_token) {
  if (connected()) scheduler_.cancel_load(request_id, from_token, to_token);
}

void Bridge::Build(const std::vector<kvb_step>& steps) {
  if (connected()) built_ = scheduler_.build(steps);
}

bool Bridge::PassHasLoads() const { return connected() && built_.summary().load_requests > 0; }

void Bridge::Bind(const kvb_fence* fence) {
  if (!connected()) return;
  // What a broadcast between processes would carry.
  std::vector<uint8_t> broadcast;
  if (ranks_.size() > 1) broadcast = built_.encode();
  threads_.Run([&](size_t rank) {
    if (rank == 0) {
      leader_->BindBuilt(std::move(built_), fence);
    } else {
      ranks_[rank]->Bind(broadcast, fence);
    }
  });
}

void Bridge::StartLoad(void* stream) {
  threads_.Run([&](size_t rank) { ranks_[rank]->StartLoad(stream); });
}

void Bridge::WaitForSave(void* stream) {
  threads_.Run([&](size_t rank) { ranks_[rank]->WaitForSave(stream); });
}

template <typename Take>
std::vector<uint64_t> Bridge::TakeFromAll(Take take) {
  std::vector<std::vector<uint64_t>> taken(ranks_.size());
  threads_.Run([&](size_t rank) { taken[rank] = take(ranks_[rank].get()); });
  std::vector<uint64_t> ids;
  for (const auto& list : taken) ids.insert(ids.end(), list.begin(), list.end());
  return ids;
}

std::vector<uint64_t> Bridge::TakeFailedLoads() {
  return TakeFromAll([](Rank* rank) { return rank->TakeFailedLoads(); });
}

Reported Bridge::GetFinished(const std::vector<uint64_t>& finished_ids,
                             const std::vector<uint64_t>& loading_ids) {
  std::vector<Reported> reported(ranks_.size());
  threads_.Run(
      [&](size_t rank) { reported[rank] = ranks_[rank]->GetFinished(finished_ids, loading_ids); });
  Reported all;
  for (const Reported& one : reported) {
    all.saved.insert(all.saved.end(), one.saved.begin(), one.saved.end());
    all.loaded.insert(all.loaded.end(), one.loaded.begin(), one.loaded.end());
  }
  return all;
}

std::vector<uint64_t> Bridge::TakeFailedAsyncLoads() {
  return TakeFromAll([](Rank* rank) { return rank->TakeFailedAsyncLoads(); });
}

bool Bridge::Finished(uint64_t request_id, int32_t reason) {
  return connected() && scheduler_.finished(request_id, reason);
}

void Bridge::Reset(uint64_t request_id) {
  if (connected()) scheduler_.reset_request(request_id);
}

void Bridge::Unregister() {
  threads_.Run([this](size_t rank) { ranks_[rank]->Unregister(); });
}

void Bridge::Register() {
  threads_.Run([this](size_t rank) { ranks_[rank]->Register(); });
}

std::vector<kvb_stats> Bridge::Stats() const {
  std::vector<kvb_stats> stats;
  for (const auto& rank : ranks_) stats.push_back(rank->Stats());
  return stats;
}

void Bridge::Shutdown() {
  threads_.Run([this](size_t rank) { ranks_[rank]->Shutdown(30000); });
}

}  // namespace miniature
