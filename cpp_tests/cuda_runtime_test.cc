/* A host that knows CUDA by its runtime alone: its streams and events are what the library takes.
 * On stand-ins of the runtime and of the driver. */
#include "cuda/runtime.h"
#include "cuda_server.h"

namespace {

using namespace testing_cuda;

void fine(cudaError_t code) { ASSERT_EQ(code, 0); }

/* A thread that works on a device as programs of the runtime do. */
struct Host {
  explicit Host(int device) : number(device) {
    fine(cudaSetDevice(device));
    fine(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void* start = nullptr;
    fine(cudaMalloc(&start, kPage * kSlots));
    cache = static_cast<char*>(start);
    fine(cudaHostRegister(seen.data(), seen.size(), 0));
  }
  ~Host() {
    fine(cudaSetDevice(number));
    fine(cudaDeviceSynchronize());
    fine(cudaHostUnregister(seen.data()));
    fine(cudaFree(cache));
    fine(cudaStreamDestroy(stream));
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  CUdeviceptr address() const { return reinterpret_cast<uintptr_t>(cache); }
  char* page(int32_t index) const { return cache + kPage * static_cast<size_t>(index); }
  void compute(const Pages& pages, int first, cudaStream_t on) {
    for (size_t i = 0; i < pages.size(); ++i)
      fine(cudaMemsetAsync(page(pages[i]), first + static_cast<int>(i), kPage, on));
  }
  int value(int32_t index, cudaStream_t on) {
    fine(cudaMemcpyAsync(seen.data(), page(index), kPage, cudaMemcpyDefault, on));
    fine(cudaStreamSynchronize(on));
    for (auto byte : seen) EXPECT_EQ(byte, seen[0]);
    return seen[0];
  }

  int number;
  cudaStream_t stream = nullptr;
  char* cache = nullptr;
  std::vector<uint8_t> seen = std::vector<uint8_t>(kPage);
};

class RuntimeStreams : public testing::TestWithParam<bool> {};

TEST_P(RuntimeStreams, ItsStreamsCarrySavesAndLoads) {
  for (int device : {0, 1}) {
    SCOPED_TRACE(device);
    Host host(device);
    auto stream = GetParam() ? host.stream : nullptr;
    auto name = "runtime-" + std::to_string(device) + (GetParam() ? "" : "-null");
    Server server(json(name), host.address(), device);
    ASSERT_EQ(server.admit(1, kPrompt, slots(4)), 0u);
    server.worker.bind(server.build(1, kPrompt, 0));
    server.worker.start_load(stream);
    host.compute(slots(4), 10, stream);
    server.worker.wait_for_save(stream);
    server.finish(1);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    server.worker.bind(server.build(2, kPrompt, 3 * T));
    host.compute(slots(4, 20), 90, stream);
    server.worker.start_load(stream);
    EXPECT_EQ(failed(server), std::vector<uint64_t>{});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(host.value(20 + i, stream), 10 + i);
    EXPECT_EQ(host.value(23, stream), 93);
    server.worker.shutdown(10000);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, RuntimeStreams, testing::Values(true, false),
                         [](const auto& it) { return it.param ? "OfItsOwn" : "Null"; });

TEST(Runtime, ItsEventsAreFences) {
  Host host(1);
  cudaEvent_t event = nullptr;
  fine(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  {
    auto text = json("runtime-fence").insert(1, R"("async_load": true, )");
    Server server(text, host.address(), 1, true);
    server.admit(1, kPrompt, slots(4));
    server.worker.bind(server.build(1, kPrompt, 0));
    server.worker.start_load(host.stream);
    host.compute(slots(4), 10, host.stream);
    server.worker.wait_for_save(host.stream);
    server.finish(1);
    ASSERT_EQ(server.admit(2, kPrompt, slots(4, 20)), 3 * T);
    host.compute(slots(4, 20), 90, host.stream);
    fine(cudaEventRecord(event, host.stream));
    kvb_fence fence{};
    fence.kind = KVB_FENCE_CUDA_EVENT;
    fence.event = reinterpret_cast<uintptr_t>(event);
    server.worker.bind(server.scheduler.build({}), &fence);
    server.worker.start_load(host.stream);
    auto loaded = server.worker.get_finished({}, {2}).loaded;
    while (loaded.empty()) {
      std::this_thread::yield();
      loaded = server.worker.get_finished({}).loaded;
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(host.value(20 + i, host.stream), 10 + i);
    server.worker.shutdown(10000);
  }
  fine(cudaEventDestroy(event));
}

}  // namespace
