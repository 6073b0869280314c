/* The driver's functions, as the library that the loader finds has them: a program that is linked
 * with this starts, and can list its tests, on machines without a driver. */
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "../cuda/stand_in.h"

namespace {

template <typename Function>
Function* find(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) throw std::runtime_error("libcuda.so.1 cannot be loaded");
  auto found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace

/* The body of a function of the driver. */
#define FORWARD(name, ...)                                    \
  {                                                           \
    static const auto function = find<decltype(name)>(#name); \
    return function(__VA_ARGS__);                             \
  }

extern "C" {

CUresult cuInit(unsigned flags) FORWARD(cuInit, flags) CUresult cuDeviceGetCount(int* count)
    FORWARD(cuDeviceGetCount, count) CUresult cuDeviceGet(CUdevice* device, int ordinal)
        FORWARD(cuDeviceGet, device, ordinal) CUresult
    cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device)
        FORWARD(cuDevicePrimaryCtxRetain, context, device) CUresult
    cuDevicePrimaryCtxRelease_v2(CUdevice device)
        FORWARD(cuDevicePrimaryCtxRelease_v2, device) CUresult
    cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device)
        FORWARD(cuCtxCreate_v2, context, flags, device) CUresult cuCtxDestroy_v2(CUcontext context)
            FORWARD(cuCtxDestroy_v2, context) CUresult cuCtxGetCurrent(CUcontext* context)
                FORWARD(cuCtxGetCurrent, context) CUresult cuCtxSetCurrent(CUcontext context)
                    FORWARD(cuCtxSetCurrent, context) CUresult
    cuStreamCreate(CUstream* stream, unsigned flags) FORWARD(cuStreamCreate, stream, flags) CUresult
    cuStreamDestroy_v2(CUstream stream) FORWARD(cuStreamDestroy_v2, stream) CUresult
    cuStreamSynchronize(CUstream stream) FORWARD(cuStreamSynchronize, stream) CUresult
    cuEventCreate(CUevent* event, unsigned flags) FORWARD(cuEventCreate, event, flags) CUresult
    cuEventDestroy_v2(CUevent event) FORWARD(cuEventDestroy_v2, event) CUresult
    cuEventRecord(CUevent event, CUstream stream) FORWARD(cuEventRecord, event, stream) CUresult
    cuMemAlloc_v2(CUdeviceptr* start, size_t size) FORWARD(cuMemAlloc_v2, start, size) CUresult
    cuMemFree_v2(CUdeviceptr start) FORWARD(cuMemFree_v2, start) CUresult
    cuMemHostRegister_v2(void* start, size_t size, unsigned flags)
        FORWARD(cuMemHostRegister_v2, start, size, flags) CUresult cuMemHostUnregister(void* start)
            FORWARD(cuMemHostUnregister, start) CUresult
    cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
        FORWARD(cuMemcpyAsync, to, from, size, stream) CUresult
    cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t size, CUstream stream)
        FORWARD(cuMemsetD8Async, start, value, size, stream) CUresult
    cuLaunchHostFunc(CUstream stream, void (*work)(void*), void* argument)
        FORWARD(cuLaunchHostFunc, stream, work, argument)

} /* extern "C" */
