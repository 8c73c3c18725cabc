/* SPDX-License-Identifier: Apache-2.0
 *
 * context.h: a context: a device, the packs on it, the emulator's options and last report.
 */
#ifndef OPDECK_CONTEXT_H
#define OPDECK_CONTEXT_H

#include "driver.h"
#include "loader.h"
#include "opdeck.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
  OD_MAX_PACKS = 256
};

struct opdeck_ctx {
  od_device device;
  opdeck_emu_options emulator_options;
  atomic_int num_refs;  /* the caller's, and one a plan */
  pthread_mutex_t lock; /* of what follows */
  int32_t num_packs;
  od_pack *packs[OD_MAX_PACKS]; /* in order of loading; never removed while the context lives */
  opdeck_launch_report last_report;
};

void od_ctx_retain(opdeck_ctx *ctx);
void od_ctx_release(opdeck_ctx *ctx);

/* Packs are only ever added, so those below a count read once stay as they are. */
int32_t od_ctx_num_packs(opdeck_ctx *ctx);

void od_fill_kernel_info(const od_pack *pack, int32_t variant_idx, opdeck_kernel_info *info);

/* emulate.c: the options of the emulator, from desc and environment. */
opdeck_status od_read_emulator_options(const opdeck_ctx_desc *desc, opdeck_emu_options *options);

#endif
