/* SPDX-License-Identifier: Apache-2.0
 *
 * device_memory.h: memory where a context's kernels read it: the host's own for the emulator, the GPU's for "cuda:N",
 * got from libcuda.so.1 without the CUDA toolkit. A program that uses the CUDA runtime calls cudaMalloc and cudaMemcpy
 * instead.
 */
#ifndef OPDECK_EXAMPLES_DEVICE_MEMORY_H
#define OPDECK_EXAMPLES_DEVICE_MEMORY_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct device_memory {
  int is_cuda;
  int32_t device_id;
  int (*mem_alloc)(uint64_t *ptr, size_t bytes);
  int (*mem_free)(uint64_t ptr);
  int (*copy_to_device)(uint64_t dst, const void *src, size_t bytes);
  int (*copy_to_host)(void *dst, uint64_t src, size_t bytes);
  int (*ctx_synchronize)(void);
} device_memory;

/* Makes the GPU's primary context current, which the driver's memory functions need. Returns 0 when it did. */
static inline int open_cuda_memory(device_memory *memory) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  int (*retain)(void **ctx, int device) = NULL;
  int (*set_current)(void *ctx) = NULL;
  void *ctx = NULL;
  if (driver == NULL) return 1;
  *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
  *(void **)&memory->mem_alloc = dlsym(driver, "cuMemAlloc_v2");
  *(void **)&memory->mem_free = dlsym(driver, "cuMemFree_v2");
  *(void **)&memory->copy_to_device = dlsym(driver, "cuMemcpyHtoD_v2");
  *(void **)&memory->copy_to_host = dlsym(driver, "cuMemcpyDtoH_v2");
  *(void **)&memory->ctx_synchronize = dlsym(driver, "cuCtxSynchronize");
  return retain(&ctx, memory->device_id) != 0 || set_current(ctx) != 0;
}

/* `device` is the string that the context was made with; call this after opdeck_ctx_create. */
static inline int open_device_memory(device_memory *memory, const char *device) {
  memset(memory, 0, sizeof *memory);
  memory->is_cuda = strncmp(device, "cuda:", 5) == 0;
  if (!memory->is_cuda) return 0;
  memory->device_id = (int32_t)atoi(device + 5);
  return open_cuda_memory(memory);
}

static inline void *allocate_on_device(const device_memory *memory, size_t bytes) {
  void *on_host = NULL;
  if (!memory->is_cuda) return posix_memalign(&on_host, 256, bytes) == 0 ? on_host : NULL;
  uint64_t ptr = 0;
  return memory->mem_alloc(&ptr, bytes) == 0 ? (void *)(uintptr_t)ptr : NULL;
}

static inline void free_on_device(const device_memory *memory, void *ptr) {
  if (!memory->is_cuda)
    free(ptr);
  else if (ptr != NULL)
    memory->mem_free((uint64_t)(uintptr_t)ptr);
}

static inline int copy_to_device(const device_memory *memory, void *dst, const void *src, size_t bytes) {
  if (memory->is_cuda) return memory->copy_to_device((uint64_t)(uintptr_t)dst, src, bytes);
  memcpy(dst, src, bytes);
  return 0;
}

/* Waits for the launches before it. */
static inline int copy_to_host(const device_memory *memory, void *dst, const void *src, size_t bytes) {
  if (memory->is_cuda)
    return memory->ctx_synchronize() != 0 || memory->copy_to_host(dst, (uint64_t)(uintptr_t)src, bytes) != 0;
  memcpy(dst, src, bytes);
  return 0;
}

#endif
