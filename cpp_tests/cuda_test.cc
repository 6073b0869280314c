/* A cache in device memory, through the public interface, with a stand-in of the CUDA driver. */
#include "cuda/stand_in.h"
#include "rig.h"

namespace {

using namespace testing_rig;
using testing_kvb::expect_error;

void ok(CUresult result) { ASSERT_EQ(result, 0); }

CUcontext current() {
  CUcontext context = nullptr;
  ok(cuCtxGetCurrent(&context));
  return context;
}

/* An engine's thread: a context that is not a primary one, a stream and a pool in device memory. */
struct Gpu {
  explicit Gpu(int number = 0) {
    ok(cuInit(0));
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
    EXPECT_EQ(stand_in_alive(), 0);
    EXPECT_EQ(stand_in_copies_in_flight(), 0);
    stand_in_destroy_context(context);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  CUdeviceptr page(int32_t index) const { return pool + kPage * static_cast<size_t>(index); }
  /* What a forward pass puts on the stream: page p of these gets bytes `first + ordinal`. */
  void compute(const Pages& pages, int first) {
    for (size_t i = 0; i < pages.size(); ++i)
      ok(cuMemsetD8Async(page(pages[i]), static_cast<unsigned char>(first + static_cast<int>(i)),
                         kPage, stream));
  }
  /* The value of all bytes of a page. */
  int value(int32_t index) {
    std::vector<uint8_t> bytes(kPage);
    stand_in_read(bytes.data(), page(index), kPage);
    for (auto byte : bytes) EXPECT_EQ(byte, bytes[0]);
    return bytes[0];
  }

  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr pool = 0;
};

/* One server of a single rank on it. */
struct Server {
  Server(const std::string& text, CUdeviceptr pool, int32_t ordinal = -1, bool fences = false)
      : config(kvb::Config::from_json(text)), engine(describe(ordinal, fences)) {
    auto layout = kvb::Layout::with_mapping();
    kvb_region region{};
    region.base = pool;
    region.size = region.stride = kPage;
    region.slot_count = kSlots;
    layout.add_group(0, 0, "float16", "", {0}).add_region(0, region);
    worker = kvb::Worker::open(config, engine);
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
  kvb::Worker worker;
  kvb::Scheduler scheduler;
};

std::vector<uint64_t> failed(Server& server) {
  auto ids = server.worker.take_failed_loads();
  return {ids.begin(), ids.end()};
}

/* Three whole blocks and a token that is computed in any case. */
const Tokens kPrompt = counted(3 * T + 1);

/* Computes the prompt on pages 0 … 3 with values from `first` on, and ends the request. */
void serve(Server& server, Gpu& gpu, uint64_t id, int first) {
  auto pages = slots(4);
  ASSERT_EQ(server.admit(id, kPrompt, pages), 0u);
  server.worker.bind(server.build(id, kPrompt, 0));
  server.worker.start_load(gpu.stream);
  gpu.compute(pages, first);
  server.worker.wait_for_save(gpu.stream);
  server.finish(id);
}

TEST(Cuda, PagesAreSavedBehindThePassAndLoadedBeforeTheNext) {
  Gpu gpu;
  {
    Server server(json("cuda-trip"), gpu.pool, 0);
    auto pages = slots(4);
    ASSERT_EQ(server.admit(1, kPrompt, pages), 0u);
    server.worker.bind(server.build(1, kPrompt, 0));
    server.worker.start_load(gpu.stream);
    stand_in_hold(gpu.stream, 1);
    gpu.compute(pages, 10);
    server.worker.wait_for_save(gpu.stream);
    while (stand_in_waiting("cuEventSynchronize") == 0) std::this_thread::yield();
    EXPECT_EQ(server.worker.stats().saves_in_flight, 1u);
    EXPECT_EQ(server.stored(kPrompt), 0u);
    stand_in_hold(gpu.stream, 0);
    server.finish(1);
    EXPECT_EQ(server.stored(kPrompt), 3u);

    /* Other pages, which work that is still on the stream reads before they are loaded. */
    auto others = slots(4, 20);
    auto copies = slots(3, 40);
    gpu.compute(others, 90);
    ASSERT_EQ(server.admit(2, kPrompt, others), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    for (size_t i = 0; i < 3; ++i)
      ok(cuMemcpyAsync(gpu.page(copies[i]), gpu.page(others[i]), kPage, gpu.stream));
    server.worker.start_load(gpu.stream);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(gpu.value(20 + i), 10 + i);
      EXPECT_EQ(gpu.value(40 + i), 90 + i);
    }
    server.worker.wait_for_save(gpu.stream);
    server.finish(2);
    server.worker.shutdown(10000);
  }
}

TEST(Cuda, TheLegacyStreamIsNull) {
  Gpu gpu;
  CUstream blocking = nullptr;
  ok(cuStreamCreate(&blocking, 0));
  {
    Server server(json("cuda-null"), gpu.pool);
    auto pages = slots(4);
    server.admit(1, kPrompt, pages);
    server.worker.bind(server.build(1, kPrompt, 0));
    server.worker.start_load(nullptr);
    stand_in_hold(blocking, 1);
    ok(cuMemsetD8Async(gpu.page(0), 7, 4 * kPage, blocking));
    server.worker.wait_for_save(nullptr);
    while (stand_in_waiting("cuEventSynchronize") == 0) std::this_thread::yield();
    stand_in_hold(blocking, 0);
    server.finish(1);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 8)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    server.worker.start_load(nullptr);
    EXPECT_EQ(gpu.value(8), 7);
    EXPECT_EQ(gpu.value(10), 7);
    server.worker.shutdown(10000);
  }
  ok(cuStreamDestroy_v2(blocking));
}

TEST(Cuda, TheEnginesThreadKeepsItsContext) {
  Gpu gpu;
  CUcontext other = stand_in_context(1);
  {
    Server server(json("cuda-context"), gpu.pool);
    EXPECT_EQ(current(), gpu.context);
    ok(cuCtxSetCurrent(other));
    auto pages = slots(4);
    server.admit(1, kPrompt, pages);
    server.worker.bind(server.build(1, kPrompt, 0));
    server.worker.start_load(gpu.stream);
    EXPECT_EQ(current(), other);
    server.worker.wait_for_save(gpu.stream);
    EXPECT_EQ(current(), other);
    server.finish(1);
    EXPECT_EQ(current(), other);
    server.admit(2, kPrompt, pages);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    /* NULL would be a stream of a context that is not the cache's: the pages are lost. */
    server.worker.start_load(nullptr);
    EXPECT_EQ(failed(server), std::vector<uint64_t>{2});
    EXPECT_EQ(current(), other);
    server.worker.unregister_layout();
    EXPECT_EQ(current(), other);
    server.worker.shutdown(10000);
    EXPECT_EQ(current(), other);
  }
  EXPECT_EQ(current(), other);
  stand_in_destroy_context(other);
}

TEST(Cuda, AnEventIsWaitedForBeforeParkedPagesAreWritten) {
  Gpu gpu;
  CUevent allocated = nullptr;
  ok(cuEventCreate(&allocated, 2));
  {
    auto text = json("cuda-fence").insert(1, R"("async_load": true, )");
    Server server(text, gpu.pool, -1, true);
    kvb_fence fence{};
    fence.kind = KVB_FENCE_CUDA_EVENT;
    expect_error(KVB_INVALID_ARGUMENT, "fence->event is 0",
                 [&] { server.worker.bind(server.scheduler.build({}), &fence); });
    serve(server, gpu, 1, 10);
    /* The engine itself still writes into the pages that it allocated. */
    auto pages = slots(4, 20);
    ASSERT_EQ(server.admit(2, kPrompt, pages), 3 * T);
    stand_in_hold(gpu.stream, 1);
    gpu.compute(pages, 90);
    ok(cuEventRecord(allocated, gpu.stream));
    fence.event = reinterpret_cast<uintptr_t>(allocated);
    server.worker.bind(server.scheduler.build({}), &fence);
    server.worker.start_load(gpu.stream);
    while (stand_in_waiting("cuEventSynchronize") == 0) std::this_thread::yield();
    auto loaded = server.worker.get_finished({}, {2}).loaded;
    EXPECT_TRUE(loaded.empty());
    stand_in_hold(gpu.stream, 0);
    while (loaded.empty()) {
      std::this_thread::yield();
      loaded = server.worker.get_finished({}).loaded;
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(gpu.value(20 + i), 10 + i);
    server.worker.shutdown(10000);
  }
  ok(cuEventDestroy_v2(allocated));
}

TEST(Cuda, AFenceThatFailsIsAnErrorOfEveryLaterCall) {
  Gpu gpu;
  CUevent event = nullptr;
  ok(cuEventCreate(&event, 2));
  ok(cuEventRecord(event, gpu.stream));
  {
    auto text = json("cuda-fails").insert(1, R"("async_load": true, )");
    Server server(text, gpu.pool, -1, true);
    serve(server, gpu, 1, 10);
    gpu.compute(slots(4, 20), 90);
    ok(cuStreamSynchronize(gpu.stream));
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    kvb_fence fence{};
    fence.kind = KVB_FENCE_CUDA_EVENT;
    fence.event = reinterpret_cast<uintptr_t>(event);
    stand_in_fail("cuEventSynchronize", 0, 719);
    server.worker.bind(server.scheduler.build({}), &fence);
    kvb::Worker::Finished out;
    const uint64_t id = 2;
    while (server.worker.try_get_finished(nullptr, 0, &id, 1, &out) == KVB_OK)
      std::this_thread::yield();
    stand_in_reset();
    for (int i = 0; i < 2; ++i)
      expect_error(KVB_DEVICE_FAILED, "cuEventSynchronize: CUDA_ERROR_LAUNCH_FAILED (719)",
                   [&] { server.worker.get_finished({}); });
    EXPECT_EQ(gpu.value(20), 90);
    server.worker.shutdown(10000);
  }
  ok(cuEventDestroy_v2(event));
}

TEST(Cuda, AnEventIsNothingForACacheOfTheHost) {
  Rig rig(json("cuda-host-fence"));
  kvb_fence fence{};
  fence.kind = KVB_FENCE_CUDA_EVENT;
  fence.event = 64;
  expect_error(KVB_INVALID_ARGUMENT, "no memory of a CUDA device",
               [&] { rig.worker.bind(rig.scheduler.build({}), &fence); });
}

TEST(Cuda, ADeviceThatFailsCostsPagesAndNothingElse) {
  Gpu gpu;
  {
    Server server(json("cuda-sick"), gpu.pool);
    stand_in_fail("cuMemcpyBatchAsync_v2", 0, 719);
    serve(server, gpu, 1, 10);
    EXPECT_EQ(server.stored(kPrompt), 0u);
    EXPECT_EQ(server.worker.stats().failed_save_pages, 3u);
    stand_in_reset();
    serve(server, gpu, 2, 20);
    EXPECT_EQ(server.stored(kPrompt), 3u);

    ASSERT_EQ(server.admit(3, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(3, kPrompt, 3 * T));
    stand_in_fail("cuStreamWaitEvent", 0, 999);
    server.worker.start_load(gpu.stream);
    EXPECT_EQ(failed(server), std::vector<uint64_t>{3});
    stand_in_reset();
    server.scheduler.reset_request(3);
    server.worker.get_finished({});

    /* A pass whose end cannot be marked does not count as run. */
    server.admit(4, counted(2 * T + 1, 500), slots(3, 30));
    server.worker.bind(server.build(4, counted(2 * T + 1, 500), 0));
    server.worker.start_load(gpu.stream);
    stand_in_fail("cuEventRecord", 0, 719);
    expect_error(KVB_DEVICE_FAILED, "cuEventRecord: CUDA_ERROR_LAUNCH_FAILED (719)",
                 [&] { server.worker.wait_for_save(gpu.stream); });
    EXPECT_EQ(current(), gpu.context);
    stand_in_reset();
    server.worker.wait_for_save(gpu.stream);
    server.finish(4);
    EXPECT_EQ(server.stored(counted(2 * T, 500)), 2u);
    server.worker.shutdown(10000);
  }
}

TEST(Cuda, WhatIsNotThereIsRefused) {
  Gpu gpu;
  auto refused = [&](kvb_status status, const std::string& part, CUdeviceptr pool,
                     int32_t ordinal = -1) {
    expect_error(status, part, [&] { Server(json("cuda-refused"), pool, ordinal); });
  };
  std::vector<uint8_t> host(kPage * kSlots);
  refused(KVB_INVALID_ARGUMENT, "is no memory that the driver knows",
          kvb::piece(host.data(), 0).address);
  refused(KVB_INVALID_ARGUMENT, "is no memory that the driver knows", gpu.pool + kPage);
  refused(KVB_INVALID_ARGUMENT, "device_ordinal = 1", gpu.pool, 1);
  ok(cuCtxSetCurrent(nullptr));
  refused(KVB_NO_DEVICE, "no CUDA context is current", gpu.pool);
  ok(cuCtxSetCurrent(gpu.context));
  stand_in_fail("cuMemHostRegister_v2", 0, 2);
  refused(KVB_NO_MEMORY, "pinning", gpu.pool);
  stand_in_reset();
  /* What was refused left nothing behind. */
  Server(json("cuda-refused"), gpu.pool, 0);
}

}  // namespace
