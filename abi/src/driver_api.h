/* SPDX-License-Identifier: Apache-2.0
 *
 * driver_api.h: the CUDA driver functions that opdeck needs, as one table of pointers.
 *
 * libopdeck fills the table once a driver (libcuda.so.1 or libopdeck_emu.so, both by dlopen) and hands it to
 * every pack that it opens; the pack's shim (shim.c) calls through it. The types repeat CUDA's ABI, so that
 * nothing here needs the toolkit's headers.
 */
#ifndef OPDECK_DRIVER_API_H
#define OPDECK_DRIVER_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int opdeck_cu_result;    /* CUresult: 0 = CUDA_SUCCESS */
typedef int opdeck_cu_device;    /* CUdevice */
typedef void *opdeck_cu_context; /* CUcontext */
typedef void *opdeck_cu_library; /* CUlibrary */
typedef void *opdeck_cu_kernel;  /* CUkernel (launched as a CUfunction) */
typedef void *opdeck_cu_stream;  /* CUstream */
typedef unsigned long long opdeck_cu_deviceptr;

typedef struct opdeck_cu_launch_attr { /* CUlaunchAttribute */
  int32_t id;                          /* 2 cooperative, 4 cluster dimension, 6 programmatic dependent launch */
  int32_t pad;
  union {
    char raw[64];
    struct {
      uint32_t x, y, z;
    } cluster_dim;
    int32_t flag;
  } value;
} opdeck_cu_launch_attr;

typedef struct opdeck_cu_launch_config { /* CUlaunchConfig, 56 bytes */
  uint32_t grid_x, grid_y, grid_z;
  uint32_t block_x, block_y, block_z;
  uint32_t smem_bytes;
  opdeck_cu_stream stream;
  opdeck_cu_launch_attr *attrs;
  uint32_t num_attrs;
} opdeck_cu_launch_config;

/* X(member, exported symbol, parameter list). */
#define OPDECK_DRIVER_FUNCTIONS(X)                                                                                    \
  X(init, cuInit, (unsigned flags))                                                                                   \
  X(driver_get_version, cuDriverGetVersion, (int *version))                                                           \
  X(device_get_count, cuDeviceGetCount, (int *count))                                                                 \
  X(device_get, cuDeviceGet, (opdeck_cu_device * device, int ordinal))                                                \
  X(device_get_attribute, cuDeviceGetAttribute, (int *value, int attr, opdeck_cu_device device))                      \
  X(ctx_get_current, cuCtxGetCurrent, (opdeck_cu_context * ctx))                                                      \
  X(ctx_set_current, cuCtxSetCurrent, (opdeck_cu_context ctx))                                                        \
  X(ctx_get_device, cuCtxGetDevice, (opdeck_cu_device * device))                                                      \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, (opdeck_cu_context * ctx, opdeck_cu_device device))          \
  X(get_error_name, cuGetErrorName, (opdeck_cu_result error, const char **text))                                      \
  X(get_error_string, cuGetErrorString, (opdeck_cu_result error, const char **text))                                  \
  X(library_load_data, cuLibraryLoadData,                                                                             \
    (opdeck_cu_library * library, const void *code, int *jit_options, void **jit_values, unsigned num_jit_options,    \
     int *library_options, void **library_values, unsigned num_library_options))                                      \
  X(library_unload, cuLibraryUnload, (opdeck_cu_library library))                                                     \
  X(library_get_kernel, cuLibraryGetKernel, (opdeck_cu_kernel * kernel, opdeck_cu_library library, const char *name)) \
  X(kernel_get_attribute, cuKernelGetAttribute,                                                                       \
    (int *value, int attr, opdeck_cu_kernel kernel, opdeck_cu_device device))                                         \
  X(kernel_set_attribute, cuKernelSetAttribute,                                                                       \
    (int attr, int value, opdeck_cu_kernel kernel, opdeck_cu_device device))                                          \
  X(launch_kernel_ex, cuLaunchKernelEx,                                                                               \
    (const opdeck_cu_launch_config *config, opdeck_cu_kernel kernel, void **params, void **extra))                    \
  X(mem_alloc, cuMemAlloc_v2, (opdeck_cu_deviceptr * ptr, size_t bytes))                                              \
  X(mem_free, cuMemFree_v2, (opdeck_cu_deviceptr ptr))                                                                \
  X(memcpy_htod_async, cuMemcpyHtoDAsync_v2,                                                                          \
    (opdeck_cu_deviceptr dst, const void *src, size_t bytes, opdeck_cu_stream stream))                                \
  X(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2,                                                                          \
    (void *dst, opdeck_cu_deviceptr src, size_t bytes, opdeck_cu_stream stream))                                      \
  X(stream_synchronize, cuStreamSynchronize, (opdeck_cu_stream stream))

typedef struct opdeck_driver_api {
  uint32_t struct_size;
  uint32_t reserved;
#define OPDECK_DRIVER_MEMBER(member, symbol, params) opdeck_cu_result(*member) params;
  OPDECK_DRIVER_FUNCTIONS(OPDECK_DRIVER_MEMBER)
#undef OPDECK_DRIVER_MEMBER
} opdeck_driver_api;

#ifdef __cplusplus
}
#endif
#endif
