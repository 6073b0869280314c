/* A stand-in of the CUDA driver for machines without one: what it declares of the driver, for hosts
 * in tests, and what a test makes of it.
 *
 * Streams are threads with queues; work happens late and in the stream's order. Device memory is
 * not mapped where its addresses point, so that the CPU faults there. Contexts are looked at in
 * every call, more strictly than the driver does. It says nothing about speed, nor about a real
 * device.
 *
 * The declarations are written from the driver's documented ABI, without its header: handles are
 * pointers, and results are the constants' numbers. signatures.cc compares them with the header. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_STAND_IN_H
#define KVBRIDGE_CPP_TESTS_CUDA_STAND_IN_H

#include <cstddef>
#include <cstdint>

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;

struct CUmemLocation {
  int type;
  int id;
};

struct CUmemcpyAttributes {
  int source_access_order;
  CUmemLocation source_hint;
  CUmemLocation destination_hint;
  unsigned flags;
};
static_assert(sizeof(CUmemcpyAttributes) == 24, "as documented");

struct CUDA_MEMCPY2D {
  size_t source_x;
  size_t source_y;
  int source_kind;
  const void* source_host;
  CUdeviceptr source;
  void* source_array;
  size_t source_pitch;
  size_t target_x;
  size_t target_y;
  int target_kind;
  void* target_host;
  CUdeviceptr target;
  void* target_array;
  size_t target_pitch;
  size_t width;
  size_t height;
};
static_assert(sizeof(CUDA_MEMCPY2D) == 128, "as documented");

extern "C" {

/* ---- the driver ---- */

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int* version);
CUresult cuGetErrorName(CUresult code, const char** name);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDeviceGetName(char* name, int size, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetDevice(CUdevice* device);
CUresult cuCtxSynchronize(void);
CUresult cuStreamCreate(CUstream* stream, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamIsCapturing(CUstream stream, int* status);
CUresult cuThreadExchangeStreamCaptureMode(int* mode);
CUresult cuEventCreate(CUevent* event, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuEventSynchronize(CUevent event);
CUresult cuMemAlloc_v2(CUdeviceptr* start, size_t size);
CUresult cuMemFree_v2(CUdeviceptr start);
CUresult cuMemHostRegister_v2(void* start, size_t size, unsigned flags);
CUresult cuMemHostUnregister(void* start);
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* seen, void* start, unsigned flags);
CUresult cuPointerGetAttribute(void* out, unsigned attribute, CUdeviceptr address);
CUresult cuMemGetAddressRange_v2(CUdeviceptr* start, size_t* size, CUdeviceptr address);
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope);
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* rows, CUstream stream);
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                            size_t* failed, CUstream stream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* firsts,
                               size_t attribute_count, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t size, CUstream stream);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void*), void* argument);
CUresult cuModuleLoadData(CUmodule* module, const void* image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void** arguments, void** extra);

/* ---- what a test does ---- */

/* A context of device 0 or 1, and its end. Not a primary one. */
CUcontext stand_in_context(int device);
void stand_in_destroy_context(CUcontext context);

/* A reservation of addresses on the current context's device, mapped from its start to its end in
 * pieces of `mapping` bytes. Freed by cuMemFree_v2; a driver would do both by other functions. */
CUdeviceptr stand_in_reserve(size_t size, size_t mapping);
/* The driver does not know this attribute of pointers. */
void stand_in_hide_attribute(unsigned attribute, int on);
/* What a device says of itself, beside cuDeviceGetAttribute's first answers. */
void stand_in_set_attribute(int attribute, int value);

/* Bytes of device memory, read and written at once, whatever streams do. Another range than one of
 * an allocation ends the process. */
void stand_in_read(void* to, CUdeviceptr from, size_t size);
void stand_in_write(CUdeviceptr to, const void* from, size_t size);
/* Where the CPU reaches the bytes, for code that stands for a kernel's. */
void* stand_in_bytes(CUdeviceptr address, size_t size);

/* The stream does nothing while it is held. */
void stand_in_hold(CUstream stream, int on);
/* Streams do something only while somebody waits in the driver: what is not waited for never
 * happens, rather than nearly always. */
void stand_in_lazy(int on);

/* A graph is made of the stream's work from now on, or no more. It is spoilt by every other call on
 * the stream than the question whether that is so, and by a call of any thread that waits, pins or
 * allocates, unless the thread's mode is 2. */
void stand_in_capture(CUstream stream, int on);
/* Whether that has happened since it began. */
int stand_in_is_capture_spoilt(CUstream stream);
/* The calling thread's mode: 0, global, unless it was exchanged. */
int stand_in_capture_mode(void);

/* The nth call of the function from now on fails with `code` and does nothing; nth 0: every one.
 * Function "": of any that is counted. Code 0: nothing fails any more. */
void stand_in_fail(const char* function, long nth, int code);
/* The nth call from now on of any function that asks for the work of a context loses that context:
 * it, all later ones in it and those that wait there answer `code`, but for calls that give
 * something back. Copies that were queued end and do nothing. nth 1: the next. Code 0: not any
 * more; contexts stay lost. */
void stand_in_lose(long nth, int code);
/* The function answers 0 and does nothing. */
void stand_in_skip(const char* function, int on);
/* Calls of this thread neither fail, are left out nor are counted: they are the engine's own. */
void stand_in_exempt(int on);
/* Calls since the last reset, without cuGetErrorName. Function "": of all. */
long stand_in_calls(const char* function);
/* The function that failed last since then, or "". */
const char* stand_in_failed(void);
/* One call of a function: not of an exempt thread, nor of cuGetErrorName. */
struct StandInCall {
  const char* function;
  /* Of the context that was current, -1 without one. */
  int device;
  /* Equal for calls of one thread. */
  uintptr_t thread;
};
/* Calls since the last reset, in their order; answers how many there are, and copies what there is
 * room for. */
size_t stand_in_log(StandInCall* out, size_t room);
/* Ends failures and skips, and counts from 0. */
void stand_in_reset(void);
/* How many threads wait in this function. */
long stand_in_waiting(const char* function);

/* Copies that are queued or running; a kernel that copies counts as one. */
long stand_in_copies_in_flight(void);
/* Streams, events, modules, allocations and registrations that are alive. */
long stand_in_alive(void);

/* What cuDriverGetVersion answers; 13000 unless it is set. */
void stand_in_set_version(int version);

} /* extern "C" */

#endif
