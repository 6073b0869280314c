/* A cache in device memory, through the public interface, with a stand-in of the CUDA driver. */
#include "cuda_direct_rig.h"

namespace {

using namespace testing_cuda;
using testing_kvb::expect_error;

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
    EXPECT_EQ(stand_in_calls("cuEventRecord"), 1) << "the pass alone is marked";

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

TEST(Cuda, PagesOfManyPiecesTravelByTheKernel) {
  Gpu gpu;
  {
    Server server(json("cuda-pieces"), pieces_of(gpu.pool, 8), nullptr, 0, 0);
    serve(server, gpu, 1, 10);
    EXPECT_EQ(stand_in_calls("cuLaunchKernel"), 2) << "tried out, and a save of 3 pages";
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    server.worker.start_load(gpu.stream);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(gpu.value(20 + i), 10 + i);
    EXPECT_EQ(stand_in_calls("cuLaunchKernel"), 3);
    EXPECT_EQ(stand_in_calls("cuMemcpyBatchAsync_v2"), 0);
    server.worker.shutdown(10000);
  }
}

TEST(Cuda, WithoutTheKernelPagesTravelByCopies) {
  Gpu gpu;
  {
    stand_in_fail("cuModuleLoadData", 1, 222);
    Server server(json("cuda-no-kernel"), pieces_of(gpu.pool, 8), nullptr);
    serve(server, gpu, 1, 10);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    server.worker.start_load(gpu.stream);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(gpu.value(20 + i), 10 + i);
    EXPECT_EQ(stand_in_calls("cuLaunchKernel"), 0);
    EXPECT_EQ(stand_in_calls("cuMemcpyBatchAsync_v2"), 2);
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

TEST(Cuda, TwoDevicesShareAPool) {
  Gpu one(0), other(1);
  {
    /* Of each the context that is current when it registers. */
    ok(cuCtxSetCurrent(one.context));
    Server writer(json("cuda-two"), one.pool, 0);
    ok(cuCtxSetCurrent(other.context));
    Server reader(json("cuda-two"), other.pool, 1);
    serve(writer, one, 1, 10);
    EXPECT_EQ(current(), other.context);
    ok(cuCtxSetCurrent(one.context));
    ASSERT_EQ(reader.admit(2, kPrompt, slots(4, 20)), 3 * T);
    reader.worker.bind(reader.build(2, kPrompt, 3 * T));
    reader.worker.start_load(other.stream);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(other.value(20 + i), 10 + i);
    EXPECT_EQ(current(), one.context);
    writer.worker.shutdown(10000);
    reader.worker.shutdown(10000);
  }
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
    gpu.compute(pages, 10);
    server.worker.wait_for_save(gpu.stream);
    EXPECT_EQ(current(), other);
    server.finish(1);
    EXPECT_EQ(current(), other);
    server.admit(2, kPrompt, pages);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    /* NULL would be a stream of a context that is not the cache's. */
    expect_error(KVB_INVALID_ARGUMENT, "stream 0x0 means one of the context that is current",
                 [&] { server.worker.start_load(nullptr); });
    EXPECT_EQ(current(), other);
    server.worker.start_load(gpu.stream);
    EXPECT_EQ(gpu.value(0), 10) << "nothing was lost by it";
    EXPECT_EQ(current(), other);
    server.worker.wait_for_save(gpu.stream);
    server.finish(2);
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
    EXPECT_EQ(stand_in_calls("cuStreamWaitEvent"), 0) << "no stream is waited for";
    server.worker.shutdown(10000);
  }
  ok(cuEventDestroy_v2(allocated));
}

/* Whatever the driver called it: nobody should go on because memory may be had later. */
class CudaFence : public testing::TestWithParam<std::pair<int, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Errors, CudaFence,
                         testing::Values(std::pair{999, "CUDA_ERROR_UNKNOWN (999)"},
                                         std::pair{2, "CUDA_ERROR_OUT_OF_MEMORY (2)"}));

TEST_P(CudaFence, AFailureIsAnErrorOfEveryLaterCall) {
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
    stand_in_fail("cuEventSynchronize", 0, GetParam().first);
    server.worker.bind(server.scheduler.build({}), &fence);
    kvb::Worker::Finished out;
    const uint64_t id = 2;
    while (server.worker.try_get_finished(nullptr, 0, &id, 1, &out) == KVB_OK)
      std::this_thread::yield();
    stand_in_reset();
    for (int i = 0; i < 2; ++i)
      expect_error(KVB_DEVICE_FAILED, std::string("cuEventSynchronize: ") + GetParam().second,
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
    stand_in_fail("cuMemcpyBatchAsync_v2", 0, 999);
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
    stand_in_fail("cuEventRecord", 0, 999);
    expect_error(KVB_DEVICE_FAILED, "cuEventRecord: CUDA_ERROR_UNKNOWN (999)",
                 [&] { server.worker.wait_for_save(gpu.stream); });
    EXPECT_EQ(current(), gpu.context);
    stand_in_reset();
    server.worker.wait_for_save(gpu.stream);
    server.finish(4);
    EXPECT_EQ(server.stored(counted(2 * T, 500)), 2u);
    server.worker.shutdown(10000);
  }
}

TEST(Cuda, AStreamThatIsCapturedIsLeftAlone) {
  Gpu gpu;
  for (auto direct : {false, true}) {
    SCOPED_TRACE(direct);
    DirectPool pool;
    auto table = pool.table();
    Server server(direct ? direct_json() : json("cuda-capture"), {pages_of(gpu.pool)},
                  direct ? &table : nullptr);
    serve(server, gpu, 1, 10);
    gpu.compute(slots(4, 20), 90);
    ok(cuStreamSynchronize(gpu.stream));
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    stand_in_capture(gpu.stream, 1);
    expect_error(KVB_INVALID_ARGUMENT, "is being captured into a graph",
                 [&] { server.worker.start_load(gpu.stream); });
    EXPECT_EQ(gpu.value(20), 90) << "nothing was started";
    stand_in_capture(gpu.stream, 0);
    {
      Gpu elsewhere(1);
      expect_error(KVB_INVALID_ARGUMENT, "the engine's stream",
                   [&] { server.worker.start_load(elsewhere.stream); });
    }
    ok(cuCtxSetCurrent(gpu.context));
    EXPECT_TRUE(failed(server).empty());
    server.worker.start_load(gpu.stream);
    EXPECT_TRUE(failed(server).empty());
    EXPECT_EQ(gpu.value(20), 10);
    server.worker.wait_for_save(gpu.stream);
    server.finish(2);
    stand_in_capture(gpu.stream, 1);
    auto other = counted(T + 1, 900);
    server.admit(3, other, slots(2, 30));
    server.worker.bind(server.build(3, other, 0));
    server.worker.start_load(nullptr);
    expect_error(KVB_INVALID_ARGUMENT, "is being captured into a graph",
                 [&] { server.worker.wait_for_save(gpu.stream); });
    EXPECT_EQ(stand_in_is_capture_spoilt(gpu.stream), 0);
    stand_in_capture(gpu.stream, 0);
    server.worker.wait_for_save(gpu.stream);
    server.finish(3);
    server.worker.shutdown(10000);
  }
}

/* Saves and loads while the engine captures a stream on its thread; answers whether that was
 * spoilt. */
bool spoils_a_capture(Gpu& gpu, CUstream captured, const std::string& pool) {
  Server server(json(pool, kRaw), gpu.pool);
  stand_in_capture(captured, 1);
  auto pages = slots(4);
  server.admit(1, kPrompt, pages);
  server.worker.bind(server.build(1, kPrompt, 0));
  server.worker.start_load(gpu.stream);
  gpu.compute(pages, 10);
  server.worker.wait_for_save(gpu.stream);
  server.finish(1);
  auto spoilt = stand_in_is_capture_spoilt(captured) != 0;
  EXPECT_EQ(server.stored(kPrompt), spoilt ? 0u : 3u);
  if (!spoilt) {
    EXPECT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    server.worker.start_load(gpu.stream);
    EXPECT_EQ(gpu.value(20), 10);
    server.worker.unregister_layout();
    spoilt = stand_in_is_capture_spoilt(captured) != 0;
  }
  stand_in_capture(captured, 0);
  EXPECT_EQ(stand_in_capture_mode(), 0) << "the engine's thread has another mode than before";
  server.worker.shutdown(10000);
  return spoilt;
}

/* An engine may make graphs while pages travel. */
TEST(Cuda, CapturesOfTheEngineAreNotSpoilt) {
  Gpu gpu;
  CUstream captured = nullptr;
  ok(cuStreamCreate(&captured, 1));
  EXPECT_FALSE(spoils_a_capture(gpu, captured, "cuda-graphs"));
  stand_in_skip("cuThreadExchangeStreamCaptureMode", 1);
  EXPECT_TRUE(spoils_a_capture(gpu, captured, "cuda-graphs-spoilt"));
  stand_in_reset();
  ok(cuStreamDestroy_v2(captured));
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
