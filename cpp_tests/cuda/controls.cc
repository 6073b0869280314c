/* What tests do with the stand-in. See stand_in.h. */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "stand_in.h"
#include "work.h"

using stand_in::Allocation;
using stand_in::Lock;
using stand_in::state;

extern "C" {

CUcontext stand_in_context(int device) {
  Lock lock(state().mutex);
  auto context = new CUctx_st{device, nullptr};
  state().contexts.insert(context);
  return context;
}

void stand_in_destroy_context(CUcontext context) {
  Lock lock(state().mutex);
  stand_in::close_context(context);
}

static char* device_bytes(CUdeviceptr address, size_t size) {
  const Allocation* memory = nullptr;
  char* bytes = stand_in::bytes_of(address, size, &memory);
  if (bytes == nullptr || !memory->of_device) {
    std::fprintf(stderr, "stand-in: %zu bytes at %#llx are no device memory\n", size, address);
    std::abort();
  }
  return bytes;
}

void stand_in_read(void* to, CUdeviceptr from, size_t size) {
  Lock lock(state().mutex);
  std::memcpy(to, device_bytes(from, size), size);
}

void stand_in_write(CUdeviceptr to, const void* from, size_t size) {
  Lock lock(state().mutex);
  std::memcpy(device_bytes(to, size), from, size);
}

void* stand_in_bytes(CUdeviceptr address, size_t size) {
  Lock lock(state().mutex);
  return device_bytes(address, size);
}

void stand_in_hold(CUstream stream, int on) {
  Lock lock(state().mutex);
  stream->queue->held = on != 0;
  state().changed.notify_all();
}

void stand_in_capture(CUstream stream, int on) {
  Lock lock(state().mutex);
  stream->captures = on != 0;
  stream->is_spoilt = false;
}

int stand_in_capture_mode() { return stand_in::t_capture_mode; }

int stand_in_is_capture_spoilt(CUstream stream) {
  Lock lock(state().mutex);
  return stream->is_spoilt ? 1 : 0;
}

void stand_in_lazy(int on) {
  Lock lock(state().mutex);
  state().is_lazy = on != 0;
  state().changed.notify_all();
}

void stand_in_fail(const char* function, long nth, int code) {
  Lock lock(state().mutex);
  state().failure = {function, nth, code, 0};
}

void stand_in_lose(long nth, int code) {
  Lock lock(state().mutex);
  state().until_loss = nth;
  state().loss = code;
}

void stand_in_skip(const char* function, int on) {
  Lock lock(state().mutex);
  if (on != 0) {
    state().skipped.insert(function);
  } else {
    state().skipped.erase(function);
  }
}

void stand_in_exempt(int on) { stand_in::t_is_exempt = on != 0; }

long stand_in_calls(const char* function) {
  Lock lock(state().mutex);
  if (*function != '\0') return state().calls[function];
  long all = 0;
  for (auto& calls : state().calls) all += calls.second;
  return all;
}

void stand_in_reset() {
  Lock lock(state().mutex);
  state().failure = {};
  state().loss = 0;
  state().failed = "";
  state().skipped.clear();
  state().calls.clear();
  state().log.clear();
  state().hidden.clear();
}

size_t stand_in_log(StandInCall* out, size_t room) {
  Lock lock(state().mutex);
  auto& log = state().log;
  std::copy_n(log.begin(), std::min(room, log.size()), out);
  return log.size();
}

void stand_in_hide_attribute(unsigned attribute, int on) {
  Lock lock(state().mutex);
  if (on != 0) {
    state().hidden.insert(attribute);
  } else {
    state().hidden.erase(attribute);
  }
}

void stand_in_set_attribute(int attribute, int value) {
  Lock lock(state().mutex);
  state().attributes[attribute] = value;
}

const char* stand_in_failed() {
  Lock lock(state().mutex);
  return state().failed;
}

long stand_in_waiting(const char* function) {
  Lock lock(state().mutex);
  return state().waiting_in[function];
}

long stand_in_copies_in_flight() {
  Lock lock(state().mutex);
  return state().copies;
}

long stand_in_alive() {
  Lock lock(state().mutex);
  auto& all = state();
  return static_cast<long>(all.streams.size() + all.events.size() + all.memory.size() +
                           all.modules.size());
}

void stand_in_set_version(int version) {
  Lock lock(state().mutex);
  state().version = version;
}

} /* extern "C" */
