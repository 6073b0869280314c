/* An engine whose cache lies on a CUDA device, driven call by call: on a real driver or on the
 * stand-in, since it calls neither. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_SERVER_H
#define KVBRIDGE_CPP_TESTS_CUDA_SERVER_H

#include "cuda/stand_in.h"
#include "rig.h"

namespace testing_cuda {

using namespace testing_rig;

inline void ok(CUresult result) { ASSERT_EQ(result, 0); }

/* One server of a single rank on a device. */
struct Server {
  Server(const std::string& text, const kvb::Layout& layout, int32_t ordinal = -1,
         bool fences = false)
      : config(kvb::Config::from_json(text)),
        engine(describe(ordinal, fences)),
        worker(kvb::Worker::open(config, engine)),
        scheduler(kvb::Scheduler::beside(worker, config, engine)) {
    worker.register_layout(layout);
  }
  /* Of kPage bytes per page; with several regions a page is as many pieces, side by side. */
  Server(const std::string& text, CUdeviceptr pool, int32_t ordinal = -1, bool fences = false,
         size_t regions = 1)
      : Server(text, pages_of(pool, regions), ordinal, fences) {}
  static kvb::Layout pages_of(CUdeviceptr pool, size_t regions) {
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(0, 0, "float16", "", {0});
    for (size_t i = 0; i < regions; ++i) {
      kvb_region region{};
      region.size = kPage / regions;
      region.base = pool + i * region.size;
      region.stride = kPage;
      region.slot_count = kSlots;
      layout.add_region(0, region);
    }
    return layout;
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
