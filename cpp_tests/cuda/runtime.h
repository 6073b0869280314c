/* A stand-in of the few functions of the CUDA runtime that a host in tests calls, on top of the
 * driver's stand-in. As in the runtime, a stream or an event is the driver's own, and a thread
 * works in the primary context of its device. The declarations are written from the documented ABI;
 * signatures.cc compares them with NVIDIA's header. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_RUNTIME_H
#define KVBRIDGE_CPP_TESTS_CUDA_RUNTIME_H

#include "stand_in.h"

using cudaError_t = int;
using cudaStream_t = CUstream;
using cudaEvent_t = CUevent;
using cudaMemcpyKind = int;

constexpr unsigned cudaStreamNonBlocking = 1;
constexpr unsigned cudaEventDisableTiming = 2;
constexpr cudaMemcpyKind cudaMemcpyDefault = 4;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaMalloc(void** start, size_t size);
cudaError_t cudaFree(void* start);
cudaError_t cudaHostRegister(void* start, size_t size, unsigned flags);
cudaError_t cudaHostUnregister(void* start);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* start, int value, size_t size, cudaStream_t stream);

} /* extern "C" */

#endif
