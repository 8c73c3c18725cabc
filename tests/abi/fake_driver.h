/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_driver.h: what the fake driver (fake_driver.c) saw, for tests; and the form in which the fake pack's entries
 * hand it their arguments.
 */
#ifndef OPDECK_TESTS_FAKE_DRIVER_H
#define OPDECK_TESTS_FAKE_DRIVER_H

#include "driver_api.h"
#include "opdeck_emu.h"

#include <stdatomic.h>

enum {
  FAKE_MAX_ARGS = 12,
  FAKE_MAX_WORDS = 12,
  FAKE_MAX_TENSORS = 16
};

/* Arguments of one call of an entry, as 64-bit words. */
typedef struct fake_call {
  const char *variant;
  int32_t num_args; /* with stream and result */
  uint64_t words[FAKE_MAX_ARGS][FAKE_MAX_WORDS];
} fake_call;

typedef struct fake_log {
  atomic_int num_inits;
  atomic_int num_library_loads;
  atomic_int num_library_unloads;
  atomic_int num_kernel_attributes;
  atomic_int num_launches;
  atomic_int num_outside_session; /* launches on the emulator with no session open */
  atomic_int num_wrong_ctx;       /* launches with no context current, or another device's than `expected_device` */
  atomic_int expected_device;
  atomic_int load_result; /* CUresults that the next calls return */
  atomic_int launch_result;
  atomic_int begin_result;
  atomic_int end_result;
  /* Of the last launch or session. */
  fake_call call;
  void *stream;
  opdeck_emu_options options;
  uint32_t num_tensors;
  opdeck_emu_tensor tensors[FAKE_MAX_TENSORS];
  int64_t shapes[FAKE_MAX_TENSORS][8];
  char sha256[65]; /* last registered */
  char error[256]; /* what opdeck_emu_last_error returns */
} fake_log;

/* Exported by the fake driver. */
typedef fake_log *(*fake_driver_log_fn)(void);

#endif
