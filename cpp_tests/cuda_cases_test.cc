/* Faults that were reported for systems of this kind, on a cache in device memory: through staging
 * memory and in direct mode. Numbers are those of the case list. */
#include <map>

#include "cuda_direct_rig.h"

namespace {

using namespace testing_cuda;

/* How pages get to the pool. */
enum class Way { kStaged, kDirect };

/* A server on one of the ways, on a pool whose calls can be stopped. */
struct CudaCases : ::testing::TestWithParam<Way> {
  CudaCases() : table(pool.table()) {
    if (!is_direct()) {
      table.device_memory = 0;
      pool.reach = nullptr;
    }
    pool.before = [this](const std::string& name) {
      if (name != stopped) return;
      ++waiting;
      while (!go) std::this_thread::yield();
    };
  }
  ~CudaCases() override {
    close();
    EXPECT_EQ(pool.strangers, 0);
  }
  static bool is_direct() { return GetParam() == Way::kDirect; }

  /* Ends the server; on return nobody uses the pool. */
  void close() {
    go = true;
    server.reset();
    while (pool.releases < opened) std::this_thread::yield();
    stopped.clear();
    pool.objects.clear();
  }
  Server& open(CUdeviceptr memory, const std::string& more = "", bool fences = false) {
    auto text = R"({"model_key": "model", )" +
                std::string(is_direct() ? R"("stage_through_host": false, )"
                                        : R"("staging_buffer_bytes": "64KiB", )") +
                more + R"("kvbridge": {"store": "host", "page_format": "raw",
                           "lookup_timeout_ms": 60000, "load_timeout_ms": 60000}})";
    server = std::make_unique<Server>(text, std::vector<kvb_region>{pages_of(memory)}, &table, 0,
                                      -1, fences);
    ++opened;
    return *server;
  }
  /* Calls of this kind wait until `go`. */
  void stop(const std::string& name) {
    go = false;
    waiting = 0;
    stopped = name;
  }
  void until_stopped() {
    while (waiting == 0) std::this_thread::yield();
  }

  DirectPool pool;
  kvb_store_table table;
  std::unique_ptr<Server> server;
  /* Changes only while no call is made. */
  std::string stopped;
  std::atomic<bool> go{true};
  std::atomic<int> waiting{0};
  int opened = 0;
};

const char kAsync[] = R"("async_load": true, "async_load_workers": 1, )";

/* Waits for the load of a request; its failure is one of the test. */
void await_loaded(Server& server, uint64_t id) {
  auto loaded = server.worker.get_finished({}, {id}).loaded;
  while (loaded.empty()) {
    std::this_thread::yield();
    loaded = server.worker.get_finished({}).loaded;
  }
  EXPECT_TRUE(server.worker.take_failed_async_loads().empty());
}

TEST_P(CudaCases, Case27ASaveStoresWhatTheLastKernelWrote) {
  Gpu gpu;
  auto& it = open(gpu.pool);
  for (uint64_t round = 1; round <= 1000; ++round) {
    auto tokens = counted(T, static_cast<int32_t>(round) * 1000);
    auto page = static_cast<int32_t>(round % kSlots);
    auto value = static_cast<int>(round % 250) + 1;
    it.admit(round, tokens, {page});
    it.worker.bind(it.build(round, tokens, 0));
    it.worker.start_load(gpu.stream);
    stand_in_hold(gpu.stream, 1);
    gpu.compute({page}, 255);
    gpu.compute({page}, value);
    it.worker.wait_for_save(gpu.stream);
    while (stand_in_waiting("cuEventSynchronize") == 0 && pool.size() == 0)
      std::this_thread::yield();
    stand_in_hold(gpu.stream, 0);
    it.finish(round);
    ASSERT_EQ(pool.stored_value(), value) << "round " << round;
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.objects.clear();
  }
  it.worker.shutdown(10000);
}

TEST_P(CudaCases, Case28ALoadComesBehindTheCopyThatItsFenceIsAbout) {
  Gpu gpu;
  CUevent copied = nullptr;
  ok(cuEventCreate(&copied, 2));
  {
    auto& it = open(gpu.pool, kAsync, true);
    serve(it, gpu, 1, 10);
    gpu.compute(slots(4, 60), 90);
    for (uint64_t round = 2; round < 102; ++round) {
      auto pages = slots(4, 20);
      ASSERT_EQ(it.admit(round, kPrompt, pages), 3 * T);
      stand_in_hold(gpu.stream, 1);
      {
        Exempt exempt;
        for (int i = 0; i < 4; ++i)
          ok(cuMemcpyAsync(gpu.page(20 + i), gpu.page(60 + i), kPage, gpu.stream));
        ok(cuEventRecord(copied, gpu.stream));
      }
      kvb_fence fence{};
      fence.kind = KVB_FENCE_CUDA_EVENT;
      fence.event = reinterpret_cast<uintptr_t>(copied);
      it.worker.bind(it.scheduler.build({}), &fence);
      it.worker.start_load(gpu.stream);
      while (stand_in_waiting("cuEventSynchronize") == 0 && it.worker.stats().loads_in_flight > 0)
        std::this_thread::yield();
      stand_in_hold(gpu.stream, 0);
      await_loaded(it, round);
      ok(cuStreamSynchronize(gpu.stream));
      for (int i = 0; i < 3; ++i) ASSERT_EQ(gpu.value(20 + i), 10 + i) << "round " << round;
      it.scheduler.finished(round, KVB_FINISH_ENDED);
      it.worker.get_finished({round});
    }
    it.worker.shutdown(10000);
  }
  ok(cuEventDestroy_v2(copied));
}

/* The device of the context that was current in each call of ours that needs one. */
void expect_device(int device) {
  std::vector<StandInCall> log(stand_in_log(nullptr, 0));
  log.resize(std::min(log.size(), stand_in_log(log.data(), log.size())));
  std::set<uintptr_t> threads;
  std::map<std::string, int> functions;
  for (auto& call : log) {
    std::string function = call.function;
    if (function == "cuCtxGetCurrent" || function == "cuCtxSetCurrent" || function == "cuInit" ||
        function == "cuDriverGetVersion" || function == "cuThreadExchangeStreamCaptureMode")
      continue;
    EXPECT_EQ(call.device, device) << function;
    threads.insert(call.thread);
    ++functions[function];
  }
  /* The engine's, the one that saves, and one that loads. */
  EXPECT_GE(threads.size(), 3u);
  EXPECT_GE(functions.size(), 6u);
}

TEST_P(CudaCases, Case31EveryCallIsMadeOnTheDeviceOfTheRegistration) {
  Gpu other(0), gpu(1);
  auto& it = open(gpu.pool, kAsync);
  /* From now on the engine's thread works on the other device. */
  stand_in_exempt(1);
  ok(cuCtxSetCurrent(other.context));
  stand_in_exempt(0);
  serve(it, gpu, 1, 10);
  ASSERT_EQ(it.admit(2, kPrompt, slots(4, 20)), 3 * T);
  it.worker.bind(it.scheduler.build({}));
  it.worker.start_load(gpu.stream);
  await_loaded(it, 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(gpu.value(20 + i), 10 + i);
  EXPECT_EQ(current(), other.context);
  it.worker.unregister_layout();
  it.worker.shutdown(10000);
  expect_device(1);
  EXPECT_EQ(current(), other.context);
}

/* Where an asynchronous load is when its request goes. */
enum class State { kQueued, kFence, kTransfer, kDone };

/* Brings the load of request 2, into pages from 20 on, into a state; what request 3 does keeps it
 * there. */
struct Parked {
  Parked(CudaCases& test, Gpu& gpu, State state) : gpu(gpu) {
    ok(cuEventCreate(&event, 2));
    auto& it = *test.server;
    /* Its place on the only thread that loads. */
    if (state == State::kQueued) begin(it, 3, 40, true);
    if (state == State::kTransfer) test.stop("get");
    begin(it, 2, 20, state == State::kFence);
    if (state == State::kTransfer) test.until_stopped();
    while (state == State::kDone && it.worker.stats().loads_in_flight > 0)
      std::this_thread::yield();
    if (state == State::kQueued || state == State::kFence)
      while (stand_in_waiting("cuEventSynchronize") == 0) std::this_thread::yield();
  }
  ~Parked() { ok(cuEventDestroy_v2(event)); }
  Parked(const Parked&) = delete;
  Parked& operator=(const Parked&) = delete;

  void begin(Server& it, uint64_t id, int32_t first, bool held) {
    ASSERT_EQ(it.admit(id, kPrompt, slots(4, first)), 3 * T);
    if (held) stand_in_hold(gpu.stream, 1);
    ok(cuEventRecord(event, gpu.stream));
    kvb_fence fence{};
    fence.kind = KVB_FENCE_CUDA_EVENT;
    fence.event = reinterpret_cast<uintptr_t>(event);
    it.worker.bind(it.scheduler.build({}), &fence);
    it.worker.start_load(gpu.stream);
  }
  /* What kept the load from moving on does not any more. */
  void go(CudaCases& test) {
    stand_in_hold(gpu.stream, 0);
    test.go = true;
  }

  Gpu& gpu;
  CUevent event = nullptr;
};

/* Overwrites the pages as whoever gets them does; they keep that. */
void reuse(Gpu& gpu) {
  std::vector<uint8_t> bytes(kPage, 77);
  for (int i = 20; i < 24; ++i) stand_in_write(gpu.page(i), bytes.data(), kPage);
}

void end_case_37(CudaCases& test, Gpu& gpu, State state) {
  auto& it = *test.server;
  while (it.worker.stats().loads_in_flight > 0) std::this_thread::yield();
  for (int i = 20; i < 24; ++i) EXPECT_EQ(gpu.value(i), 77) << "written after it was given back";
  if (state == State::kQueued) await_loaded(it, 3);
  /* Everything is where it was: the next load has all it needs. */
  test.stopped = "";
  ASSERT_EQ(it.admit(5, kPrompt, slots(4, 50)), 3 * T);
  it.worker.bind(it.scheduler.build({}));
  it.worker.start_load(gpu.stream);
  await_loaded(it, 5);
  EXPECT_EQ(gpu.value(51), 11);
  it.worker.unregister_layout();
  it.worker.shutdown(10000);
}

const State kStates[] = {State::kQueued, State::kFence, State::kTransfer, State::kDone};

TEST_P(CudaCases, Case37ALoadIsFinishedInEachOfItsStates) {
  for (auto state : kStates) {
    SCOPED_TRACE(static_cast<int>(state));
    Gpu gpu;
    auto& it = open(gpu.pool, kAsync);
    serve(it, gpu, 1, 10);
    {
      Parked parked(*this, gpu, state);
      EXPECT_EQ(it.scheduler.finished(2, KVB_FINISH_CANCELLED), true);
      auto saved = it.worker.get_finished({2}, {2}).saved;
      if (state != State::kDone) {
        EXPECT_TRUE(saved.empty()) << "pages are pinned while a write can follow";
      }
      parked.go(*this);
      while (saved.empty()) {
        std::this_thread::yield();
        auto polled = it.worker.get_finished({});
        EXPECT_TRUE(polled.loaded.empty());
        saved = polled.saved;
      }
      EXPECT_EQ(saved[0], 2u);
      reuse(gpu);
    }
    end_case_37(*this, gpu, state);
    close();
  }
}

TEST_P(CudaCases, Case37ALoadIsResetInEachOfItsStates) {
  for (auto state : kStates) {
    SCOPED_TRACE(static_cast<int>(state));
    Gpu gpu;
    auto& it = open(gpu.pool, kAsync);
    serve(it, gpu, 1, 10);
    {
      Parked parked(*this, gpu, state);
      /* In direct mode the reset waits for the call that writes into the pages. */
      std::thread release;
      if (state == State::kTransfer && is_direct())
        release = std::thread([&] { parked.go(*this); });
      it.scheduler.reset_request(2);
      reuse(gpu);
      if (release.joinable()) release.join();
      parked.go(*this);
      while (it.worker.stats().loads_in_flight > 0) std::this_thread::yield();
    }
    end_case_37(*this, gpu, state);
    close();
  }
}

/* What ends the use of the memory while a call of the pool has pages of it. */
template <typename End>
void end_during(CudaCases& test, Gpu& gpu, const std::string& call, End end) {
  auto& it = *test.server;
  if (call == "get") serve(it, gpu, 1, 10);
  test.stop(call);
  auto restored = it.admit(2, kPrompt, slots(4, 20));
  if (call == "get") {
    it.worker.bind(it.scheduler.build({}));
    it.worker.start_load(gpu.stream);
  } else {
    it.worker.bind(it.build(2, kPrompt, restored));
    it.worker.start_load(gpu.stream);
    gpu.compute(slots(4, 20), 10);
    it.worker.wait_for_save(gpu.stream);
  }
  test.until_stopped();
  std::thread release([&] {
    /* Time for an end that does not wait. */
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    test.go = true;
  });
  end();
  EXPECT_TRUE(test.go) << "it did not wait";
  release.join();
  reuse(gpu);
  EXPECT_EQ(stand_in_copies_in_flight(), 0);
  for (int i = 20; i < 24; ++i) EXPECT_EQ(gpu.value(i), 77);
  EXPECT_TRUE(test.pool.sorted_ranges().empty()) << "the pool has memory of a layout that is gone";
}

TEST_P(CudaCases, Case40ALayoutIsNotUnregisteredUnderATransfer) {
  for (auto call : {"get", "put"}) {
    SCOPED_TRACE(call);
    Gpu gpu;
    auto& it = open(gpu.pool, kAsync);
    end_during(*this, gpu, call, [&] { it.worker.unregister_layout(); });
    it.worker.shutdown(10000);
    close();
  }
}

TEST_P(CudaCases, Case40AStoreIsNotClosedUnderATransfer) {
  for (auto call : {"get", "put"}) {
    SCOPED_TRACE(call);
    Gpu gpu;
    auto& it = open(gpu.pool, kAsync);
    end_during(*this, gpu, call, [&] { it.worker.shutdown(60000); });
    close();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaCases, ::testing::Values(Way::kStaged, Way::kDirect),
                         [](const ::testing::TestParamInfo<Way>& info) {
                           return info.param == Way::kDirect ? "Direct" : "Staged";
                         });

}  // namespace
