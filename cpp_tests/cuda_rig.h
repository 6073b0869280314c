/* An engine with its cache in device memory, driven call by call, on the stand-in of the CUDA
 * driver. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_RIG_H
#define KVBRIDGE_CPP_TESTS_CUDA_RIG_H

#include "cuda/stand_in.h"
#include "rig.h"

namespace testing_cuda {

using namespace testing_rig;

inline void ok(CUresult result) { ASSERT_EQ(result, 0); }

/* What a test's engine calls itself is not made to fail. */
struct Exempt {
  Exempt() { stand_in_exempt(1); }
  ~Exempt() { stand_in_exempt(0); }
};

inline CUcontext current() {
  Exempt exempt;
  CUcontext context = nullptr;
  ok(cuCtxGetCurrent(&context));
  return context;
}

/* An engine's thread: a context that is not a primary one, a stream and a pool in device memory. */
struct Gpu {
  explicit Gpu(int number = 0) {
    ok(cuInit(0));
    stand_in_reset();
    before = stand_in_alive();
    context = stand_in_context(number);
    ok(cuCtxSetCurrent(context));
    ok(cuStreamCreate(&stream, 1));
    ok(cuMemAlloc_v2(&pool, kPage * kSlots));
  }
  ~Gpu() {
    stand_in_reset();
    ok(cuCtxSetCurrent(context));
    ok(cuStreamDestroy_v2(stream));
    ok(cuMemFree_v2(pool));
    EXPECT_EQ(stand_in_alive(), before) << "something was not given back";
    EXPECT_EQ(stand_in_copies_in_flight(), 0);
    stand_in_destroy_context(context);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  CUdeviceptr page(int32_t index) const { return pool + kPage * static_cast<size_t>(index); }
  /* What a forward pass puts on the stream: page p of these gets bytes `first + ordinal`. */
  void compute(const Pages& pages, int first) {
    auto before = current();
    Exempt exempt;
    ok(cuCtxSetCurrent(context));
    for (size_t i = 0; i < pages.size(); ++i)
      ok(cuMemsetD8Async(page(pages[i]), static_cast<unsigned char>(first + static_cast<int>(i)),
                         kPage, stream));
    ok(cuCtxSetCurrent(before));
  }
  /* The value of all bytes of a page. */
  int value(int32_t index) {
    std::vector<uint8_t> bytes(kPage);
    stand_in_read(bytes.data(), page(index), kPage);
    for (auto byte : bytes) EXPECT_EQ(byte, bytes[0]);
    return bytes[0];
  }

  long before = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr pool = 0;
};

/* A pool of pages side by side. */
inline kvb_region pages_of(CUdeviceptr pool, uint64_t page = kPage, uint64_t count = kSlots) {
  kvb_region region{};
  region.base = pool;
  region.size = region.stride = page;
  region.slot_count = count;
  return region;
}

/* One server of a single rank on it. */
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

/* Computes the prompt on pages 0 … 3 with values from `first` on, and ends the request. */
inline void serve(Server& server, Gpu& gpu, uint64_t id, int first) {
  auto pages = slots(4);
  ASSERT_EQ(server.admit(id, kPrompt, pages), 0u);
  server.worker.bind(server.build(id, kPrompt, 0));
  server.worker.start_load(gpu.stream);
  gpu.compute(pages, first);
  server.worker.wait_for_save(gpu.stream);
  server.finish(id);
}

}  // namespace testing_cuda

#endif
