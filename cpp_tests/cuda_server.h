/* An engine whose cache lies on a CUDA device, driven call by call: on a real driver or on the
 * stand-in, since it calls neither. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_SERVER_H
#define KVBRIDGE_CPP_TESTS_CUDA_SERVER_H

#include "cuda/stand_in.h"
#include "rig.h"

namespace testing_cuda {

using namespace testing_rig;

inline void ok(CUresult result) { ASSERT_EQ(result, 0); }

/* A pool of pages side by side. */
inline kvb_region pages_of(CUdeviceptr pool, uint64_t page = kPage, uint64_t count = kSlots) {
  kvb_region region{};
  region.base = pool;
  region.size = region.stride = page;
  region.slot_count = count;
  return region;
}

/* The same, with each page as so many pieces. */
inline std::vector<kvb_region> pieces_of(CUdeviceptr pool, size_t pieces) {
  std::vector<kvb_region> regions;
  for (size_t i = 0; i < pieces; ++i) {
    auto region = pages_of(pool);
    region.size = kPage / pieces;
    region.base += i * region.size;
    regions.push_back(region);
  }
  return regions;
}

/* One server of a single rank on a device. */
struct Server {
  Server(const std::string& text, CUdeviceptr pool, int32_t ordinal = -1, bool fences = false)
      : Server(text, {pages_of(pool)}, nullptr, 0, ordinal, fences) {}
  /* With a table the pool is what that lends. */
  Server(const std::string& text, const std::vector<kvb_region>& regions,
         const kvb_store_table* table, uint64_t mapping = 0, int32_t ordinal = -1,
         bool fences = false)
      : config(kvb::Config::from_json(text)), engine(describe(ordinal, fences)) {
    auto layout = kvb::Layout::with_mapping(mapping);
    layout.add_group(0, 0, "float16", "", {0});
    for (auto& region : regions) layout.add_region(0, region);
    if (table != nullptr) store = kvb::Store::open(config, engine, table);
    worker = kvb::Worker::open(config, engine, store);
    scheduler = kvb::Scheduler::beside(worker, config, engine);
    worker.register_layout(layout);
  }
  static kvb_engine describe(int32_t ordinal, bool fences) {
    auto engine = kvb::engine(T);
    engine.device_kind = KVB_DEVICE_CUDA;
    engine.device_ordinal = ordinal;
    engine.supplies_fences = fences ? 1 : 0;
    return engine;
  }

  /* Matches and allocates; answers how many tokens are restored. */
  uint64_t admit(uint64_t id, const Tokens& prompt, const Pages& pages) {
    auto offered = scheduler.match(kvb::request(id, kvb::tokens(prompt)), 0).tokens;
    scheduler.allocated(id, offered, {kvb::group_pages(0, 0, pages.data(), pages.size())});
    return offered;
  }
  kvb::Metadata build(uint64_t id, const Tokens& prompt, uint64_t restored) {
    kvb_step step{};
    step.request_id = id;
    step.new_tokens = kvb::tokens(prompt);
    step.scheduled_tokens = prompt.size() - restored;
    return scheduler.build({step});
  }
  void finish(uint64_t id) {
    if (!scheduler.finished(id, KVB_FINISH_ENDED)) return;
    auto saved = worker.get_finished({id}).saved;
    while (saved.empty()) {
      std::this_thread::yield();
      saved = worker.get_finished({}).saved;
    }
  }
  void settle() {
    while (worker.stats().saves_in_flight > 0) std::this_thread::yield();
  }
  size_t stored(const Tokens& tokens) {
    return worker.lookup(
        kvb::hash_blocks(KVB_SCHEME_KVB1, kvb::request(0, kvb::tokens(tokens)), T));
  }

  kvb::Config config;
  kvb_engine engine;
  kvb::Store store;
  kvb::Worker worker;
  kvb::Scheduler scheduler;
};

inline std::vector<uint64_t> failed(Server& server) {
  auto ids = server.worker.take_failed_loads();
  return {ids.begin(), ids.end()};
}

/* Three whole blocks and a token that is computed in any case. */
inline const Tokens kPrompt = counted(3 * T + 1);

}  // namespace testing_cuda

#endif
