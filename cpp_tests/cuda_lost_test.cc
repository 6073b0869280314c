/* A context that is lost for good, as after an illegal address: the worker fails, requests come
 * back, nothing wrong is stored. */
#include "cuda_direct_rig.h"

namespace {

using namespace testing_cuda;
using testing_kvb::expect_error;

/* Errors after which, by the driver's reference, every call answers the same until the process
 * ends; and two of the hardware. */
const int kSticky[] = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721};

std::vector<uint64_t> copy_of(const kvb::Ids& ids) { return {ids.begin(), ids.end()}; }

/* A pass that cannot load nor save any more. */
void stays_lost(Server& server, Gpu& gpu, int code) {
  auto number = "(" + std::to_string(code) + ")";
  for (int i = 0; i < 2; ++i) {
    server.worker.bind(server.scheduler.build({}));
    expect_error(KVB_DEVICE_LOST, number, [&] { server.worker.start_load(gpu.stream); });
    expect_error(KVB_DEVICE_LOST, number, [&] { server.worker.wait_for_save(gpu.stream); });
    server.worker.get_finished({});
  }
}

TEST(CudaLost, EachCodeThatStaysFailsTheWorker) {
  for (int code : kSticky) {
    SCOPED_TRACE(code);
    Gpu gpu;
    Server server(json("cuda-lost-" + std::to_string(code)), gpu.pool);
    serve(server, gpu, 1, 10);
    EXPECT_EQ(server.stored(kPrompt), 3u);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    stand_in_lose(1, code);
    expect_error(KVB_DEVICE_LOST, "(" + std::to_string(code) + ")",
                 [&] { server.worker.start_load(gpu.stream); });
    EXPECT_EQ(failed(server), std::vector<uint64_t>{2});
    server.scheduler.reset_request(2);
    stays_lost(server, gpu, code);
    EXPECT_EQ(server.stored(kPrompt), 3u) << "the pool is there";
    server.worker.unregister_layout();
    expect_error(KVB_DEVICE_LOST, "cuPointerGetAttribute", [&] {
      auto layout = kvb::Layout::with_mapping(0);
      layout.add_group(0, 0, "float16", "", {0}).add_region(0, pages_of(gpu.pool));
      server.worker.register_layout(layout);
    });
    server.worker.shutdown(10000);
  }
}

TEST(CudaLost, OthersDoNot) {
  for (int code : {1, 2, 201, 400, 600, 999}) {
    SCOPED_TRACE(code);
    Gpu gpu;
    Server server(json("cuda-kept-" + std::to_string(code)), gpu.pool);
    serve(server, gpu, 1, 10);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    stand_in_fail("cuStreamSynchronize", 1, code);
    server.worker.start_load(gpu.stream);
    EXPECT_EQ(failed(server), std::vector<uint64_t>{2});
    server.scheduler.reset_request(2);
    stand_in_reset();
    server.worker.bind(server.scheduler.build({}));
    server.worker.start_load(gpu.stream);
    server.worker.wait_for_save(gpu.stream);
    server.worker.shutdown(10000);
  }
}

/* The life of a server whose context is lost at its nth call: what is loaded is right until then,
 * every request comes back, and what another server finds in the pool is right. Whether it was
 * lost. */
bool live(const std::string& text, const kvb_store_table* table, long nth) {
  Gpu other(1), gpu(0);
  auto open = [&](Gpu& on) {
    ok(cuCtxSetCurrent(on.context));
    return std::make_unique<Server>(text, std::vector{pages_of(on.pool)}, table);
  };
  auto reader = open(other), server = open(gpu);
  stand_in_reset();
  stand_in_lose(nth, 700);
  auto is_lost = false;
  for (uint64_t id : {1, 2}) {
    auto pages = slots(4, id == 1 ? 0 : 20);
    auto restored = server->admit(id, kPrompt, pages);
    server->worker.bind(server->build(id, kPrompt, restored));
    auto loads = server->worker.try_start_load(gpu.stream);
    auto handed_back = failed(*server);
    if (loads == KVB_OK) {
      EXPECT_FALSE(is_lost);
      EXPECT_TRUE(handed_back.empty());
      for (size_t i = 0; i < restored / T; ++i)
        EXPECT_EQ(gpu.value(pages[i]), 10 + static_cast<int>(i));
    } else {
      EXPECT_EQ(loads, KVB_DEVICE_LOST);
      EXPECT_EQ(handed_back.size(), restored > 0 ? 1u : 0u);
    }
    gpu.compute(pages, 10);
    auto saves = server->worker.try_wait_for_save(gpu.stream);
    EXPECT_EQ(saves, loads != KVB_OK || saves != KVB_OK ? KVB_DEVICE_LOST : KVB_OK);
    is_lost |= saves != KVB_OK;
    if (handed_back.empty()) {
      /* Returns when the request came back. */
      server->finish(id);
    } else {
      server->scheduler.reset_request(id);
    }
    server->settle();
  }
  auto was_lost = *stand_in_failed() != 0;
  if (was_lost) stays_lost(*server, gpu, 700);
  EXPECT_EQ(current(), gpu.context);
  server->worker.unregister_layout();
  server->worker.shutdown(10000);
  server.reset();
  stand_in_reset();

  ok(cuCtxSetCurrent(other.context));
  auto found = reader->admit(1, kPrompt, slots(4, 40));
  EXPECT_TRUE(was_lost || found == 3 * T);
  reader->worker.bind(reader->build(1, kPrompt, found));
  reader->worker.start_load(other.stream);
  EXPECT_TRUE(failed(*reader).empty());
  for (int i = 0; i < static_cast<int>(found / T); ++i) EXPECT_EQ(other.value(40 + i), 10 + i);
  reader->worker.shutdown(10000);
  reader.reset();
  /* The contexts end in the order in which they are current. */
  ok(cuCtxSetCurrent(gpu.context));
  return was_lost;
}

TEST(CudaLost, AtEachCallOfAStagedServer) {
  long nth = 1;
  while (live(json("cuda-lost-at-" + std::to_string(nth)), nullptr, nth)) ++nth;
  EXPECT_GT(nth, 10);
}

TEST(CudaLost, AtEachCallInDirectMode) {
  for (long nth = 1;; ++nth) {
    DirectPool pool;
    auto table = pool.table();
    if (!live(direct_json(), &table, nth)) break;
    EXPECT_LT(nth, 1000);
  }
}

/* A load that waits for its event when the context is lost, and one that was done before. */
TEST(CudaLost, ParkedRequestsComeBack) {
  Gpu gpu;
  CUevent event = nullptr;
  ok(cuEventCreate(&event, 2));
  {
    auto text = json("cuda-lost-parked").insert(1, R"("async_load": true, )");
    Server server(text, gpu.pool, -1, true);
    serve(server, gpu, 1, 10);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    kvb_fence fence{};
    fence.kind = KVB_FENCE_CUDA_EVENT;
    fence.event = reinterpret_cast<uintptr_t>(event);
    stand_in_hold(gpu.stream, 1);
    gpu.compute(slots(4, 20), 90);
    ok(cuEventRecord(event, gpu.stream));
    server.worker.bind(server.scheduler.build({}), &fence);
    server.worker.start_load(gpu.stream);
    while (stand_in_waiting("cuEventSynchronize") == 0) std::this_thread::yield();
    stand_in_lose(1, 719);
    EXPECT_EQ(cuMemsetD8Async(gpu.page(60), 1, kPage, gpu.stream), 719) << "the engine's own work";
    auto loaded = copy_of(server.worker.get_finished({}, {2}).loaded);
    while (loaded.empty()) {
      std::this_thread::yield();
      loaded = copy_of(server.worker.get_finished({}).loaded);
    }
    EXPECT_EQ(loaded, std::vector<uint64_t>{2});
    EXPECT_EQ(copy_of(server.worker.take_failed_async_loads()), std::vector<uint64_t>{2});
    server.scheduler.reset_request(2);
    stays_lost(server, gpu, 719);
    server.worker.shutdown(10000);
    stand_in_hold(gpu.stream, 0);
  }
  ok(cuEventDestroy_v2(event));
}

}  // namespace
