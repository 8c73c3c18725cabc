/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h: a chosen variant and the prepared image of its entry's parameters.
 */
#ifndef OPDECK_PLAN_H
#define OPDECK_PLAN_H

#include "bind.h"
#include "context.h"

enum {
  OD_MAX_PARAMS = OD_MAX_ARGS + OD_MAX_LEAVES,
  OD_MAX_SCALAR_CHECKS = 32,
  OD_MAX_PARAM_BYTES = 4096 /* of one entry's parameters; a launch keeps them on its stack */
};

/* One parameter of the entry: where its bytes lie in the image, and whose value fills it. */
typedef struct od_plan_param {
  uint32_t offset_bytes; /* a multiple of 8 */
  int32_t slot_idx;      /* see od_plan_slot; -1 is the workspace */
} od_plan_param;

/* A value of a launch, as the entry reads it through a pointer. */
typedef union od_value {
  void *data;
  int32_t i32;
  float f32;
} od_value;

/* A check of the family about a scalar argument, whose value only a launch knows. */
typedef struct od_scalar_check {
  const opdeck_rule *rule;
  int32_t arg_idx;
} od_scalar_check;

struct opdeck_plan {
  opdeck_ctx *ctx; /* one reference */
  od_pack *pack;
  const opdeck_pack_variant *variant;
  int32_t variant_idx;
  uint32_t image_bytes;
  size_t workspace_bytes;
  int32_t num_scalar_checks;
  uint32_t num_given_args;
  uint32_t num_given_leaves;
  od_binding binding;
  od_scalar_check scalar_checks[OD_MAX_SCALAR_CHECKS];
  od_plan_param params[OD_MAX_PARAMS];
  uint64_t image[OD_MAX_PARAM_BYTES / 8]; /* shapes, strides and defaults in place */
};

/* Slot of an argument, or of leaf slot_idx - num_args. */
static inline const od_slot *od_plan_slot(const opdeck_plan *plan, int32_t slot_idx) {
  const od_binding *binding = &plan->binding;
  return slot_idx < binding->num_args ? &binding->args[slot_idx] : &binding->leaves[slot_idx - binding->num_args];
}

static inline int32_t od_plan_num_slots(const opdeck_plan *plan) {
  return plan->binding.num_args + plan->binding.num_leaves;
}

/* Bytes of all parameters of the variant's entry. */
size_t od_params_bytes(const opdeck_pack_variant *variant);
/* Whether a rule of the family is about a scalar argument; *arg_idx, if not NULL, is then which. */
int od_is_scalar_rule(const opdeck_pack_family *family, const opdeck_rule *rule, int32_t *arg_idx);

/* What a launch brings: a value a slot, and the rest. */
typedef struct od_launch {
  void *workspace;
  void *stream;
  od_value values[OD_MAX_PARAMS];
} od_launch;

/* emulate.c: registers the launch's tensors and workspace with the emulator, and keeps its report. */
opdeck_status od_emulator_begin(const opdeck_plan *plan, const od_launch *launch);
opdeck_status od_emulator_end(const opdeck_plan *plan);
/* The report of a launch that had nothing to do. */
void od_emulator_skip(const opdeck_plan *plan);

#endif
