/* How each function of the stand-in begins, and what several of them ask. */
#ifndef KVBRIDGE_CPP_TESTS_CUDA_CALL_H
#define KVBRIDGE_CPP_TESTS_CUDA_CALL_H

#include "work.h"

namespace stand_in {

constexpr CUresult kInvalidValue = 1;
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kNotInitialized = 3;
constexpr CUresult kInvalidDevice = 101;
constexpr CUresult kInvalidImage = 200;
constexpr CUresult kInvalidContext = 201;
constexpr CUresult kInvalidHandle = 400;
constexpr CUresult kNotFound = 500;
constexpr CUresult kIllegalAddress = 700;
constexpr CUresult kNotSupported = 801;
constexpr CUresult kCaptured = 900;

/* How many devices this machine has. */
constexpr int kDevices = 2;

/* What captures of others forbid, as far as it is used here. */
inline const std::set<std::string> kUnsafe = {"cuEventSynchronize",  "cuStreamSynchronize",
                                              "cuCtxSynchronize",    "cuMemHostRegister_v2",
                                              "cuMemHostUnregister", "cuMemAlloc_v2"};

/* What does not ask for the context's work, and what gives back: strict drivers refuse the latter
 * with a lost context too; here it goes through, so that what is not given back is seen. */
inline const std::set<std::string> kSparedByLoss = {
    "cuInit",          "cuDriverGetVersion",  "cuCtxGetCurrent",
    "cuCtxSetCurrent", "cuCtxGetDevice",      "cuThreadExchangeStreamCaptureMode",
    "cuMemFree_v2",    "cuStreamDestroy_v2",  "cuEventDestroy_v2",
    "cuModuleUnload",  "cuMemHostUnregister", "cuDeviceGetAttribute"};

inline thread_local CUcontext t_current = nullptr;
/* Its address stands for the thread. */
inline thread_local char t_thread = 0;

/* A call of a function: counted, and made to fail or to do nothing where a test says so. */
struct Call {
  Call(const char* function, bool needs_start) : lock(state().mutex) {
    auto& all = state();
    if (t_is_exempt) {
      runs = true;
      return;
    }
    ++all.calls[function];
    auto device = all.contexts.count(t_current) != 0 ? t_current->device : -1;
    all.log.push_back({function, device, reinterpret_cast<uintptr_t>(&t_thread)});
    auto& failure = all.failure;
    if (failure.code != 0 && (failure.function.empty() || failure.function == function)) {
      ++failure.seen;
      if (failure.nth == 0 || failure.nth == failure.seen) {
        answer = failure.code;
        all.failed = function;
        return;
      }
    }
    if (needs_start && !all.is_started) {
      answer = kNotInitialized;
      return;
    }
    if ((answer = loss(function)) != 0) {
      all.failed = function;
      return;
    }
    if (all.skipped.count(function) != 0) return;
    if (t_capture_mode != 2 && kUnsafe.count(function) != 0 && spoil_captures()) {
      answer = kCaptured;
      return;
    }
    runs = true;
  }
  /* What a lost context answers, or one that is lost with this call. */
  static CUresult loss(const char* function) {
    auto& all = state();
    if (all.contexts.count(t_current) == 0 || kSparedByLoss.count(function) != 0) return 0;
    if (all.loss != 0 && t_current->lost == 0 && --all.until_loss <= 0) {
      t_current->lost = all.loss;
      all.loss = 0;
      all.changed.notify_all();
    }
    return t_current->lost;
  }
  /* Whether there are any. */
  static bool spoil_captures() {
    bool some = false;
    for (auto stream : state().streams) {
      stream->is_spoilt |= stream->captures;
      some |= stream->captures;
    }
    return some;
  }
  Lock lock;
  CUresult answer = 0;
  bool runs = false;
};

#define ENTER_ANY(needs_start)                \
  stand_in::Call call(__func__, needs_start); \
  if (!call.runs) return call.answer
#define ENTER() ENTER_ANY(true)

#define NEED(condition, code) \
  if (!(condition)) return code

/* The functions from here on run under the lock. */

inline bool is_current() { return state().contexts.count(t_current) != 0; }

/* The stream that a handle means, which must be of the current context. */
inline CUresult find_stream(CUstream handle, CUstream* stream) {
  NEED(is_current(), kInvalidContext);
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    if (t_current->legacy == nullptr) t_current->legacy = open_stream(t_current, false);
    *stream = t_current->legacy;
    return 0;
  }
  NEED(state().streams.count(handle) != 0, kInvalidHandle);
  NEED(handle->context == t_current, kInvalidHandle);
  *stream = handle;
  handle->is_spoilt |= handle->captures;
  NEED(!handle->captures, kCaptured);
  return 0;
}

#define FIND_STREAM(handle)  \
  CUstream stream = nullptr; \
  if (CUresult wrong = stand_in::find_stream(handle, &stream)) return wrong

}  // namespace stand_in

#endif
