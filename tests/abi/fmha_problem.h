/* SPDX-License-Identifier: Apache-2.0
 *
 * fmha_problem.h: a legal fmha_fwd problem for the fake pack, to be bent by tests: b 2, sq 3, sk 5, hq 4, hk 2, d 64,
 * bf16. Also the context on the fake emulator, and its log.
 */
#ifndef OPDECK_TESTS_FMHA_PROBLEM_H
#define OPDECK_TESTS_FMHA_PROBLEM_H

#include "check.h"
#include "fake_driver.h"

#include <dlfcn.h>
#include <stdlib.h>

enum {
  ARG_Q,
  ARG_K,
  ARG_V,
  ARG_O,
  ARG_LSE,
  ARG_SCALE,
  NUM_FMHA_ARGS
};

static _Alignas(64) char memory[5][1 << 14];

typedef struct fmha_problem {
  int64_t shapes[5][4];
  int64_t strides[5][4];
  opdeck_tensor tensors[5];
  opdeck_arg args[NUM_FMHA_ARGS];
  opdeck_problem problem;
} fmha_problem;

static inline void set_shape(fmha_problem *fmha, int arg, int32_t rank, const int64_t *shape) {
  uint64_t stride = 1; /* may wrap: some shapes are absurd */
  for (int32_t dim = rank - 1; dim >= 0; --dim) {
    fmha->shapes[arg][dim] = shape[dim];
    fmha->strides[arg][dim] = (int64_t)stride;
    stride *= (uint64_t)shape[dim];
  }
  fmha->tensors[arg] = (opdeck_tensor){.data = memory[arg],
                                       .device_type = OPDECK_DEVICE_CPU,
                                       .ndim = rank,
                                       .dtype_code = arg == ARG_LSE ? OPDECK_CODE_FLOAT : OPDECK_CODE_BFLOAT,
                                       .dtype_bits = arg == ARG_LSE ? 32 : 16,
                                       .dtype_lanes = 1,
                                       .shape = fmha->shapes[arg],
                                       .strides = fmha->strides[arg]};
}

static inline void init_fmha(fmha_problem *fmha) {
  static const char *const names[] = {"q", "k", "v", "o", "lse"};
  set_shape(fmha, ARG_Q, 4, (const int64_t[]){2, 3, 4, 64});
  set_shape(fmha, ARG_K, 4, (const int64_t[]){2, 5, 2, 64});
  set_shape(fmha, ARG_V, 4, (const int64_t[]){2, 5, 2, 64});
  set_shape(fmha, ARG_O, 4, (const int64_t[]){2, 3, 4, 64});
  set_shape(fmha, ARG_LSE, 3, (const int64_t[]){2, 4, 3});
  for (int arg = 0; arg < 5; ++arg)
    fmha->args[arg] = (opdeck_arg){names[arg], OPDECK_ARG_TENSOR, 0, {.tensor = &fmha->tensors[arg]}};
  fmha->args[ARG_SCALE] = (opdeck_arg){"softmax_scale", OPDECK_ARG_F32, 0, {.f32 = 0.25F}};
  fmha->problem = (opdeck_problem){sizeof fmha->problem, NUM_FMHA_ARGS, "fmha_fwd", fmha->args, NULL, NULL};
}

static inline opdeck_ctx *create_ctx(const char *device) {
  opdeck_ctx *ctx = NULL;
  const opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = device, .emulator_lib = FAKE_EMULATOR};
  CHECK_OK(opdeck_ctx_create(&desc, &ctx));
  CHECK_OK(opdeck_ctx_load_pack(ctx, FAKE_PACK));
  return ctx;
}

static inline fake_log *find_log(const char *library) {
  void *driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  fake_driver_log_fn get_log = NULL;
  if (driver != NULL) *(void **)&get_log = dlsym(driver, "fake_driver_log");
  if (get_log == NULL) abort();
  return get_log();
}

#endif
