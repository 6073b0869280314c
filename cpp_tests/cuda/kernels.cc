/* Kernels: one is known, the library's own, by its name. Its source runs here on the CPU, late and
 * in the stream's order; of its PTX nothing is looked at but that it has the name. See stand_in.h.
 */
#include <cstring>

#include "call.h"

using namespace stand_in;

/* ---- the kernel's source, as code of the host ---- */

namespace {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
thread_local Index blockIdx, gridDim, blockDim, threadIdx;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#include "../../src/device/cuda/pieces.cu"
#undef __global__
#undef __device__

constexpr char kName[] = "kvb_copy_pieces";

/* The grid of a launch. */
struct Grid {
  unsigned x, y, threads;
};

/* As kvb_copy_pieces does, but without copying its argument for each thread. */
[[maybe_unused]] void run_on_host(const Pieces& pieces, const Grid& grid) {
  gridDim = {grid.x, grid.y, 1};
  blockDim = {grid.threads, 1, 1};
  for (blockIdx.x = 0; blockIdx.x < grid.x && blockIdx.x < pieces.count; ++blockIdx.x)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (threadIdx.x = 0; threadIdx.x < grid.threads; ++threadIdx.x)
        copy_piece(pieces.list[blockIdx.x]);
}

}  // namespace

extern "C" {

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* seen, void* start, unsigned flags) {
  ENTER();
  NEED(flags == 0, kInvalidValue);
  NEED(is_current(), kInvalidContext);
  auto it = state().memory.find(reinterpret_cast<uintptr_t>(start));
  NEED(it != state().memory.end() && it->second.seen != 0, kInvalidValue);
  *seen = it->second.seen;
  return 0;
}

#ifndef WITHOUT_KERNELS

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  ENTER();
  NEED(is_current(), kInvalidContext);
  NEED(std::strstr(static_cast<const char*>(image), ".entry kvb_copy_pieces(") != nullptr,
       kInvalidImage);
  *module = new CUmod_st{t_current};
  state().modules.insert(*module);
  return 0;
}

CUresult cuModuleUnload(CUmodule module) {
  ENTER();
  NEED(is_current(), kInvalidContext);
  NEED(state().modules.count(module) != 0 && module->context == t_current, kInvalidHandle);
  state().modules.erase(module);
  delete module;
  return 0;
}

/* A function is known by its module. */
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  ENTER();
  NEED(is_current(), kInvalidContext);
  NEED(state().modules.count(module) != 0 && module->context == t_current, kInvalidHandle);
  NEED(std::strcmp(name, kName) == 0, kNotFound);
  *function = reinterpret_cast<CUfunction>(module);
  return 0;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream handle, void** arguments, void** extra) {
  ENTER();
  FIND_STREAM(handle);
  auto module = reinterpret_cast<CUmodule>(function);
  NEED(state().modules.count(module) != 0 && module->context == t_current, kInvalidHandle);
  NEED(grid_x >= 1 && grid_y >= 1 && grid_y <= 65535 && grid_z == 1, kInvalidValue);
  NEED(block_x >= 1 && block_x <= 1024 && block_y == 1 && block_z == 1, kInvalidValue);
  NEED(shared == 0 && arguments != nullptr && extra == nullptr, kInvalidValue);
  /* Arguments are read now. */
  auto pieces = *static_cast<const Pieces*>(arguments[0]);
  NEED(pieces.count <= sizeof pieces.list / sizeof *pieces.list, kInvalidValue);
  for (size_t i = 0; i < pieces.count; ++i) {
    auto& piece = pieces.list[i];
    const Allocation *target = nullptr, *source = nullptr;
    auto device = stream->context->device;
    char* out = bytes_seen(piece.to, piece.size, device, &target);
    char* in = bytes_seen(piece.from, piece.size, device, &source);
    /* A device would find out when the kernel runs, and tell the next who waits. */
    NEED(out != nullptr && in != nullptr, kIllegalAddress);
    /* Who reads too early reads this. */
    if (!target->of_device) std::memset(out, 0xDB, piece.size);
    /* Where the CPU reaches it is as far from an alignment. */
    piece.to = reinterpret_cast<uintptr_t>(out);
    piece.from = reinterpret_cast<uintptr_t>(in);
  }
  ++state().copies;
  push(stream, {}, [pieces, grid = Grid{grid_x, grid_y, block_x}, context = stream->context] {
    if (works(context)) run_on_host(pieces, grid);
    Lock lock(state().mutex);
    --state().copies;
  });
  return 0;
}

#endif

} /* extern "C" */
