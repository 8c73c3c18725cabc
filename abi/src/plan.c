/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: plans: a chosen variant, bound and with its parameters laid out, so that a launch (launch.c) only fills in
 * pointers and scalars. The parameters' form is that of CuTe DSL's exported functions (pack.h, opdeck_pack_param).
 */
#include "plan.h"

#include "rules.h"
#include "select.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t param_bytes(const opdeck_pack_param *param) {
  const size_t num_words =
      param->kind == OPDECK_ARG_TENSOR ? 1 + (size_t)param->num_shape_dims + (size_t)param->num_stride_dims : 1;
  return num_words * sizeof(uint64_t);
}

size_t od_params_bytes(const opdeck_pack_variant *variant) {
  size_t bytes = 0;
  for (int32_t param_idx = 0; param_idx < variant->num_params; ++param_idx)
    bytes += param_bytes(&variant->params[param_idx]);
  return bytes;
}

/* Behind the data pointer: the dynamic extents, then the dynamic strides, 64 bits each. */
static void write_layout(const opdeck_pack_param *param, const od_layout *layout, uint64_t *words) {
  for (int32_t dim_idx = 0; dim_idx < param->num_shape_dims; ++dim_idx)
    *++words = (uint64_t)layout->shape[param->shape_dims[dim_idx]];
  for (int32_t dim_idx = 0; dim_idx < param->num_stride_dims; ++dim_idx)
    *++words = (uint64_t)layout->strides[param->stride_dims[dim_idx]];
}

static od_value default_of(const opdeck_plan *plan, const opdeck_pack_arg *row) {
  if (row->default_kind == OPDECK_DEFAULT_NUM_SMS) return (od_value){.i32 = plan->ctx->device.num_sms};
  if (row->default_kind != OPDECK_DEFAULT_RSQRT)
    return (od_value){.f32 = row->default_kind == OPDECK_DEFAULT_ONE ? 1.0F : 0.0F};
  const opdeck_field *field = od_find_field(plan->binding.fields, plan->binding.num_fields, row->default_field);
  return (od_value){.f32 = field->value > 0 ? (float)(1.0 / sqrt((double)field->value)) : 0.0F};
}

/* 0 where the problem does not have the field. */
static int64_t workspace_count(const opdeck_plan *plan, const opdeck_pack_count *count) {
  const od_binding *binding = &plan->binding;
  return od_find_field(binding->fields, binding->num_fields, count->field) == NULL ? 0 : od_count_of(binding, count);
}

static opdeck_status size_workspace(opdeck_plan *plan) {
  int64_t bytes = 0;
  int has_overflow = 0;
  for (int32_t term_idx = 0; term_idx < plan->variant->num_terms; ++term_idx) {
    const opdeck_pack_term *term = &plan->variant->workspace[term_idx];
    int64_t term_bytes = term->factor_bytes;
    for (int32_t count_idx = 0; count_idx < term->num_counts; ++count_idx)
      has_overflow |= __builtin_mul_overflow(term_bytes, workspace_count(plan, &term->counts[count_idx]), &term_bytes);
    has_overflow |= __builtin_add_overflow(bytes, term_bytes, &bytes);
  }
  if (has_overflow)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: its workspace would take more than 2^63 bytes", plan->variant->id);
  plan->workspace_bytes = (size_t)bytes;
  return OPDECK_OK;
}

static void write_param(opdeck_plan *plan, const opdeck_pack_param *param, const od_slot *slot, uint64_t *words) {
  if (param->kind == OPDECK_ARG_TENSOR) {
    if (slot->given_idx >= 0) write_layout(param, &slot->layout, words);
  } else if (slot->given_idx < 0 && slot->row->default_kind != OPDECK_DEFAULT_NONE) {
    const od_value value = default_of(plan, slot->row);
    memcpy(words, &value, sizeof value.i32);
  }
}

static int32_t slot_of(const opdeck_plan *plan, const opdeck_pack_param *param) {
  if (param->source == OPDECK_SOURCE_WORKSPACE) return -1;
  return param->source >= 0 ? param->source : plan->binding.num_args - 1 - param->source;
}

static void lay_out_params(opdeck_plan *plan) {
  for (int32_t param_idx = 0; param_idx < plan->variant->num_params; ++param_idx) {
    const opdeck_pack_param *param = &plan->variant->params[param_idx];
    const int32_t slot_idx = slot_of(plan, param);
    plan->params[param_idx] = (od_plan_param){plan->image_bytes, slot_idx};
    if (slot_idx >= 0)
      write_param(plan, param, od_plan_slot(plan, slot_idx), &plan->image[plan->image_bytes / sizeof(uint64_t)]);
    plan->image_bytes += (uint32_t)param_bytes(param);
  }
}

static opdeck_status collect_scalar_checks(opdeck_plan *plan) {
  const opdeck_pack_family *family = plan->binding.family;
  for (int32_t rule_idx = 0; rule_idx < family->num_checks; ++rule_idx) {
    int32_t arg_idx = 0;
    if (!od_is_scalar_rule(family, &family->checks[rule_idx], &arg_idx)) continue;
    if (plan->num_scalar_checks == OD_MAX_SCALAR_CHECKS)
      return od_fail(OPDECK_PACK, "%s has more than %d checks on scalars", family->name, OD_MAX_SCALAR_CHECKS);
    plan->scalar_checks[plan->num_scalar_checks++] = (od_scalar_check){&family->checks[rule_idx], arg_idx};
  }
  return OPDECK_OK;
}

static opdeck_status fill_plan(opdeck_plan *plan, opdeck_ctx *ctx, const opdeck_problem *problem) {
  od_choice choice;
  opdeck_status status = od_select(ctx, problem, &plan->binding, &choice);
  if (status != OPDECK_OK) return status;
  plan->ctx = ctx;
  plan->pack = choice.pack;
  plan->variant_idx = choice.variant_idx;
  plan->variant = &choice.pack->table.variants[choice.variant_idx];
  plan->num_given_args = problem->num_args;
  plan->num_given_leaves = problem->fusion == NULL ? 0 : problem->fusion->num_leaves;
  lay_out_params(plan);
  status = size_workspace(plan);
  return status == OPDECK_OK ? collect_scalar_checks(plan) : status;
}

opdeck_status opdeck_plan_create(opdeck_ctx *ctx, const opdeck_problem *problem, opdeck_plan **plan) {
  od_clear_error();
  if (plan == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "plan: got NULL");
  *plan = NULL;
  if (ctx == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  opdeck_status status = od_check_problem(problem);
  if (status != OPDECK_OK) return status;
  opdeck_plan *made = calloc(1, sizeof *made);
  if (made == NULL) return od_fail(OPDECK_INTERNAL, "out of memory");
  status = fill_plan(made, ctx, problem);
  if (status != OPDECK_OK) {
    free(made);
    return status;
  }
  od_ctx_retain(ctx);
  *plan = made;
  return OPDECK_OK;
}

void opdeck_plan_destroy(opdeck_plan *plan) {
  od_clear_error();
  if (plan == NULL) return;
  od_ctx_release(plan->ctx);
  free(plan);
}

static opdeck_status require_plan(const opdeck_plan *plan) {
  od_clear_error();
  return plan != NULL ? OPDECK_OK : od_fail(OPDECK_INVALID_ARGUMENT, "plan: got NULL");
}

opdeck_status opdeck_plan_info(opdeck_plan *plan, opdeck_kernel_info *info) {
  opdeck_status status = require_plan(plan);
  if (status != OPDECK_OK) return status;
  if (info == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "info: got NULL");
  status = od_check_struct_size("info", info->struct_size, sizeof *info);
  if (status == OPDECK_OK) od_fill_kernel_info(plan->pack, plan->variant_idx, info);
  return status;
}

opdeck_status opdeck_plan_workspace_bytes(opdeck_plan *plan, size_t *bytes) {
  const opdeck_status status = require_plan(plan);
  if (status != OPDECK_OK) return status;
  if (bytes == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "bytes: got NULL");
  *bytes = plan->workspace_bytes;
  return OPDECK_OK;
}

opdeck_status opdeck_plan_prepare(opdeck_plan *plan) {
  const opdeck_status status = require_plan(plan);
  return status == OPDECK_OK ? od_variant_prepare(plan->pack, plan->variant_idx, &plan->ctx->device) : status;
}
