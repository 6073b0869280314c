/* Miniature engines whose caches lie in device memory, on a stand-in of the CUDA driver. That each
 * of the library's waits is needed, cuda_test.cc and tests/cuda_device.rs show, which hold streams.
 */
#include <memory>

#include "cuda_direct_rig.h"
#include "engine_testing.h"

using namespace testing_engine;

namespace {

void ok(CUresult result) {
  if (result != 0) throw std::runtime_error("the driver answered " + std::to_string(result));
}

/* A GPU with a context of the engine's own and one stream. */
class StandIn : public miniature::Device {
 public:
  StandIn() {
    ok(cuInit(0));
    context_ = stand_in_context(0);
    ok(cuCtxSetCurrent(context_));
    ok(cuStreamCreate(&stream_, 1));
  }
  ~StandIn() override {
    EXPECT_EQ(cuCtxSetCurrent(context_), 0);
    EXPECT_EQ(cuStreamDestroy_v2(stream_), 0);
    stand_in_destroy_context(context_);
  }
  void MakeCurrent() override { ok(cuCtxSetCurrent(context_)); }
  Memory Allocate(size_t bytes) override {
    CUdeviceptr address = 0;
    ok(cuMemAlloc_v2(&address, bytes));
    return {address, static_cast<uint8_t*>(stand_in_bytes(address, bytes))};
  }
  void Free(uint64_t address) override { EXPECT_EQ(cuMemFree_v2(address), 0); }
  void* stream() override { return stream_; }
  void Launch(std::function<void()> work) override {
    auto kept = std::make_unique<std::function<void()>>(std::move(work));
    auto run = [](void* argument) {
      std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(argument));
      (*mine)();
    };
    ok(cuLaunchHostFunc(stream_, run, kept.get()));
    kept.release();
  }
  void Synchronize() override { ok(cuStreamSynchronize(stream_)); }

 private:
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

/* Streams that do nothing before somebody waits: a pass is still to come when its saves are queued.
 */
struct Lazy {
  Lazy() { stand_in_lazy(1); }
  ~Lazy() {
    stand_in_lazy(0);
    EXPECT_EQ(stand_in_alive(), before);
    EXPECT_EQ(stand_in_copies_in_flight(), 0);
  }
  long before = stand_in_alive();
};

EngineOptions on_device(const std::string& json) {
  auto options = shape(json);
  options.device = std::make_shared<StandIn>();
  return options;
}

}  // namespace

TEST(EngineOnDevice, ConversationsArePublishedAndLoaded) {
  const Lazy lazy;
  auto options = on_device(pool_json("device.conversations"));
  options.groups = {GroupSpec{0, 0, {PoolSpec{}}}, {5, 32, {PoolSpec{}}}};
  options.max_running = 4;
  options.token_budget = 96;
  options.max_drafts = 2;
  options.abandon_passes = options.overlap = options.haggle = options.local_reuse = true;
  write_then_read(std::move(options), few_conversations(40, 6));
}

TEST(EngineOnDevice, RanksOnThreadsOfTheirOwnShareIt) {
  const Lazy lazy;
  auto options = on_device(pool_json("device.ranks"));
  PoolSpec index;
  index.kv_factor = 1;
  index.element_bits = 8;
  index.replicated = true;
  options.groups = {GroupSpec{0, 0, {PoolSpec{}, index}}};
  options.tp_size = 2;
  options.max_running = 3;
  write_then_read(std::move(options), few_conversations(20, 4));
}

/* All that kvbridge_kvcache.hpp makes of block pools: keys and values, an indexer, a window, and
 * layers in front. */
TEST(EngineOnDevice, PoolsOfEveryKindTravel) {
  const Lazy lazy;
  auto options = on_device(pool_json("device.pools"));
  PoolSpec index, states;
  index.kv_factor = 1;
  index.element_bits = 8;
  index.replicated = true;
  states.layers = 4;
  states.kv_factor = 1;
  states.layer_first = true;
  options.groups = {GroupSpec{0, 0, {PoolSpec{}, index}}, {5, 32, {PoolSpec{}}}, {9, 0, {states}}};
  options.tp_size = 2;
  options.max_running = 3;
  write_then_read(std::move(options), few_conversations(20, 4));
}

TEST(EngineOnDevice, RequestsWaitOutsideTheBatch) {
  const Lazy lazy;
  auto options = on_device(pool_json("device.parked").insert(1, R"("async_load": true, )"));
  options.max_running = 4;
  options.fences = miniature::Fences::kKept;
  write_then_read(std::move(options), few_conversations(30, 4));
}

/* A pool that reads and writes the caches itself. */
struct DirectEngine {
  DirectEngine(const std::string& more = "") : table(pool.table()) {
    options = on_device(testing_cuda::direct_json(more, R"("lookup_timeout_ms": 30000,
                                                  "load_timeout_ms": 30000)"));
    options.lent = &table;
  }
  ~DirectEngine() {
    EXPECT_EQ(pool.strangers, 0);
    EXPECT_FALSE(pool.pieces.empty());
    EXPECT_TRUE(pool.sorted_ranges().empty());
  }
  testing_cuda::DirectPool pool;
  kvb_store_table table;
  EngineOptions options;
};

TEST(EngineOnDevice, ThePoolUsesItsMemoryItself) {
  const Lazy lazy;
  DirectEngine direct;
  direct.options.groups = {GroupSpec{0, 0, {PoolSpec{}}}, {5, 32, {PoolSpec{}}}};
  direct.options.max_running = 4;
  direct.options.token_budget = 96;
  direct.options.max_drafts = 2;
  direct.options.abandon_passes = direct.options.overlap = direct.options.haggle =
      direct.options.local_reuse = true;
  write_then_read(std::move(direct.options), few_conversations(40, 6));
}

TEST(EngineOnDevice, ThePoolUsesTheMemoryOfRanksItself) {
  const Lazy lazy;
  DirectEngine direct;
  PoolSpec index;
  index.kv_factor = 1;
  index.element_bits = 8;
  index.replicated = true;
  direct.options.groups = {GroupSpec{0, 0, {PoolSpec{}, index}}};
  direct.options.tp_size = 2;
  direct.options.max_running = 3;
  write_then_read(std::move(direct.options), few_conversations(20, 4));
}

TEST(EngineOnDevice, ThePoolWritesPagesOfRequestsThatWait) {
  const Lazy lazy;
  DirectEngine direct(R"("async_load": true, )");
  direct.options.max_running = 4;
  direct.options.fences = miniature::Fences::kKept;
  write_then_read(std::move(direct.options), few_conversations(30, 4));
}

TEST(EngineOnDevice, ItsMemoryComesAndGoes) {
  const Lazy lazy;
  auto options = on_device(pool_json("device.sleep"));
  Engine engine(options);
  options.device = nullptr;
  const auto first = run_one(&engine, request(1, prompt(100)));
  engine.Sleep();
  engine.WakeUp();
  EXPECT_EQ(run_one(&engine, request(2, prompt(100))), first);
  EXPECT_EQ(engine.counters().hit_blocks, 6u);
  EXPECT_EQ(engine.counters().wrong_pages, 0u);
}
