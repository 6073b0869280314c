/* An engine with its cache in device memory, driven call by call, on the stand-in of the CUDA
 * driver. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_RIG_H
#define KVBRIDGE_CPP_TESTS_CUDA_RIG_H

#include "cuda_server.h"

namespace testing_cuda {

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
    /* Also a context that was lost ends. */
    Exempt exempt;
    ok(cuCtxSetCurrent(context));
    /* After a failure nobody has waited for the pass, which goes on. */
    ok(cuStreamSynchronize(stream));
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
