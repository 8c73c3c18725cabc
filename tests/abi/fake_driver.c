/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_driver.c: a driver that runs nothing and records what it is asked, so that loading, planning and launching are
 * tested without the emulator. Built twice: as an emulator, and with FAKE_CUDA as libcuda.so.1 with two devices.
 */
#include "fake_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static fake_log driver_log;
static pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local opdeck_cu_context current;
static char contexts[3]; /* their addresses are the contexts */

#ifdef FAKE_CUDA
static const int compute_capabilities[] = {100, 100};
#else
static const int compute_capabilities[] = {90, 100, 103};
static pthread_mutex_t session_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int is_in_session;
#endif

enum {
  NUM_DEVICES = sizeof compute_capabilities / sizeof compute_capabilities[0],
  INVALID_VALUE = 1,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  LAUNCH_FAILED = 719
};

/* The prototypes of all that the driver exports. */
#define DECLARE(member, symbol, params) opdeck_cu_result symbol params;
OPDECK_DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
fake_log *fake_driver_log(void);
opdeck_cu_result cuGetProcAddress_v2(const char *name, void **address, int cuda_version, uint64_t flags, int *status);

fake_log *fake_driver_log(void) { return &driver_log; }

opdeck_cu_result cuInit(unsigned flags) {
  ++driver_log.num_inits;
  return flags == 0 ? 0 : INVALID_VALUE;
}

opdeck_cu_result cuDriverGetVersion(int *version) {
  *version = 13000;
  return 0;
}

opdeck_cu_result cuDeviceGetCount(int *count) {
  *count = NUM_DEVICES;
  return 0;
}

opdeck_cu_result cuDeviceGet(opdeck_cu_device *device, int ordinal) {
  *device = ordinal;
  return ordinal < NUM_DEVICES ? 0 : INVALID_DEVICE;
}

opdeck_cu_result cuDeviceGetAttribute(int *value, int attr, opdeck_cu_device device) {
  if (device < 0 || device >= NUM_DEVICES) return INVALID_DEVICE;
  switch (attr) {
    case 16: *value = 148; return 0;
    case 75: *value = compute_capabilities[device] / 10; return 0;
    case 76: *value = compute_capabilities[device] % 10; return 0;
    default: return INVALID_VALUE;
  }
}

opdeck_cu_result cuCtxGetCurrent(opdeck_cu_context *ctx) {
  *ctx = current;
  return 0;
}

/* As the emulator does, a call that succeeds forgets the text of the last failure. */
static _Thread_local int is_error_forgotten;

static int failed_or_not(int result) {
  is_error_forgotten = result == 0;
  return result;
}

opdeck_cu_result cuCtxSetCurrent(opdeck_cu_context ctx) {
  current = ctx;
  return failed_or_not(0);
}

opdeck_cu_result cuCtxGetDevice(opdeck_cu_device *device) {
  if (current == NULL) return INVALID_CONTEXT;
  *device = (int)((char *)current - contexts);
  return 0;
}

opdeck_cu_result cuDevicePrimaryCtxRetain(opdeck_cu_context *ctx, opdeck_cu_device device) {
  *ctx = &contexts[device];
  return 0;
}

opdeck_cu_result cuGetErrorName(opdeck_cu_result error, const char **text) {
  *text = error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : NULL;
  return *text != NULL ? 0 : INVALID_VALUE;
}

opdeck_cu_result cuGetErrorString(opdeck_cu_result error, const char **text) {
  *text = error == LAUNCH_FAILED ? "unspecified launch failure" : NULL;
  return *text != NULL ? 0 : INVALID_VALUE;
}

opdeck_cu_result cuLibraryLoadData(opdeck_cu_library *library, const void *code, int *jit_options, void **jit_values,
                                   unsigned num_jit_options, int *library_options, void **library_values,
                                   unsigned num_library_options) {
  (void)jit_options, (void)jit_values, (void)library_options, (void)library_values;
  if (num_jit_options != 0 || num_library_options != 0) return INVALID_VALUE;
  if (driver_log.load_result != 0) return driver_log.load_result;
  ++driver_log.num_library_loads;
  *library = (void *)(uintptr_t)code;
  return 0;
}

opdeck_cu_result cuLibraryUnload(opdeck_cu_library library) {
  ++driver_log.num_library_unloads;
  return library != NULL ? 0 : INVALID_VALUE;
}

opdeck_cu_result cuLibraryGetKernel(opdeck_cu_kernel *kernel, opdeck_cu_library library, const char *name) {
  *kernel = library;
  return name != NULL ? 0 : INVALID_VALUE;
}

opdeck_cu_result cuKernelGetAttribute(int *value, int attr, opdeck_cu_kernel kernel, opdeck_cu_device device) {
  (void)kernel, (void)device;
  *value = 0;
  return attr == 1 ? 0 : INVALID_VALUE;
}

opdeck_cu_result cuKernelSetAttribute(int attr, int value, opdeck_cu_kernel kernel, opdeck_cu_device device) {
  (void)attr, (void)value, (void)kernel, (void)device;
  ++driver_log.num_kernel_attributes;
  return 0;
}

/* The fake entries pass one kernel parameter: their fake_call. */
opdeck_cu_result cuLaunchKernelEx(const opdeck_cu_launch_config *config, opdeck_cu_kernel kernel, void **params,
                                  void **extra) {
  (void)extra;
  ++driver_log.num_launches;
  opdeck_cu_device device = -1;
  if (cuCtxGetDevice(&device) != 0 || device != driver_log.expected_device) ++driver_log.num_wrong_ctx;
#ifndef FAKE_CUDA
  if (!is_in_session) ++driver_log.num_outside_session;
#endif
  pthread_mutex_lock(&launch_lock);
  driver_log.call = *(const fake_call *)params[0];
  driver_log.stream = config->stream;
  pthread_mutex_unlock(&launch_lock);
  return failed_or_not(kernel != NULL ? driver_log.launch_result : INVALID_VALUE);
}

opdeck_cu_result cuMemAlloc_v2(opdeck_cu_deviceptr *ptr, size_t bytes) {
  (void)ptr, (void)bytes;
  return INVALID_VALUE;
}

opdeck_cu_result cuMemFree_v2(opdeck_cu_deviceptr ptr) {
  (void)ptr;
  return INVALID_VALUE;
}

opdeck_cu_result cuMemcpyHtoDAsync_v2(opdeck_cu_deviceptr dst, const void *src, size_t bytes, opdeck_cu_stream stream) {
  (void)dst, (void)src, (void)bytes, (void)stream;
  return INVALID_VALUE;
}

opdeck_cu_result cuMemcpyDtoHAsync_v2(void *dst, opdeck_cu_deviceptr src, size_t bytes, opdeck_cu_stream stream) {
  (void)dst, (void)src, (void)bytes, (void)stream;
  return INVALID_VALUE;
}

opdeck_cu_result cuStreamSynchronize(opdeck_cu_stream stream) {
  (void)stream;
  return 0;
}

#ifdef FAKE_CUDA
/* As CUDA 12.0's: names have no version suffix, the newest fitting function answers. */
opdeck_cu_result cuGetProcAddress_v2(const char *name, void **address, int cuda_version, uint64_t flags, int *status) {
  char versioned[96];
  (void)flags, (void)status;
  if (strstr(name, "_v2") != NULL || cuda_version != 12000) return INVALID_VALUE;
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  *address = dlsym(RTLD_DEFAULT, versioned);
  void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *address = dlsym(self, versioned);
  if (*address == NULL) *address = dlsym(self, name);
  dlclose(self);
  return *address != NULL ? 0 : INVALID_VALUE;
}
#else
uint32_t opdeck_emu_version(void) { return OPDECK_EMU_VERSION; }

int opdeck_emu_register_ptx(const char *sha256_hex, const char *ptx, size_t len) {
  snprintf(driver_log.sha256, sizeof driver_log.sha256, "%s", sha256_hex);
  return strlen(ptx) == len ? 0 : INVALID_VALUE;
}

int opdeck_emu_begin(const opdeck_emu_tensor *tensors, uint32_t num_tensors, const opdeck_emu_options *options) {
  if (driver_log.begin_result != 0) return failed_or_not(driver_log.begin_result);
  pthread_mutex_lock(&session_lock);
  is_in_session = 1;
  driver_log.options = *options;
  driver_log.num_tensors = num_tensors;
  for (uint32_t tensor_idx = 0; tensor_idx < num_tensors && tensor_idx < FAKE_MAX_TENSORS; ++tensor_idx) {
    driver_log.tensors[tensor_idx] = tensors[tensor_idx];
    memcpy(driver_log.shapes[tensor_idx], tensors[tensor_idx].shape,
           (size_t)tensors[tensor_idx].num_dims * sizeof(int64_t));
  }
  return 0;
}

int opdeck_emu_end(opdeck_emu_report *report) {
  if (!is_in_session) return INVALID_VALUE;
  is_in_session = 0;
  if (report != NULL) {
    report->num_launches = 1;
    report->num_ctas = 7;
    report->mma_macs = 1234567890123;
    memcpy(report->cubin_sha256, driver_log.sha256, sizeof report->cubin_sha256);
  }
  const int result = driver_log.end_result;
  pthread_mutex_unlock(&session_lock);
  return failed_or_not(result);
}

int opdeck_emu_set_default_options(const opdeck_emu_options *options) {
  (void)options;
  return 0;
}

const char *opdeck_emu_last_error(void) { return is_error_forgotten ? "" : driver_log.error; }
#endif
