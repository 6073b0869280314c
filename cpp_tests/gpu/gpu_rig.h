/* A GPU by calls of the driver alone, for tests that run on a real one. */
#ifndef KVBRIDGE_CPP_TESTS_GPU_RIG_H
#define KVBRIDGE_CPP_TESTS_GPU_RIG_H

#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "../cuda_server.h"

namespace testing_gpu {

using namespace testing_rig;
using testing_cuda::failed;
using testing_cuda::Server;

using Bytes = std::vector<uint8_t>;

inline void must(CUresult result, const char* what) {
  if (result != 0)
    throw std::runtime_error(std::string(what) + " answered " + std::to_string(result));
}
#define MUST(call) testing_gpu::must(call, #call)

inline CUcontext current() {
  CUcontext context = nullptr;
  MUST(cuCtxGetCurrent(&context));
  return context;
}

inline int devices() {
  int count = 0;
  MUST(cuInit(0));
  MUST(cuDeviceGetCount(&count));
  return count;
}

/* Pinned memory that tests pass bytes through. */
class Pinned {
 public:
  explicit Pinned(size_t size) : size_(size) {
    if (posix_memalign(&start_, 4096, size) != 0) throw std::bad_alloc();
    MUST(cuMemHostRegister_v2(start_, size, 1));
  }
  ~Pinned() {
    EXPECT_EQ(cuMemHostUnregister(start_), 0);
    free(start_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  uint8_t* bytes() { return static_cast<uint8_t*>(start_); }
  CUdeviceptr address() const { return reinterpret_cast<uintptr_t>(start_); }
  size_t size() const { return size_; }

 private:
  void* start_ = nullptr;
  size_t size_;
};

/* Keeps a stream from doing what comes later, until it is released. */
class Hold {
 public:
  explicit Hold(CUstream stream) {
    MUST(cuLaunchHostFunc(
        stream,
        [](void* it) {
          auto& released = *static_cast<std::atomic<bool>*>(it);
          while (!released) std::this_thread::sleep_for(std::chrono::microseconds(100));
        },
        &released_));
  }
  /* The stream has to be waited for before this ends. */
  void release() { released_ = true; }
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  std::atomic<bool> released_{false};
};

/* An engine's thread: a context of its own, which is current, a stream, and device memory. */
class Gpu {
 public:
  explicit Gpu(size_t bytes, int number = 0) : size_(bytes) {
    MUST(cuInit(0));
    CUdevice device = 0;
    MUST(cuDeviceGet(&device, number));
    MUST(cuCtxCreate_v2(&context_, 0, device));
    MUST(cuStreamCreate(&stream_, 1));
    allocate();
    pinned_.reset(new Pinned(bytes));
  }
  ~Gpu() {
    EXPECT_EQ(cuCtxSetCurrent(context_), 0);
    EXPECT_EQ(cuStreamSynchronize(stream_), 0);
    pinned_.reset();
    release();
    EXPECT_EQ(cuStreamDestroy_v2(stream_), 0);
    EXPECT_EQ(cuCtxDestroy_v2(context_), 0);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  CUcontext context() const { return context_; }
  CUstream stream() const { return stream_; }
  CUdeviceptr pool() const { return pool_; }
  size_t size() const { return size_; }
  void allocate() { MUST(cuMemAlloc_v2(&pool_, size_)); }
  void release() { EXPECT_EQ(cuMemFree_v2(pool_), 0); }

  /* Behind what the stream has, and waited for. */
  void write(const Bytes& bytes) {
    std::memcpy(pinned_->bytes(), bytes.data(), size_);
    MUST(cuMemcpyAsync(pool_, pinned_->address(), size_, stream_));
    MUST(cuStreamSynchronize(stream_));
  }
  Bytes read() {
    MUST(cuMemcpyAsync(pinned_->address(), pool_, size_, stream_));
    MUST(cuStreamSynchronize(stream_));
    return Bytes(pinned_->bytes(), pinned_->bytes() + size_);
  }
  /* Work on a stream, as a forward pass is. */
  void fill(size_t offset, size_t size, int value, CUstream stream) {
    MUST(cuMemsetD8Async(pool_ + offset, static_cast<unsigned char>(value), size, stream));
  }
  void copy(size_t to, size_t from, size_t size) {
    MUST(cuMemcpyAsync(pool_ + to, pool_ + from, size, stream_));
  }

 private:
  size_t size_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr pool_ = 0;
  std::unique_ptr<Pinned> pinned_;
};

/* Pages of pieces: piece r of page p lies at `base(r) + p * stride`, and pieces have gaps between
 * them. */
struct Shape {
  size_t regions;
  size_t piece; /* the largest; others are smaller if they are uneven */
  bool uneven;
  size_t pages;

  size_t size(size_t region) const { return uneven ? piece - region % 7 * (piece / 9) : piece; }
  size_t stride() const { return piece + 48; }
  size_t base(size_t region) const { return region * (stride() * pages + 64); }
  size_t bytes() const { return base(regions); }

  std::vector<kvb_region> on(CUdeviceptr pool) const {
    std::vector<kvb_region> list;
    for (size_t r = 0; r < regions; ++r) {
      auto region = testing_cuda::pages_of(pool + base(r), size(r), pages);
      region.stride = stride();
      list.push_back(region);
    }
    return list;
  }
  kvb::Layout layout(CUdeviceptr pool) const {
    auto layout = kvb::Layout::with_mapping();
    layout.add_group(0, 0, "float16", "", {0});
    for (auto& region : on(pool)) layout.add_region(0, region);
    return layout;
  }
  /* Copies a page of one picture of the memory into another one's. */
  void move(const Bytes& from, int32_t source, Bytes& to, int32_t target) const {
    for (size_t r = 0; r < regions; ++r)
      std::memcpy(to.data() + base(r) + stride() * static_cast<size_t>(target),
                  from.data() + base(r) + stride() * static_cast<size_t>(source), size(r));
  }
};

inline void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.pages << " pages of " << shape.regions << " pieces of " << shape.piece << " bytes";
}

inline Bytes noise(size_t size, uint32_t seed) {
  Bytes bytes(size);
  uint32_t state = seed * 2654435761u + 1;
  for (auto& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return bytes;
}

inline std::string pool(const std::string& name, const std::string& more = "") {
  return R"({"model_key": "model", "staging_buffer_bytes": "32MiB", "global_segment_size": "64MiB", )" +
         more + R"("kvbridge": {"pool": "gpu-)" + name + R"(", "load_timeout_ms": 60000}})";
}

}  // namespace testing_gpu

#endif
