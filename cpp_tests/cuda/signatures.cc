/* How each function of the driver is called, in lines that are the same whoever declares it:
 * NVIDIA's header, if this is compiled with REAL, or the stand-in's. */
#ifdef REAL
#define __CUDA_API_VERSION_INTERNAL /* each function under the name that it has in the library */
#include <cuda.h>
#include <cuda_runtime_api.h>
static_assert(CUDA_ERROR_INVALID_VALUE == 1 && CUDA_ERROR_OUT_OF_MEMORY == 2 &&
              CUDA_ERROR_NOT_INITIALIZED == 3 && CUDA_ERROR_NO_DEVICE == 100 &&
              CUDA_ERROR_INVALID_CONTEXT == 201 && CUDA_ERROR_INVALID_HANDLE == 400 &&
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED == 712 &&
              CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED == 713 && CUDA_ERROR_LAUNCH_FAILED == 719 &&
              CUDA_ERROR_NOT_SUPPORTED == 801 && CUDA_ERROR_UNKNOWN == 999);
static_assert(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED == 900 && CU_STREAM_CAPTURE_MODE_GLOBAL == 0 &&
              CU_STREAM_CAPTURE_MODE_RELAXED == 2 && CU_STREAM_CAPTURE_STATUS_NONE == 0 &&
              CU_STREAM_CAPTURE_STATUS_ACTIVE == 1);
static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_EVENT_BLOCKING_SYNC == 1 &&
              CU_EVENT_DISABLE_TIMING == 2 && CU_MEMHOSTREGISTER_PORTABLE == 1);
static_assert(CU_POINTER_ATTRIBUTE_MEMORY_TYPE == 2 && CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == 9 &&
              CU_MEMORYTYPE_HOST == 1 && CU_MEMORYTYPE_DEVICE == 2);
static_assert(CUDA_ERROR_INVALID_DEVICE == 101 && CUDA_ERROR_INVALID_IMAGE == 200 &&
              CUDA_ERROR_NOT_FOUND == 500 && CUDA_ERROR_ILLEGAL_ADDRESS == 700);
static_assert(cudaStreamNonBlocking == 1 && cudaEventDisableTiming == 2 && cudaMemcpyDefault == 4);
static_assert(CU_MEMHOSTREGISTER_DEVICEMAP == 2 && CU_MEMORYTYPE_UNIFIED == 4);
static_assert(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR == 11 &&
              CU_POINTER_ATTRIBUTE_RANGE_SIZE == 12 &&
              CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE == 15 &&
              CU_POINTER_ATTRIBUTE_MAPPING_SIZE == 18 &&
              CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR == 19);
static_assert(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED == 116 &&
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS == 117 &&
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING == 118 &&
              CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED == 124 &&
              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST == 1 &&
              CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER == 100 &&
              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX == 0 &&
              CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER == 100);
static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == 1 && CU_MEMCPY_SRC_ACCESS_ORDER_ANY == 3);
/* Fields of a copy in rows. */
#define SOURCE srcDevice
#define SOURCE_KIND srcMemoryType
#define SOURCE_PITCH srcPitch
#define TARGET dstDevice
#define TARGET_KIND dstMemoryType
#define TARGET_PITCH dstPitch
#define WIDTH WidthInBytes
#define HEIGHT Height
#else
#include "runtime.h"
#define SOURCE source
#define SOURCE_KIND source_kind
#define SOURCE_PITCH source_pitch
#define TARGET target
#define TARGET_KIND target_kind
#define TARGET_PITCH target_pitch
#define WIDTH width
#define HEIGHT height
using CUmemorytype = int;
#endif

#include <cstdio>
#include <type_traits>

namespace {

/* What the calling convention sees of a type. */
template <typename Type>
const char* seen() {
  if (std::is_pointer<Type>::value) return "pointer";
  static_assert(
      std::is_pointer<Type>::value || std::is_integral<Type>::value || std::is_enum<Type>::value,
      "another type is passed in another way");
  return sizeof(Type) == 4 ? "4 bytes" : sizeof(Type) == 8 ? "8 bytes" : "another size";
}

template <typename Answer, typename... Arguments>
void print(const char* name, Answer (*)(Arguments...)) {
  std::printf("%s %s(", seen<Answer>(), name);
  const char* list[] = {seen<Arguments>()..., ""};
  for (size_t i = 0; i < sizeof...(Arguments); ++i) std::printf(i == 0 ? "%s" : ", %s", list[i]);
  std::printf(")\n");
}

}  // namespace

int main() {
#define PRINT(function) print(#function, &function)
  PRINT(cuInit);
  PRINT(cuDriverGetVersion);
  PRINT(cuGetErrorName);
  PRINT(cuDeviceGetCount);
  PRINT(cuDeviceGet);
  PRINT(cuDeviceGetName);
  PRINT(cuDevicePrimaryCtxRetain);
  PRINT(cuDevicePrimaryCtxRelease_v2);
  PRINT(cuCtxCreate_v2);
  PRINT(cuCtxDestroy_v2);
  PRINT(cuCtxGetCurrent);
  PRINT(cuCtxSetCurrent);
  PRINT(cuCtxGetDevice);
  PRINT(cuCtxSynchronize);
  PRINT(cuStreamCreate);
  PRINT(cuStreamDestroy_v2);
  PRINT(cuStreamWaitEvent);
  PRINT(cuStreamSynchronize);
  PRINT(cuStreamIsCapturing);
  PRINT(cuThreadExchangeStreamCaptureMode);
  PRINT(cuEventCreate);
  PRINT(cuEventDestroy_v2);
  PRINT(cuEventRecord);
  PRINT(cuEventSynchronize);
  PRINT(cuMemAlloc_v2);
  PRINT(cuMemFree_v2);
  PRINT(cuMemHostRegister_v2);
  PRINT(cuMemHostUnregister);
  PRINT(cuMemHostGetDevicePointer_v2);
  PRINT(cuPointerGetAttribute);
  PRINT(cuMemGetAddressRange_v2);
  PRINT(cuDeviceGetAttribute);
  PRINT(cuFlushGPUDirectRDMAWrites);
  PRINT(cuMemcpyAsync);
  PRINT(cuMemsetD8Async);
  PRINT(cuMemcpy2DAsync_v2);
  PRINT(cuMemcpyBatchAsync);
#if !defined(REAL) || CUDA_VERSION >= 13000
  PRINT(cuMemcpyBatchAsync_v2);
#endif
  PRINT(cuLaunchHostFunc);
  PRINT(cuModuleLoadData);
  PRINT(cuModuleUnload);
  PRINT(cuModuleGetFunction);
  PRINT(cuLaunchKernel);
  PRINT(cudaGetDeviceCount);
  PRINT(cudaSetDevice);
  PRINT(cudaGetDevice);
  PRINT(cudaDeviceSynchronize);
  PRINT(cudaStreamCreateWithFlags);
  PRINT(cudaStreamDestroy);
  PRINT(cudaStreamSynchronize);
  PRINT(cudaEventCreateWithFlags);
  PRINT(cudaEventDestroy);
  PRINT(cudaEventRecord);
  PRINT(cudaEventSynchronize);
  PRINT(cudaMalloc);
  PRINT(cudaFree);
  PRINT(cudaHostRegister);
  PRINT(cudaHostUnregister);
  PRINT(cudaMemcpyAsync);
  PRINT(cudaMemsetAsync);
  std::printf("attributes of a batch: %zu bytes\n", sizeof(CUmemcpyAttributes));
  CUDA_MEMCPY2D rows{};
  rows.SOURCE = 1;
  rows.TARGET = 2;
  rows.WIDTH = 3;
  rows.HEIGHT = 4;
  rows.SOURCE_KIND = rows.TARGET_KIND = CUmemorytype(4);
  rows.SOURCE_PITCH = 5;
  rows.TARGET_PITCH = 6;
  std::printf("a copy in rows:");
  for (size_t i = 0; i < sizeof rows; ++i)
    std::printf(" %d", reinterpret_cast<const unsigned char*>(&rows)[i]);
  std::printf("\n");
}
