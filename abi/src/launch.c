/* SPDX-License-Identifier: Apache-2.0
 *
 * launch.c: opdeck_plan_launch: checks a launch's values against the plan, fills a copy of the plan's parameters on the
 * stack and calls the variant's entry. No allocation, lock or lookup of a kernel here, unless the plan was not
 * prepared.
 */
#include "plan.h"

#include "dtypes.h"
#include "rules.h"
#include "text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum {
  WORKSPACE_ALIGN_BYTES = 256
};

static opdeck_status fail_layout(const od_slot *slot) {
  char shape[160];
  char strides[160];
  od_format_extents(slot->layout.shape, slot->layout.rank, shape, sizeof shape);
  od_format_extents(slot->layout.strides, slot->layout.rank, strides, sizeof strides);
  return od_fail(OPDECK_INVALID_ARGUMENT,
                 "%s: got another dtype, shape or strides than the plan's: %s, shape %s, strides %s", slot->row->name,
                 od_dtype_of(slot->layout.dtype)->name, shape, strides);
}

static opdeck_status read_tensor(const opdeck_plan *plan, const od_slot *slot, const opdeck_tensor *tensor,
                                 od_value *value) {
  const char *name = slot->row->name;
  if (tensor == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got tensor NULL, want a tensor", name);
  if (!od_layout_matches(&slot->layout, tensor)) return fail_layout(slot);
  const opdeck_status status = od_check_place(name, tensor, &plan->ctx->device);
  if (status != OPDECK_OK) return status;
  const uintptr_t address = (uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset;
  if (tensor->data == NULL && slot->layout.num_elems > 0)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got data NULL, want %" PRId64 " elements%s", name,
                   slot->layout.num_elems, slot->row->optional ? " (an optional argument is left out)" : "");
  const int32_t align_bytes = od_align_bytes(slot->row, slot->layout.dtype);
  if (slot->layout.num_elems > 0 && address % (uintptr_t)align_bytes != 0)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got address 0x%" PRIxPTR ", want a multiple of %" PRId32 " bytes",
                   name, address, align_bytes);
  value->data = slot->layout.num_elems > 0 ? (void *)address : NULL;
  return OPDECK_OK;
}

static opdeck_status read_value(const opdeck_plan *plan, const od_slot *slot, const opdeck_arg *arg, od_value *value) {
  if (arg->name == NULL || strcmp(arg->name, slot->row->name) != 0 || arg->kind != slot->row->kind)
    return od_fail(
        OPDECK_INVALID_ARGUMENT,
        "argument %" PRId32 ": got %s of kind %" PRId32 ", want %s of kind %" PRId32 " as when the plan was made",
        slot->given_idx, arg->name == NULL ? "NULL" : arg->name, arg->kind, slot->row->name, slot->row->kind);
  if (arg->kind == OPDECK_ARG_TENSOR) return read_tensor(plan, slot, arg->value.tensor, value);
  if (arg->kind == OPDECK_ARG_F32 && !isfinite(arg->value.f32))
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %g, want a finite number", slot->row->name,
                   (double)arg->value.f32);
  if (arg->kind == OPDECK_ARG_F32)
    value->f32 = arg->value.f32;
  else
    value->i32 = arg->value.i32;
  return OPDECK_OK;
}

static opdeck_status read_values(const opdeck_plan *plan, const opdeck_problem *problem, od_value *values) {
  const opdeck_arg *leaves = problem->fusion == NULL ? NULL : problem->fusion->leaves;
  const uint32_t num_leaves = problem->fusion == NULL ? 0 : problem->fusion->num_leaves;
  if (problem->num_args != plan->num_given_args || num_leaves != plan->num_given_leaves ||
      (problem->args == NULL && problem->num_args > 0) || (leaves == NULL && num_leaves > 0))
    return od_fail(OPDECK_INVALID_ARGUMENT,
                   "problem: got %u arguments and %u leaves, want the %u and %u that the plan was made with",
                   (unsigned)problem->num_args, (unsigned)num_leaves, (unsigned)plan->num_given_args,
                   (unsigned)plan->num_given_leaves);
  const int32_t num_slots = od_plan_num_slots(plan);
  for (int32_t slot_idx = 0; slot_idx < num_slots; ++slot_idx) {
    const od_slot *slot = od_plan_slot(plan, slot_idx);
    if (slot->given_idx < 0) continue;
    const opdeck_arg *given = slot_idx < plan->binding.num_args ? problem->args : leaves;
    const opdeck_status status = read_value(plan, slot, &given[slot->given_idx], &values[slot_idx]);
    if (status != OPDECK_OK) return status;
  }
  return OPDECK_OK;
}

static opdeck_status check_scalars(const opdeck_plan *plan, const od_value *values) {
  for (int32_t check_idx = 0; check_idx < plan->num_scalar_checks; ++check_idx) {
    const od_scalar_check *check = &plan->scalar_checks[check_idx];
    const od_slot *slot = &plan->binding.args[check->arg_idx];
    const od_value *value = &values[check->arg_idx];
    char reason[256];
    od_text text = od_text_in(reason, sizeof reason);
    const double got = slot->row->kind == OPDECK_ARG_F32 ? (double)value->f32 : (double)value->i32;
    if (slot->given_idx >= 0 && !od_scalar_rule_holds(check->rule, got, &text))
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s", reason);
  }
  return OPDECK_OK;
}

/* An output that has memory of another tensor would be written while that is read or written. */
static opdeck_status check_aliases(const opdeck_plan *plan, const od_value *values) {
  const int32_t num_slots = od_plan_num_slots(plan);
  for (int32_t out_idx = 0; out_idx < plan->binding.num_args; ++out_idx) {
    const od_slot *out = &plan->binding.args[out_idx];
    if (out->row->kind != OPDECK_ARG_TENSOR || out->row->access == 1 || out->given_idx < 0) continue;
    if (out->layout.num_elems == 0) continue;
    for (int32_t slot_idx = 0; slot_idx < num_slots; ++slot_idx) {
      const od_slot *other = od_plan_slot(plan, slot_idx);
      if (slot_idx == out_idx || other->row->kind != OPDECK_ARG_TENSOR || other->given_idx < 0) continue;
      if (other->layout.num_elems > 0 &&
          od_layouts_overlap(&out->layout, values[out_idx].data, &other->layout, values[slot_idx].data))
        return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got the memory of %s, want memory of its own", out->row->name,
                       other->row->name);
    }
  }
  return OPDECK_OK;
}

static opdeck_status check_workspace(const opdeck_plan *plan, const void *workspace, size_t workspace_bytes) {
  if (plan->workspace_bytes == 0) return OPDECK_OK;
  if (workspace == NULL || workspace_bytes < plan->workspace_bytes)
    return od_fail(OPDECK_WORKSPACE, "workspace: got %zu bytes%s, want %zu", workspace_bytes,
                   workspace == NULL ? " at NULL" : "", plan->workspace_bytes);
  if ((uintptr_t)workspace % WORKSPACE_ALIGN_BYTES != 0)
    return od_fail(OPDECK_WORKSPACE, "workspace: got %p, want a multiple of %d bytes", workspace,
                   WORKSPACE_ALIGN_BYTES);
  return OPDECK_OK;
}

/* The entry takes pointers to its arguments: the parameters, the stream, and last the result. */
static int32_t call_entry(const opdeck_plan *plan, const od_launch *launch) {
  uint64_t image[OD_MAX_PARAM_BYTES / sizeof(uint64_t)];
  void *args[OD_MAX_PARAMS + 2];
  memcpy(image, plan->image, plan->image_bytes);
  const int32_t num_params = plan->variant->num_params;
  for (int32_t param_idx = 0; param_idx < num_params; ++param_idx) {
    const od_plan_param *param = &plan->params[param_idx];
    void *bytes = &image[param->offset_bytes / sizeof(uint64_t)];
    if (param->slot_idx < 0)
      memcpy(bytes, &launch->workspace, sizeof launch->workspace);
    else if (od_plan_slot(plan, param->slot_idx)->given_idx >= 0)
      memcpy(bytes, &launch->values[param->slot_idx], sizeof(od_value));
    args[param_idx] = bytes;
  }
  void *stream = launch->stream;
  int32_t result = 0;
  args[num_params] = &stream;
  args[num_params + 1] = &result;
  plan->variant->entry(args, num_params + 2);
  return result;
}

static opdeck_status launch_in_ctx(const opdeck_plan *plan, const od_launch *launch) {
  const od_device *device = &plan->ctx->device;
  od_saved_ctx saved;
  opdeck_status status = od_enter_device(device, &saved);
  if (status != OPDECK_OK) return status;
  const int32_t result = call_entry(plan, launch);
  /* Before the next call of the driver: the emulator forgets the text of a failure then. */
  if (result != 0) status = od_driver_fail(device->driver, plan->variant->id, result);
  od_leave_device(device, &saved);
  return status;
}

static opdeck_status launch_on_emulator(const opdeck_plan *plan, const od_launch *launch) {
  opdeck_status status = od_emulator_begin(plan, launch);
  if (status != OPDECK_OK) return status;
  status = launch_in_ctx(plan, launch);
  if (status == OPDECK_OK) return od_emulator_end(plan);
  plan->ctx->device.driver->emulator.end(NULL); /* the launch's own error is the one to tell */
  return status;
}

/* A kernel has one mask: another name with as many leaves would be computed as the plan's. */
static opdeck_status check_fusion(const opdeck_plan *plan, const opdeck_problem *problem) {
  const opdeck_fusion *fusion = problem->fusion;
  if (fusion != NULL) {
    const opdeck_status status = od_check_struct_size("fusion", fusion->struct_size, sizeof *fusion);
    if (status != OPDECK_OK) return status;
    if (fusion->name == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "fusion.name: got NULL, want a name");
  }
  if (strcmp(od_fusion_name(problem), plan->variant->fusion) == 0) return OPDECK_OK;
  return od_fail(OPDECK_INVALID_ARGUMENT, "fusion: got %s, want %s as when the plan was made", od_fusion_name(problem),
                 plan->variant->fusion);
}

static opdeck_status check_launch(const opdeck_plan *plan, const opdeck_problem *problem, od_value *values) {
  if (plan == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "plan: got NULL");
  if (problem == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "problem: got NULL");
  opdeck_status status = od_check_struct_size("problem", problem->struct_size, sizeof *problem);
  if (status == OPDECK_OK) status = check_fusion(plan, problem);
  if (status == OPDECK_OK) status = read_values(plan, problem, values);
  if (status == OPDECK_OK) status = check_scalars(plan, values);
  return status == OPDECK_OK ? check_aliases(plan, values) : status;
}

opdeck_status opdeck_plan_launch(opdeck_plan *plan, const opdeck_problem *problem, void *workspace,
                                 size_t workspace_bytes, void *stream) {
  od_clear_error();
  od_launch launch;
  opdeck_status status = check_launch(plan, problem, launch.values);
  if (status == OPDECK_OK) status = check_workspace(plan, workspace, workspace_bytes);
  if (status != OPDECK_OK) return status;
  launch.workspace = workspace;
  launch.stream = stream;
  const int is_emulator = plan->ctx->device.driver->kind == OD_DRIVER_EMULATOR;
  if (plan->binding.is_empty) {
    if (is_emulator) od_emulator_skip(plan);
    return OPDECK_OK;
  }
  status = od_variant_prepare(plan->pack, plan->variant_idx, &plan->ctx->device);
  if (status != OPDECK_OK) return status;
  return is_emulator ? launch_on_emulator(plan, &launch) : launch_in_ctx(plan, &launch);
}
