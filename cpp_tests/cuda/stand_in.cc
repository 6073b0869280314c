/* The functions of the driver. See stand_in.h; those of tests are in controls.cc.
 *
 * The driver's work on kernels is in kernels.cc, on devices in devices.cc.
 *
 * Variants, by definitions of the compiler: WITHOUT_BATCH_V2 and WITHOUT_BATCH are older drivers,
 * WITHOUT_KERNELS lacks what ours needs, WITHOUT_2D copies in rows, WITHOUT_EVENTS is none that
 * anybody could use. */
#include "stand_in.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "call.h"

using namespace stand_in;

namespace {

const std::map<CUresult, const char*> kNames = {
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
    {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

CUresult find_event(CUevent event) {
  NEED(is_current(), kInvalidContext);
  NEED(state().events.count(event) != 0, kInvalidHandle);
  NEED(event->context == t_current, kInvalidHandle);
  return 0;
}

/* Twice: where its address points nothing can be read or written, and the bytes are elsewhere. */
CUresult allocate(CUdeviceptr* start, size_t size, size_t mapping) {
  NEED(size > 0, kInvalidValue);
  NEED(is_current(), kInvalidContext);
  int file = memfd_create("stand-in", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(pages(size))) != 0) return kOutOfMemory;
  void* address = mmap(nullptr, pages(size), PROT_NONE, MAP_SHARED, file, 0);
  void* bytes = mmap(nullptr, pages(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (address == MAP_FAILED || bytes == MAP_FAILED) return kOutOfMemory;
  auto number = reinterpret_cast<uintptr_t>(address);
  state().memory[number] = {size,   static_cast<char*>(bytes), true, t_current->device, file, 0,
                            mapping};
  *start = number;
  return 0;
}

/* Until the work is past, or the current context lost. */
CUresult wait_in_context(Call& call, const char* function, const stand_in::Mark& mark) {
  auto is_lost = [context = t_current] {
    return !stand_in::t_is_exempt && state().contexts.count(context) != 0 && context->lost != 0;
  };
  stand_in::wait(call.lock, function, [&] { return mark.is_past() || is_lost(); });
  return is_lost() ? t_current->lost : 0;
}

/* Queues a copy. Its memory is of the stream's device, or registered memory of the host: stricter
 * than the driver, which takes any. */
CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  const Allocation *target = nullptr, *source = nullptr;
  char* out = bytes_of(to, size, &target);
  char* in = bytes_of(from, size, &source);
  NEED(out != nullptr && in != nullptr, kInvalidValue);
  for (auto memory : {target, source})
    NEED(!memory->of_device || memory->device == stream->context->device, kInvalidValue);
  /* Who reads too early reads this. */
  if (!target->of_device) std::memset(out, 0xDB, size);
  ++state().copies;
  stand_in::push(stream, {}, [=, context = stream->context] {
    if (stand_in::works(context)) std::memcpy(out, in, size);
    Lock lock(state().mutex);
    --state().copies;
  });
  return 0;
}

/* Rows of a copy; their ends lie in one allocation each. */
[[maybe_unused]] CUresult copy_rows(const CUDA_MEMCPY2D& rows, CUstream stream) {
  constexpr int kUnified = 4;
  NEED(rows.source_kind == kUnified && rows.target_kind == kUnified, kNotSupported);
  NEED(rows.source_x == 0 && rows.source_y == 0 && rows.target_x == 0 && rows.target_y == 0,
       kNotSupported);
  NEED(rows.width > 0 && rows.height > 0, kInvalidValue);
  for (size_t pitch : {rows.source_pitch, rows.target_pitch})
    NEED(pitch >= rows.width && pitch <= INT32_MAX, kInvalidValue);
  const Allocation* memory = nullptr;
  auto last = rows.height - 1;
  NEED(bytes_of(rows.source, last * rows.source_pitch + rows.width, &memory), kInvalidValue);
  NEED(bytes_of(rows.target, last * rows.target_pitch + rows.width, &memory), kInvalidValue);
  for (size_t row = rows.height; row-- > 0;)
    if (auto wrong = copy(rows.target + row * rows.target_pitch,
                          rows.source + row * rows.source_pitch, rows.width, stream))
      return wrong;
  return 0;
}

[[maybe_unused]] CUresult batch(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                                CUmemcpyAttributes* attributes, size_t* firsts,
                                size_t attribute_count, size_t* failed, CUstream handle) {
  NEED(reinterpret_cast<uintptr_t>(handle) > 1, kInvalidValue);
  FIND_STREAM(handle);
  NEED(to && from && sizes && count > 0 && attributes && firsts, kInvalidValue);
  NEED(attribute_count > 0 && attribute_count <= count && firsts[0] == 0, kInvalidValue);
  for (size_t i = 0; i < attribute_count; ++i) {
    NEED(attributes[i].source_access_order >= 1 && attributes[i].source_access_order <= 3,
         kInvalidValue);
    NEED(i == 0 || (firsts[i] > firsts[i - 1] && firsts[i] < count), kInvalidValue);
  }
  /* Unordered: the last one first. */
  for (size_t i = count; i-- > 0;) {
    if (CUresult wrong = copy(to[i], from[i], sizes[i], stream)) {
      if (failed != nullptr) *failed = i;
      return wrong;
    }
  }
  return 0;
}

}  // namespace

extern "C" {

/* ---- the driver and its contexts ---- */

CUresult cuInit(unsigned flags) {
  ENTER_ANY(false);
  NEED(flags == 0, kInvalidValue);
  state().is_started = true;
  return 0;
}

CUresult cuDriverGetVersion(int* version) {
  ENTER_ANY(false);
  *version = state().version;
  return 0;
}

CUresult cuGetErrorName(CUresult code, const char** name) {
  auto it = kNames.find(code);
  *name = it == kNames.end() ? nullptr : it->second;
  return it == kNames.end() ? kInvalidValue : 0;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  ENTER();
  *context = t_current;
  return 0;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER();
  NEED(context == nullptr || state().contexts.count(context) != 0, kInvalidContext);
  t_current = context;
  return 0;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  ENTER();
  NEED(is_current(), kInvalidContext);
  *device = t_current->device;
  return 0;
}

CUresult cuCtxSynchronize() {
  ENTER();
  NEED(is_current(), kInvalidContext);
  Mark all;
  for (auto stream : state().streams)
    if (stream->context == t_current) all.add(stream->queue->progress);
  if (t_current->legacy != nullptr) all.add(t_current->legacy->queue->progress);
  return wait_in_context(call, __func__, all);
}

/* ---- streams and events ---- */

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  ENTER();
  NEED(flags <= 1, kInvalidValue);
  NEED(is_current(), kInvalidContext);
  *stream = stand_in::open_stream(t_current, flags == 0);
  state().streams.insert(*stream);
  return 0;
}

/* Work that it has goes on. */
CUresult cuStreamDestroy_v2(CUstream handle) {
  ENTER();
  NEED(reinterpret_cast<uintptr_t>(handle) > 2, kInvalidHandle);
  FIND_STREAM(handle);
  state().streams.erase(stream);
  stream->queue->ended = true;
  state().changed.notify_all();
  delete stream;
  return 0;
}

CUresult cuStreamSynchronize(CUstream handle) {
  ENTER();
  FIND_STREAM(handle);
  Mark end;
  end.add(stream->queue->progress);
  return wait_in_context(call, __func__, end);
}

CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  ENTER();
  auto is_own = state().streams.count(handle) != 0 && handle->captures;
  *status = is_own ? 1 : 0;
  if (is_own) return 0;
  FIND_STREAM(handle);
  return 0;
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  ENTER();
  NEED(*mode >= 0 && *mode <= 2, kInvalidValue);
  std::swap(*mode, t_capture_mode);
  return 0;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  ENTER();
  NEED(flags <= 3, kInvalidValue);
  NEED(is_current(), kInvalidContext);
  *event = new CUevent_st{t_current, {}};
  state().events.insert(*event);
  return 0;
}

CUresult cuEventDestroy_v2(CUevent event) {
  ENTER();
  if (CUresult wrong = find_event(event)) return wrong;
  state().events.erase(event);
  delete event;
  return 0;
}

#ifndef WITHOUT_EVENTS
CUresult cuEventRecord(CUevent event, CUstream handle) {
  ENTER();
  if (CUresult wrong = find_event(event)) return wrong;
  FIND_STREAM(handle);
  stand_in::push(stream, {}, nullptr);
  event->recorded = {};
  event->recorded.add(stream->queue->progress);
  return 0;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  ENTER();
  NEED(flags == 0, kInvalidValue);
  if (CUresult wrong = find_event(event)) return wrong;
  FIND_STREAM(handle);
  stand_in::push(stream, event->recorded, nullptr);
  return 0;
}
#endif

CUresult cuEventSynchronize(CUevent event) {
  ENTER();
  if (CUresult wrong = find_event(event)) return wrong;
  Mark recorded = event->recorded;
  return wait_in_context(call, __func__, recorded);
}

/* ---- memory ---- */

CUresult cuMemAlloc_v2(CUdeviceptr* start, size_t size) {
  ENTER();
  return allocate(start, size, 0);
}

CUdeviceptr stand_in_reserve(size_t size, size_t mapping) {
  Lock lock(state().mutex);
  CUdeviceptr start = 0;
  return allocate(&start, size, mapping) == 0 ? start : 0;
}

CUresult cuMemFree_v2(CUdeviceptr start) {
  ENTER();
  auto it = state().memory.find(start);
  NEED(it != state().memory.end() && it->second.of_device, kInvalidValue);
  munmap(reinterpret_cast<void*>(it->first), pages(it->second.size));
  munmap(it->second.bytes, pages(it->second.size));
  close(it->second.file);
  state().memory.erase(it);
  return 0;
}
CUresult cuMemHostRegister_v2(void* start, size_t size, unsigned flags) {
  ENTER();
  NEED(start != nullptr && size > 0 && flags <= 3, kInvalidValue);
  NEED(is_current(), kInvalidContext);
  auto number = reinterpret_cast<uintptr_t>(start);
  uintptr_t found = 0;
  NEED(find_memory(number, &found) == nullptr, 712);
  uintptr_t seen = 0;
  if ((flags & 2) != 0) {
    /* A device may see it elsewhere than the host does, so here it does. */
    void* elsewhere = mmap(nullptr, pages(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (elsewhere == MAP_FAILED) return kOutOfMemory;
    seen = reinterpret_cast<uintptr_t>(elsewhere);
    state().seen[seen] = number;
  }
  state().memory[number] = {size, static_cast<char*>(start), false, -1, -1};
  state().memory[number].seen = seen;
  return 0;
}

CUresult cuMemHostUnregister(void* start) {
  ENTER();
  NEED(is_current(), kInvalidContext);
  auto it = state().memory.find(reinterpret_cast<uintptr_t>(start));
  NEED(it != state().memory.end() && !it->second.of_device, 713);
  if (auto seen = it->second.seen) {
    munmap(reinterpret_cast<void*>(seen), pages(it->second.size));
    state().seen.erase(seen);
  }
  state().memory.erase(it);
  return 0;
}

CUresult cuPointerGetAttribute(void* out, unsigned attribute, CUdeviceptr address) {
  ENTER();
  uintptr_t start = 0;
  auto memory = find_memory(address, &start);
  NEED(memory != nullptr, kInvalidValue);
  NEED(state().hidden.count(attribute) == 0, kNotSupported);
  /* The mapping that holds the address. */
  auto size = memory->mapping == 0 ? memory->size : memory->mapping;
  size_t into = memory->mapping == 0 ? 0 : (address - start) / size * size;
  switch (attribute) {
    case 2: /* the kind of memory: 1 the host's, 2 a device's */
      *static_cast<unsigned*>(out) = memory->of_device ? 2 : 1;
      return 0;
    case 9: /* the device's number */
      *static_cast<int*>(out) = memory->device;
      return 0;
    case 11: /* start and size of the reservation */
      *static_cast<CUdeviceptr*>(out) = start;
      return 0;
    case 12:
      *static_cast<size_t*>(out) = memory->size;
      return 0;
    case 15: /* whether network adapters can reach it */
      *static_cast<unsigned*>(out) = memory->of_device ? 1 : 0;
      return 0;
    case 18: /* size and start of the mapping */
      *static_cast<size_t*>(out) = std::min(size, memory->size - into);
      return 0;
    case 19:
      *static_cast<CUdeviceptr*>(out) = start + into;
      return 0;
    default:
      return kNotSupported;
  }
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* start, size_t* size, CUdeviceptr address) {
  ENTER();
  uintptr_t found = 0;
  auto memory = find_memory(address, &found);
  NEED(memory != nullptr && memory->of_device, kInvalidValue);
  *start = found;
  *size = memory->size;
  return 0;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  ENTER();
  NEED(device == 0 || device == 1, 101);
  auto known = state().attributes.find(attribute);
  NEED(known != state().attributes.end(), kInvalidValue);
  *value = known->second;
  return 0;
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
  ENTER();
  NEED(target == 0 && (scope == 100 || scope == 200), kInvalidValue);
  NEED(is_current(), kInvalidContext);
  return 0;
}

/* ---- work ---- */

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream handle) {
  ENTER();
  FIND_STREAM(handle);
  return copy(to, from, size, stream);
}

#ifndef WITHOUT_2D
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* rows, CUstream handle) {
  ENTER();
  NEED(rows != nullptr, kInvalidValue);
  FIND_STREAM(handle);
  return copy_rows(*rows, stream);
}
#endif

CUresult cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t size, CUstream handle) {
  ENTER();
  FIND_STREAM(handle);
  const Allocation* memory = nullptr;
  char* bytes = bytes_of(start, size, &memory);
  NEED(bytes != nullptr && memory->of_device, kInvalidValue);
  stand_in::push(stream, {}, [=] { std::memset(bytes, value, size); });
  return 0;
}

CUresult cuLaunchHostFunc(CUstream handle, void (*function)(void*), void* argument) {
  ENTER();
  FIND_STREAM(handle);
  NEED(function != nullptr, kInvalidValue);
  stand_in::push(stream, {}, [=] { function(argument); });
  return 0;
}

#ifndef WITHOUT_BATCH_V2
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attributes, size_t* firsts,
                               size_t attribute_count, CUstream stream) {
  ENTER();
  return batch(to, from, sizes, count, attributes, firsts, attribute_count, nullptr, stream);
}
#endif

#ifndef WITHOUT_BATCH
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* firsts, size_t attribute_count,
                            size_t* failed, CUstream stream) {
  ENTER();
  return batch(to, from, sizes, count, attributes, firsts, attribute_count, failed, stream);
}
#endif

} /* extern "C" */
