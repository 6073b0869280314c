/* Devices and contexts as hosts make them. See stand_in.h. */
#include <cstdio>

#include "call.h"

using namespace stand_in;

namespace {

CUcontext open_context(CUdevice device) {
  auto context = new CUctx_st{device, nullptr};
  state().contexts.insert(context);
  return context;
}

}  // namespace

extern "C" {

CUresult cuDeviceGetCount(int* count) {
  ENTER();
  *count = kDevices;
  return 0;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  ENTER();
  NEED(ordinal >= 0 && ordinal < kDevices, kInvalidDevice);
  *device = ordinal;
  return 0;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  ENTER();
  NEED(name != nullptr && size > 0, kInvalidValue);
  NEED(device >= 0 && device < kDevices, kInvalidDevice);
  std::snprintf(name, static_cast<size_t>(size), "stand-in of device %d", device);
  return 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER();
  NEED(device >= 0 && device < kDevices, kInvalidDevice);
  auto& primary = state().primary[device];
  if (state().primary_users[device]++ == 0) primary = open_context(device);
  *context = primary;
  return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER();
  NEED(device >= 0 && device < kDevices, kInvalidDevice);
  NEED(state().primary_users[device] > 0, kInvalidContext);
  if (--state().primary_users[device] == 0) close_context(state().primary[device]);
  return 0;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
  ENTER();
  NEED(flags == 0, kNotSupported);
  NEED(device >= 0 && device < kDevices, kInvalidDevice);
  *context = t_current = open_context(device);
  return 0;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  ENTER();
  NEED(state().contexts.count(context) != 0, kInvalidContext);
  if (t_current == context) t_current = nullptr;
  close_context(context);
  return 0;
}

} /* extern "C" */
