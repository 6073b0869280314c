#include "bridge.h"

#include <algorithm>
#include <stdexcept>

namespace miniature {
namespace {

kvb_bytes Borrow(const std::string& text) {
  return kvb_bytes{reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void Append(const kvb_ids& ids, std::vector<uint64_t>* out) {
  if (ids.count > 0) out->insert(out->end(), ids.data, ids.data + ids.count);
}

}  // namespace

void Check(kvb_status status, const char* what) {
  if (status == KVB_OK) return;
  std::string text(1024, '\0');
  size_t needed = 0;
  if (kvb_last_error(text.data(), text.size(), &needed) == KVB_TOO_SMALL) {
    text.resize(needed);
    kvb_last_error(text.data(), text.size(), &needed);
  }
  text.resize(text.find('\0') == std::string::npos ? text.size() : text.find('\0'));
  throw std::runtime_error(std::string(what) + ": status " + std::to_string(status) + ": " + text);
}

Handle<kvb_config> ParseConfig(const std::string& json) {
  kvb_config* config = nullptr;
  Check(kvb_config_from_json(reinterpret_cast<const uint8_t*>(json.data()), json.size(), &config),
        "configuration");
  return Handle<kvb_config>(config);
}

kvb_engine DescribeEngine(const EngineOptions& options, uint32_t rank) {
  kvb_engine engine{};
  engine.struct_size = sizeof engine;
  engine.tokens_per_block = options.tokens_per_block;
  engine.attention_dp = options.adp_owners > 0 ? 1 : 0;
  engine.tp_rank = options.adp_owners > 0 ? options.adp_owner : rank;
  engine.tp_size = options.adp_owners > 0 ? options.adp_owners : options.tp_size;
  engine.pp_size = 1;
  engine.cp_size = 1;
  engine.ranks_on_node = engine.tp_size;
  engine.serving = options.context_only ? KVB_SERVING_CONTEXT : KVB_SERVING_AGGREGATED;
  engine.drafter = options.lookahead == 0   ? KVB_DRAFTER_NONE
                   : options.lookahead == 1 ? KVB_DRAFTER_MTP_EAGLE
                                            : KVB_DRAFTER_MTP_VANILLA;
  engine.max_draft_len = static_cast<int32_t>(options.lookahead);
  engine.draft_shares_cache = options.lookahead > 0 ? 1 : 0;
  engine.device_kind = KVB_DEVICE_HOST;
  engine.device_ordinal = -1;
  return engine;
}

Handle<kvb_layout> DescribeLayout(const EngineOptions& options, const CacheMemory& cache) {
  const std::string format = "float16";
  const std::string tag = "NHD";
  kvb_layout* made = nullptr;
  Check(kvb_layout_new(0, &made), "layout");
  Handle<kvb_layout> layout(made);
  uint32_t next_layer = 0;
  for (size_t g = 0; g < options.groups.size(); ++g) {
    const GroupSpec& spec = options.groups[g];
    std::vector<uint32_t> layers(spec.pools.front().layers);
    for (uint32_t& layer : layers) layer = next_layer++;
    kvb_group group{};
    group.id = spec.id;
    group.window = spec.window;
    group.number_format = Borrow(format);
    group.layout_tag = Borrow(tag);
    group.layer_ids = layers.data();
    group.layer_count = layers.size();
    Check(kvb_layout_add_group(layout.get(), &group), "layer group");
    for (size_t p = 0; p < spec.pools.size(); ++p) {
      const PoolSpec& from = spec.pools[p];
      kvb_pool pool{};
      pool.base = cache.PoolBase(g, p);
      pool.num_blocks = options.blocks;
      pool.num_layers = from.layers;
      pool.kv_factor = from.kv_factor;
      pool.block_size = options.tokens_per_block;
      pool.element_bits = from.element_bits;
      pool.layer_first = from.layer_first ? 1 : 0;
      pool.replicated = from.replicated ? 1 : 0;
      Check(kvb_layout_add_pool(layout.get(), spec.id, &pool), "block pool");
    }
  }
  return layout;
}

kvb_request DescribeRequest(const RequestSpec& spec, const int32_t* tokens, size_t count,
                            bool context_only) {
  kvb_request request{};
  request.struct_size = sizeof request;
  request.request_id = spec.id;
  request.prompt = kvb_tokens{tokens, count, KVB_TOKENS_INT32};
  if (spec.cache_salt) {
    request.has_cache_salt = 1;
    request.cache_salt = Borrow(*spec.cache_salt);
  }
  if (spec.lora) {
    request.has_lora_identity = 1;
    request.lora_identity = Borrow(*spec.lora);
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
               const std::vector<std::unique_ptr<CacheMemory>>& caches) {
  if (!options.config_json) return;
  config_ = ParseConfig(*options.config_json);
  for (uint32_t rank = 0; rank < caches.size(); ++rank) {
    const kvb_engine engine = DescribeEngine(options, rank);
    kvb_worker* worker = nullptr;
    Check(kvb_worker_new(config_.get(), &engine, nullptr, &worker), "worker");
    ranks_.push_back(Rank{Handle<kvb_worker>(worker), nullptr});
    // The declarations are read before the cache manager is made; this engine arranges what they
    // can ask for in any case: block-aligned reuse, failed loads, admission queries.
    kvb_declarations declarations{};
    declarations.struct_size = sizeof declarations;
    Check(kvb_worker_declarations(worker, &declarations), "declarations");
    if (declarations.prompt_lookahead != options.lookahead) {
      throw std::runtime_error("the library derived another prompt lookahead");
    }
    const Handle<kvb_layout> layout = DescribeLayout(options, *caches[rank]);
    Check(kvb_worker_register_layout(worker, layout.get()), "register_layout");
  }
  const kvb_engine leader = DescribeEngine(options, 0);
  kvb_scheduler* scheduler = nullptr;
  Check(kvb_scheduler_new(config_.get(), &leader, ranks_.front().worker.get(), &scheduler),
        "scheduler");
  scheduler_.reset(scheduler);
}

Bridge::~Bridge() {
  for (Rank& rank : ranks_) kvb_worker_shutdown(rank.worker.get(), 10000);
}

uint64_t Bridge::Match(const kvb_request& request, uint64_t local_tokens) {
  if (!connected()) return 0;
  uint64_t tokens = 0;
  bool is_async = false;
  Check(kvb_scheduler_match(scheduler_.get(), &request, local_tokens, &tokens, &is_async), "match");
  if (is_async) throw std::runtime_error("this engine does not park requests");
  return tokens;
}

void Bridge::Allocated(uint64_t request_id, uint64_t honoured_tokens,
                       const std::vector<kvb_group_pages>& pages) {
  if (!connected()) return;
  Check(kvb_scheduler_allocated(scheduler_.get(), request_id, honoured_tokens, pages.data(),
                                pages.size()),
        "allocated");
}

void Bridge::CancelLoad(uint64_t request_id, uint64_t from_token, uint64_t to_token) {
  if (!connected()) return;
  Check(kvb_scheduler_cancel_load(scheduler_.get(), request_id, from_token, to_token),
        "cancel_load");
}

void Bridge::Build(const std::vector<kvb_step>& steps) {
  if (!connected()) return;
  kvb_pass pass{};
  pass.struct_size = sizeof pass;
  pass.steps = steps.data();
  pass.step_count = steps.size();
  kvb_metadata* metadata = nullptr;
  Check(kvb_scheduler_build(scheduler_.get(), &pass, &metadata), "build");
  built_.reset(metadata);
}

bool Bridge::PassHasLoads() const {
  if (!connected()) return false;
  kvb_summary summary{};
  summary.struct_size = sizeof summary;
  Check(kvb_metadata_summary(built_.get(), &summary), "summary");
  return summary.load_requests > 0;
}

void Bridge::Bind() {
  if (!connected()) return;
  if (ranks_.size() > 1) {
    // What a broadcast between processes would carry.
    size_t needed = 0;
    kvb_status status =
        kvb_metadata_encode(built_.get(), broadcast_.data(), broadcast_.size(), &needed);
    if (status == KVB_TOO_SMALL) {
      broadcast_.resize(needed);
      status = kvb_metadata_encode(built_.get(), broadcast_.data(), broadcast_.size(), &needed);
    }
    Check(status, "encode");
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      kvb_metadata* metadata = nullptr;
      Check(kvb_metadata_decode(broadcast_.data(), needed, &metadata), "decode");
      ranks_[rank].metadata.reset(metadata);
    }
  }
  ranks_[0].metadata = std::move(built_);
  for (Rank& rank : ranks_) {
    Check(kvb_worker_bind(rank.worker.get(), rank.metadata.get(), nullptr), "bind");
  }
}

void Bridge::StartLoad(void* stream) {
  for (Rank& rank : ranks_) Check(kvb_worker_start_load(rank.worker.get(), stream), "start_load");
}

void Bridge::WaitForSave(void* stream) {
  for (Rank& rank : ranks_) {
    Check(kvb_worker_wait_for_save(rank.worker.get(), stream), "wait_for_save");
  }
}

std::vector<uint64_t> Bridge::TakeFailedLoads() {
  std::vector<uint64_t> ids;
  for (Rank& rank : ranks_) {
    kvb_ids view{};
    Check(kvb_worker_take_failed_loads(rank.worker.get(), &view), "take_failed_loads");
    Append(view, &ids);
  }
  return ids;
}

std::vector<uint64_t> Bridge::GetFinished(const std::vector<uint64_t>& finished_ids) {
  std::vector<uint64_t> ids;
  for (Rank& rank : ranks_) {
    kvb_ids saved{};
    kvb_ids loaded{};
    Check(kvb_worker_get_finished(rank.worker.get(), finished_ids.data(), finished_ids.size(),
                                  nullptr, 0, &saved, &loaded),
          "get_finished");
    if (loaded.count > 0) throw std::runtime_error("a load was reported that nobody announced");
    Append(saved, &ids);
  }
  return ids;
}

std::vector<uint64_t> Bridge::TakeFailedAsyncLoads() {
  std::vector<uint64_t> ids;
  for (Rank& rank : ranks_) {
    kvb_ids view{};
    Check(kvb_worker_take_failed_async_loads(rank.worker.get(), &view), "take_failed_async_loads");
    Append(view, &ids);
  }
  return ids;
}

bool Bridge::Finished(uint64_t request_id, int32_t reason) {
  if (!connected()) return false;
  bool pinned = false;
  Check(kvb_scheduler_finished(scheduler_.get(), request_id, reason, &pinned), "finished");
  return pinned;
}

void Bridge::Reset(uint64_t request_id) {
  if (!connected()) return;
  Check(kvb_scheduler_reset(scheduler_.get(), request_id), "reset");
}

kvb_stats Bridge::Stats() const {
  kvb_stats sum{};
  sum.struct_size = sizeof sum;
  for (const Rank& rank : ranks_) {
    kvb_stats stats{};
    stats.struct_size = sizeof stats;
    Check(kvb_worker_stats(rank.worker.get(), &stats), "stats");
    sum.lookups += stats.lookups;
    sum.loaded_pages += stats.loaded_pages;
    sum.loaded_bytes += stats.loaded_bytes;
    sum.failed_load_pages += stats.failed_load_pages;
    sum.failed_load_requests += stats.failed_load_requests;
    sum.bad_seals += stats.bad_seals;
    sum.saved_pages += stats.saved_pages;
    sum.saved_bytes += stats.saved_bytes;
    sum.already_stored_pages += stats.already_stored_pages;
    sum.no_space_pages += stats.no_space_pages;
    sum.failed_save_pages += stats.failed_save_pages;
    sum.dropped_save_pages += stats.dropped_save_pages;
  }
  return sum;
}

void Bridge::Shutdown() {
  for (Rank& rank : ranks_) Check(kvb_worker_shutdown(rank.worker.get(), 30000), "shutdown");
}

}  // namespace miniature
