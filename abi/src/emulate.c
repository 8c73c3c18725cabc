/* SPDX-License-Identifier: Apache-2.0
 *
 * emulate.c: what a launch on the emulator needs besides the driver's functions (opdeck_emu.h): options, the host
 * tensors that its kernels may touch, and the report. Called by context.c and launch.c.
 */
#include "plan.h"

#include "dtypes.h"
#include "text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static opdeck_status read_schedule(const char *origin, const char *text, opdeck_emu_options *options) {
  static const char random_prefix[] = "random:";
  if (strcmp(text, "eager") == 0) {
    options->schedule = OPDECK_EMU_EAGER;
  } else if (strcmp(text, "lazy") == 0) {
    options->schedule = OPDECK_EMU_LAZY;
  } else if (strcmp(text, "random") == 0) {
    options->schedule = OPDECK_EMU_RANDOM;
  } else {
    const char *seed =
        strncmp(text, random_prefix, sizeof random_prefix - 1) == 0 ? text + sizeof random_prefix - 1 : "";
    char *end = NULL;
    errno = 0;
    options->schedule = OPDECK_EMU_RANDOM;
    options->seed = strtoull(seed, &end, 10);
    if (seed[0] < '0' || seed[0] > '9' || *end != '\0' || errno != 0)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got \"%s\", want eager|lazy|random|random:SEED", origin, text);
  }
  return OPDECK_OK;
}

static opdeck_status read_hazards(const opdeck_ctx_desc *desc, opdeck_emu_options *options) {
  static const struct {
    const char *text;
    opdeck_hazards wanted;
    opdeck_emu_hazards level;
  } levels[] = {{"on", OPDECK_HAZARDS_ON, OPDECK_EMU_HAZARDS_ON},
                {"off", OPDECK_HAZARDS_OFF, OPDECK_EMU_HAZARDS_OFF},
                {"strict", OPDECK_HAZARDS_STRICT, OPDECK_EMU_HAZARDS_STRICT}};
  const char *text = getenv("OPDECK_HAZARDS");
  options->hazards = OPDECK_EMU_HAZARDS_ON;
  if (desc->hazards == OPDECK_HAZARDS_DEFAULT && text == NULL) return OPDECK_OK;
  for (size_t i = 0; i < sizeof levels / sizeof levels[0]; ++i) {
    if (desc->hazards == OPDECK_HAZARDS_DEFAULT ? strcmp(text, levels[i].text) != 0
                                                : desc->hazards != (int32_t)levels[i].wanted)
      continue;
    options->hazards = levels[i].level;
    return OPDECK_OK;
  }
  if (desc->hazards != OPDECK_HAZARDS_DEFAULT)
    return od_fail(OPDECK_INVALID_ARGUMENT, "desc.hazards: got %d, want 0 (default), 1 (on), 2 (off) or 3 (strict)",
                   (int)desc->hazards);
  return od_fail(OPDECK_INVALID_ARGUMENT, "OPDECK_HAZARDS: got \"%s\", want on|off|strict", text);
}

opdeck_status od_read_emulator_options(const opdeck_ctx_desc *desc, opdeck_emu_options *options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
  const char *text = desc->schedule != NULL ? desc->schedule : getenv("OPDECK_SCHEDULE");
  const char *origin = desc->schedule != NULL ? "desc.schedule" : "OPDECK_SCHEDULE";
  const opdeck_status status = text == NULL ? OPDECK_OK : read_schedule(origin, text, options);
  return status == OPDECK_OK ? read_hazards(desc, options) : status;
}

static void keep_report(opdeck_ctx *ctx, const opdeck_launch_report *report) {
  pthread_mutex_lock(&ctx->lock);
  ctx->last_report = *report;
  pthread_mutex_unlock(&ctx->lock);
}

void od_emulator_skip(const opdeck_plan *plan) {
  const opdeck_launch_report nothing = {0};
  keep_report(plan->ctx, &nothing);
}

/* The extents of the memory that is a tensor's: its own, but rows of elements under a byte are whole up to their pitch. */
static const int64_t *memory_extents(const od_layout *layout, int64_t extents[OD_MAX_RANK]) {
  if (!layout->has_pitch || od_dtype_of(layout->dtype)->bits >= 8) return layout->shape;
  memcpy(extents, layout->shape, sizeof layout->shape);
  extents[layout->rank - 1] = od_pitch_elems(layout);
  return extents;
}

opdeck_status od_emulator_begin(const opdeck_plan *plan, const od_launch *launch) {
  opdeck_emu_tensor tensors[OD_MAX_PARAMS + 1];
  int64_t extents[OD_MAX_PARAMS][OD_MAX_RANK];
  uint32_t num_tensors = 0;
  for (int32_t slot_idx = 0; slot_idx < od_plan_num_slots(plan); ++slot_idx) {
    const od_slot *slot = od_plan_slot(plan, slot_idx);
    if (slot->row->kind != OPDECK_ARG_TENSOR || slot->given_idx < 0 || slot->layout.num_elems == 0) continue;
    tensors[num_tensors++] = (opdeck_emu_tensor){
        .name = slot->row->name,
        .data = launch->values[slot_idx].data,
        .shape = memory_extents(&slot->layout, extents[slot_idx]),
        .strides = slot->layout.strides,
        .num_dims = slot->layout.rank,
        .elem_bits = od_dtype_of(slot->layout.dtype)->bits,
        .access = slot->row->access,
    };
  }
  const int64_t workspace_shape[] = {(int64_t)plan->workspace_bytes};
  const int64_t workspace_strides[] = {1};
  if (plan->workspace_bytes > 0) /* like an output it holds nothing yet */
    tensors[num_tensors++] = (opdeck_emu_tensor){.name = "workspace",
                                                 .data = launch->workspace,
                                                 .shape = workspace_shape,
                                                 .strides = workspace_strides,
                                                 .num_dims = 1,
                                                 .elem_bits = 8,
                                                 .access = OPDECK_EMU_WRITE};
  const od_driver *driver = plan->ctx->device.driver;
  const int result = driver->emulator.begin(tensors, num_tensors, &plan->ctx->emulator_options);
  return result == 0 ? OPDECK_OK : od_driver_fail(driver, "opdeck_emu_begin", result);
}

opdeck_status od_emulator_end(const opdeck_plan *plan) {
  const od_driver *driver = plan->ctx->device.driver;
  opdeck_emu_report counted;
  memset(&counted, 0, sizeof counted);
  counted.struct_size = sizeof counted;
  const int result = driver->emulator.end(&counted);
  if (result != 0) return od_driver_fail(driver, "opdeck_emu_end", result);
  opdeck_launch_report report = {
      .num_launches = counted.num_launches,
      .num_ctas = counted.num_ctas,
      .warp_instructions = counted.warp_instructions,
      .mma_macs = counted.mma_macs,
      .tma_load_bytes = counted.tma_load_bytes,
      .tma_store_bytes = counted.tma_store_bytes,
  };
  memcpy(report.cubin_sha256, counted.cubin_sha256, sizeof report.cubin_sha256);
  keep_report(plan->ctx, &report);
  return OPDECK_OK;
}
