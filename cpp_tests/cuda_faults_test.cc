/* Each call of the driver that the library makes fails once, in whole passes: a status or lost
 * pages, and nothing else. */
#include "cuda_direct_rig.h"

namespace {

using namespace testing_cuda;

/* What becomes of one life of a server: registration, a save, a load, the end. Nothing of it may
 * throw anything but statuses, and whatever was loaded is right. */
void live(Gpu& gpu, const std::string& text, const std::vector<kvb_region>& regions,
          const kvb_store_table* table = nullptr) {
  const auto one = slots(4), two = slots(4, 20);
  try {
    Server server(text, regions, table);
    auto pass = [&](uint64_t id, const Pages& pages) {
      auto restored = server.admit(id, kPrompt, pages);
      server.worker.bind(server.build(id, kPrompt, restored));
      auto loaded = server.worker.try_start_load(gpu.stream) == KVB_OK;
      auto lost = !loaded || !failed(server).empty();
      if (restored > 0 && !lost) {
        EXPECT_EQ(restored, 3 * T);
        for (int i = 0; i < 3; ++i) EXPECT_EQ(gpu.value(pages[static_cast<size_t>(i)]), 10 + i);
      }
      EXPECT_EQ(current(), gpu.context) << "after start_load";
      if (lost) {
        server.scheduler.reset_request(id);
        return;
      }
      if (restored == 0) gpu.compute(pages, 10);
      /* A pass that cannot be marked did not run, as far as the pool knows. */
      if (server.worker.try_wait_for_save(gpu.stream) != KVB_OK) stand_in_reset();
      EXPECT_EQ(current(), gpu.context) << "after wait_for_save";
      server.finish(id);
      server.settle();
    };
    pass(1, one);
    gpu.compute(two, 90);
    pass(2, two);
    server.worker.unregister_layout();
    EXPECT_EQ(current(), gpu.context) << "after unregister_layout";
    server.worker.shutdown(10000);
  } catch (const kvb::Error& error) {
    EXPECT_TRUE(error.status() == KVB_DEVICE_FAILED || error.status() == KVB_NO_DEVICE ||
                error.status() == KVB_INVALID_ARGUMENT)
        << error.what();
  }
  EXPECT_EQ(current(), gpu.context);
  EXPECT_EQ(stand_in_copies_in_flight(), 0);
}

/* The library's own calls alone: what the engine calls itself does not fail. */
const char* const kFunctions[] = {
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxGetDevice",
    "cuPointerGetAttribute",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuStreamWaitEvent",
    "cuEventSynchronize",
    "cuMemcpyBatchAsync_v2",
    "cuStreamSynchronize",
    "cuEventRecord",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuMemHostGetDevicePointer_v2",
    "cuLaunchKernel",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
};

/* In direct mode nothing is pinned or copied. */
const char* const kDirectFunctions[] = {
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxGetDevice",
    "cuPointerGetAttribute",
    "cuEventSynchronize",
    "cuEventRecord",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuDeviceGetAttribute",
    "cuMemGetAddressRange_v2",
    "cuFlushGPUDirectRDMAWrites",
};

TEST(CudaDirectFaults, EveryCallMayFail) {
  long failures = 0;
  for (const char* function : kDirectFunctions) {
    for (long nth = 1;; ++nth) {
      Gpu gpu;
      DirectPool pool;
      auto table = pool.table();
      SCOPED_TRACE(std::string(function) + "-" + std::to_string(nth));
      stand_in_reset();
      /* The range of an address is then asked for in the older way. */
      if (function == std::string("cuMemGetAddressRange_v2")) stand_in_hide_attribute(11, 1);
      stand_in_fail(function, nth, 999);
      live(gpu, direct_json(), {pages_of(gpu.pool)}, &table);
      auto has_failed = *stand_in_failed() != 0;
      stand_in_reset();
      pool.await_release();
      EXPECT_TRUE(pool.sorted_ranges().empty());
      EXPECT_EQ(pool.strangers, 0);
      auto more = stand_in_alive() - gpu.before - 2;
      auto is_event = function == std::string("cuEventDestroy_v2");
      EXPECT_EQ(more, has_failed && is_event ? 1 : 0);
      gpu.before += more;
      if (!has_failed) break;
      ++failures;
    }
  }
  EXPECT_GT(failures, 30);
}

/* By how many regions a page has, so that its pieces travel by copies, or by the kernel. */
class CudaFaults : public testing::TestWithParam<size_t> {};

TEST_P(CudaFaults, EveryCallMayFailInAWholePass) {
  long kept = 0, failures = 0;
  for (const char* function : kFunctions) {
    for (long nth = 1;; ++nth) {
      Gpu gpu;
      auto name = std::string("cuda-faults-") + function + "-" + std::to_string(nth) + "-" +
                  std::to_string(GetParam());
      SCOPED_TRACE(name);
      stand_in_reset();
      stand_in_fail(function, nth, 999);
      live(gpu, json(name), pieces_of(gpu.pool, GetParam()));
      auto has_failed = *stand_in_failed() != 0;
      stand_in_reset();
      /* What could not be given back is kept, and only that. */
      auto more = stand_in_alive() - gpu.before - 2;
      auto gives_back = std::string(function).find("Destroy") != std::string::npos ||
                        std::string(function) == "cuMemHostUnregister" ||
                        std::string(function) == "cuModuleUnload";
      EXPECT_EQ(more, has_failed && gives_back ? 1 : 0);
      gpu.before += more;
      kept += more;
      if (!has_failed) break;
      ++failures;
    }
  }
  EXPECT_GT(failures, 30);
  EXPECT_GT(kept, 2);
}

INSTANTIATE_TEST_SUITE_P(Regions, CudaFaults, testing::Values(1, 8));

}  // namespace
