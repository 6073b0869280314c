/* See runtime.h. Codes are those of the driver, which the runtime shares for the errors that matter
 * here. */
#include "runtime.h"

namespace {

thread_local int t_device = 0;

/* Makes the primary context of the thread's device current. It is kept as long as the process. */
CUresult enter() {
  static CUcontext primary[2] = {nullptr, nullptr};
  if (CUresult wrong = cuInit(0)) return wrong;
  auto& context = primary[t_device];
  if (context == nullptr)
    if (CUresult wrong = cuDevicePrimaryCtxRetain(&context, t_device)) return wrong;
  return cuCtxSetCurrent(context);
}

CUdeviceptr address(const void* start) { return reinterpret_cast<uintptr_t>(start); }

}  // namespace

/* What the driver answers, asked in the primary context. */
#define IN_PRIMARY(call)                        \
  do {                                          \
    if (CUresult wrong = enter()) return wrong; \
    return call;                                \
  } while (false)

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { IN_PRIMARY(cuDeviceGetCount(count)); }

cudaError_t cudaSetDevice(int device) {
  CUdevice found = 0;
  if (CUresult wrong = cuInit(0)) return wrong;
  if (CUresult wrong = cuDeviceGet(&found, device)) return wrong;
  t_device = device;
  return enter();
}

cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return 0;
}

cudaError_t cudaDeviceSynchronize() { IN_PRIMARY(cuCtxSynchronize()); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  IN_PRIMARY(cuStreamCreate(stream, flags));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { IN_PRIMARY(cuStreamDestroy_v2(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { IN_PRIMARY(cuStreamSynchronize(stream)); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  IN_PRIMARY(cuEventCreate(event, flags));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { IN_PRIMARY(cuEventDestroy_v2(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  IN_PRIMARY(cuEventRecord(event, stream));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { IN_PRIMARY(cuEventSynchronize(event)); }

cudaError_t cudaMalloc(void** start, size_t size) {
  CUdeviceptr found = 0;
  if (CUresult wrong = enter()) return wrong;
  if (CUresult wrong = cuMemAlloc_v2(&found, size)) return wrong;
  *start = reinterpret_cast<void*>(static_cast<uintptr_t>(found));
  return 0;
}
cudaError_t cudaFree(void* start) {
  if (CUresult wrong = enter()) return wrong;
  return start == nullptr ? 0 : cuMemFree_v2(address(start));
}
cudaError_t cudaHostRegister(void* start, size_t size, unsigned flags) {
  IN_PRIMARY(cuMemHostRegister_v2(start, size, flags));
}
cudaError_t cudaHostUnregister(void* start) { IN_PRIMARY(cuMemHostUnregister(start)); }

/* Of whatever kind: addresses say it. */
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  IN_PRIMARY(cuMemcpyAsync(address(to), address(from), size, stream));
}
cudaError_t cudaMemsetAsync(void* start, int value, size_t size, cudaStream_t stream) {
  IN_PRIMARY(cuMemsetD8Async(address(start), static_cast<unsigned char>(value), size, stream));
}

} /* extern "C" */
