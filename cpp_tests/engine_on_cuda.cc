/* The engine's tests with caches in device memory, on a stand-in of the CUDA driver. That each of
 * the library's waits is needed, cuda_test.cc and tests/cuda_device.rs show, which hold streams. */
#include <optional>

#include "cuda_direct_rig.h"
#include "engine_testing.h"

namespace testing_engine {
namespace {

void must(CUresult result) {
  if (result != 0) throw std::runtime_error("the driver answered " + std::to_string(result));
}

/* A GPU with a context of the engines' own and one stream. */
class StandIn : public miniature::Device {
 public:
  StandIn() {
    must(cuInit(0));
    context_ = stand_in_context(0);
    must(cuCtxSetCurrent(context_));
    must(cuStreamCreate(&stream_, 1));
  }
  ~StandIn() override {
    EXPECT_EQ(cuCtxSetCurrent(context_), 0);
    EXPECT_EQ(cuStreamDestroy_v2(stream_), 0);
    stand_in_destroy_context(context_);
  }
  void MakeCurrent() override { must(cuCtxSetCurrent(context_)); }
  Memory Allocate(size_t bytes) override {
    CUdeviceptr address = 0;
    must(cuMemAlloc_v2(&address, bytes));
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
    must(cuLaunchHostFunc(stream_, run, kept.get()));
    kept.release();
  }
  void Synchronize() override { must(cuStreamSynchronize(stream_)); }

 private:
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
};

/* A pool that reads and writes the caches itself, and nothing else. */
struct Lent {
  Lent() : table(pool.table()) {}
  ~Lent() {
    EXPECT_EQ(pool.strangers, 0);
    EXPECT_FALSE(pool.pieces.empty());
    EXPECT_TRUE(pool.sorted_ranges().empty());
  }
  testing_cuda::DirectPool pool;
  kvb_store_table table;
};

/* What a test has of the device. Its streams do nothing before somebody waits: a pass is still to
 * come when its saves are queued. */
struct Rig {
  Rig() : before(stand_in_alive()), device(std::make_shared<StandIn>()) {
    stand_in_reset();
    stand_in_lazy(1);
  }
  ~Rig() {
    EXPECT_EQ(device.use_count(), 1) << "an engine is left";
    device.reset();
    stand_in_lazy(0);
    EXPECT_EQ(stand_in_alive(), before) << "something was not given back";
    EXPECT_EQ(stand_in_copies_in_flight(), 0);
    /* Or through the lent pool, which ends the process for other memory than a device's. */
    if (!lent) {
      EXPECT_GT(stand_in_calls("cuMemcpyBatchAsync_v2"), 0) << "no page went there";
    }
  }
  const long before;
  std::shared_ptr<StandIn> device;
  std::optional<Lent> lent;
};

std::optional<Rig> rig;

class EachTest : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { rig.emplace(); }
  void OnTestEnd(const testing::TestInfo&) override { rig.reset(); }
};

}  // namespace

std::shared_ptr<miniature::Device> device() { return rig->device; }

/* The driver says so; that the CPU cannot touch such memory is the stand-in's part. */
void expect_in_place(const miniature::Engine& engine) {
  constexpr unsigned kKindOfMemory = 2, kDevice = 2;
  const auto& options = engine.options();
  for (size_t rank = 0; rank < options.tp_size; ++rank) {
    for (size_t group = 0; group < options.groups.size(); ++group) {
      for (size_t pool = 0; pool < options.groups[group].pools.size(); ++pool) {
        unsigned kind = 0;
        EXPECT_EQ(
            cuPointerGetAttribute(&kind, kKindOfMemory, engine.cache(rank).PoolBase(group, pool)),
            0);
        EXPECT_EQ(kind, kDevice);
      }
    }
  }
}

/* Such memory only a pool of the host's own can use. */
EngineOptions direct(const std::string&, const std::string& more) {
  rig->lent.emplace();
  auto options = shape(testing_cuda::direct_json(more, R"("lookup_timeout_ms": 30000,
                                                          "load_timeout_ms": 30000)"));
  options.lent = &rig->lent->table;
  return options;
}

}  // namespace testing_engine

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new testing_engine::EachTest);
  return RUN_ALL_TESTS();
}
