/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_check.c: holds a pack's tables to what bind.c, select.c and plan.c rely on, once, when the pack is opened;
 * called by loader.c. A pack may come from a third party's build.
 */
#include "pack_check.h"

#include "bind.h"
#include "dtypes.h"
#include "plan.h"
#include "rules.h"
#include "text.h"

#include <string.h>

#if defined(__x86_64__)
#define HOST_TRIPLE "x86_64-unknown-linux-gnu"
#elif defined(__aarch64__)
#define HOST_TRIPLE "aarch64-unknown-linux-gnu"
#else
#error "opdeck runs on x86_64 and aarch64 Linux"
#endif

/* A table's rows and their count: both absent, or both sane. */
static int is_list(const void *rows, int64_t num_rows, int64_t limit) {
  return num_rows >= 0 && num_rows <= limit && (num_rows == 0 || rows != NULL);
}

static const char *fault_of_tensor_row(const opdeck_pack_arg *row) {
  if (row->rank < 0 || row->rank > OD_MAX_RANK) return "rank";
  if (!is_list(row->dtypes, row->num_dtypes, 64) || row->num_dtypes == 0) return "dtypes";
  for (int32_t dtype_idx = 0; dtype_idx < row->num_dtypes; ++dtype_idx)
    if (od_dtype_of(row->dtypes[dtype_idx]) == NULL) return "dtypes";
  for (int32_t dim = 0; row->dims != NULL && dim < row->rank; ++dim)
    if (row->dims[dim] == NULL) return "dims";
  if (row->contiguous_last == OPDECK_TRANSPOSABLE && row->rank < 2) return "contiguous_last";
  const int32_t align = row->align_bytes;
  return align < 1 || align > 4096 || (align & (align - 1)) != 0 ? "align_bytes" : NULL;
}

/* Name of the member that is wrong, or NULL. */
static const char *fault_of_row(const opdeck_pack_arg *row) {
  if (row->name == NULL) return "name";
  if (row->kind == OPDECK_ARG_TENSOR) return row->access < 1 || row->access > 3 ? "access" : fault_of_tensor_row(row);
  if (row->kind != OPDECK_ARG_I32 && row->kind != OPDECK_ARG_F32) return "kind";
  if (row->default_kind == OPDECK_DEFAULT_NONE) return NULL;
  const int is_i32 = row->default_kind == OPDECK_DEFAULT_NUM_SMS;
  if (row->default_kind < OPDECK_DEFAULT_NONE || row->default_kind > OPDECK_DEFAULT_NUM_SMS ||
      row->kind != (is_i32 ? OPDECK_ARG_I32 : OPDECK_ARG_F32))
    return "default_kind";
  return row->default_kind == OPDECK_DEFAULT_RSQRT && row->default_field == NULL ? "default_field" : NULL;
}

static opdeck_status check_rows(const char *where, const opdeck_pack_arg *rows, int32_t num_rows) {
  for (int32_t row_idx = 0; row_idx < num_rows; ++row_idx) {
    const char *fault = fault_of_row(&rows[row_idx]);
    if (fault != NULL)
      return od_fail(OPDECK_PACK, "%s: %s of argument row %d (%s) is not legal", where, fault, row_idx,
                     rows[row_idx].name == NULL ? "unnamed" : rows[row_idx].name);
  }
  return OPDECK_OK;
}

static int has_dim(const opdeck_pack_arg *row, const char *name) {
  for (int32_t dim = 0; row->kind == OPDECK_ARG_TENSOR && row->dims != NULL && dim < row->rank; ++dim)
    if (strcmp(row->dims[dim], name) == 0) return 1;
  return 0;
}

static int is_dim(const opdeck_pack_family *family, const char *name) {
  for (int32_t arg_idx = 0; arg_idx < family->num_args; ++arg_idx)
    if (!family->args[arg_idx].optional && has_dim(&family->args[arg_idx], name)) return 1;
  return 0;
}

static int is_optional_dim(const opdeck_pack_family *family, const char *name) {
  for (int32_t arg_idx = 0; arg_idx < family->num_args; ++arg_idx)
    if (has_dim(&family->args[arg_idx], name)) return 1;
  return 0;
}

static const opdeck_pack_arg *find_arg(const opdeck_pack_family *family, const char *name) {
  for (int32_t arg_idx = 0; arg_idx < family->num_args; ++arg_idx)
    if (strcmp(family->args[arg_idx].name, name) == 0) return &family->args[arg_idx];
  return NULL;
}

static const opdeck_pack_arg *find_required_tensor(const opdeck_pack_family *family, const char *name) {
  const opdeck_pack_arg *row = find_arg(family, name);
  return row != NULL && row->kind == OPDECK_ARG_TENSOR && !row->optional ? row : NULL;
}

/* `also_optional`: whether a symbol that only optional arguments have is one. */
static int is_dtype_symbol(const opdeck_pack_family *family, const char *symbol, int also_optional) {
  for (int32_t arg_idx = 0; arg_idx < family->num_args; ++arg_idx) {
    const opdeck_pack_arg *row = &family->args[arg_idx];
    if (row->optional && !also_optional) continue;
    if (row->dtype_symbol != NULL && strcmp(row->dtype_symbol, symbol) == 0) return 1;
  }
  return 0;
}

static int is_product(const opdeck_pack_family *family, const char *name) {
  for (int32_t idx = 0; idx < family->num_products; ++idx)
    if (strcmp(family->products[idx].name, name) == 0) return 1;
  return 0;
}

/* Whether every problem of the family has this field; fields of optional tensors' own dims are no such. */
static int is_field(const opdeck_pack_family *family, const char *name) {
  if (strcmp(name, "arch") == 0 || strcmp(name, "num_sms") == 0 || is_dim(family, name)) return 1;
  if (is_product(family, name)) return 1;
  if (strncmp(name, "dtype.", 6) == 0) return is_dtype_symbol(family, name + 6, 0);
  if (strncmp(name, "pitch.", 6) == 0) {
    const opdeck_pack_arg *row = find_required_tensor(family, name + 6);
    return row != NULL && od_has_pitch(row);
  }
  if (strncmp(name, "transposed.", 11) == 0) {
    const opdeck_pack_arg *row = find_required_tensor(family, name + 11);
    return row != NULL && row->contiguous_last == OPDECK_TRANSPOSABLE;
  }
  if (strncmp(name, "has.", 4) != 0) return 0;
  const opdeck_pack_arg *row = find_arg(family, name + 4);
  return row != NULL && row->optional;
}

int od_is_scalar_rule(const opdeck_pack_family *family, const opdeck_rule *rule, int32_t *arg_idx) {
  const opdeck_pack_arg *row = find_arg(family, rule->field);
  if (row == NULL || row->kind == OPDECK_ARG_TENSOR || is_dim(family, rule->field)) return 0;
  if (arg_idx != NULL) *arg_idx = (int32_t)(row - family->args);
  return 1;
}

static int is_legal_scalar_rule(const opdeck_pack_family *family, const opdeck_rule *rule) {
  return od_is_scalar_rule(family, rule, NULL) && rule->rhs_field == NULL && rule->op != OPDECK_RULE_IN &&
         rule->op != OPDECK_RULE_MULTIPLE_OF && rule->when_field == NULL;
}

/* Whether a rule may name a field: a conditional one also what only some problems have. */
static int may_name(const opdeck_pack_family *family, const opdeck_rule *rule, const char *name) {
  if (is_field(family, name)) return 1;
  if (rule->when_field == NULL) return 0;
  return is_optional_dim(family, name) || (strncmp(name, "dtype.", 6) == 0 && is_dtype_symbol(family, name + 6, 1));
}

static opdeck_status check_rule(const char *where, const opdeck_pack_family *family, const opdeck_rule *rule) {
  if (!od_rule_is_well_formed(rule))
    return od_fail(OPDECK_PACK, "%s: a rule on %s is malformed", where, rule->field == NULL ? "no field" : rule->field);
  if (rule->when_field != NULL && !is_field(family, rule->when_field))
    return od_fail(OPDECK_PACK, "%s: a rule names %s, which is no field of %s", where, rule->when_field, family->name);
  if (rule->rhs_field != NULL && !may_name(family, rule, rule->rhs_field))
    return od_fail(OPDECK_PACK, "%s: a rule names %s, which is no field of %s", where, rule->rhs_field, family->name);
  if (may_name(family, rule, rule->field)) return OPDECK_OK;
  return od_fail(OPDECK_PACK, "%s: a rule names %s, which is no field of %s", where, rule->field, family->name);
}

static opdeck_status check_rules(const char *where, const opdeck_pack_family *family, const opdeck_rule *rules,
                                 int32_t num_rules) {
  opdeck_status status = OPDECK_OK;
  for (int32_t rule_idx = 0; status == OPDECK_OK && rule_idx < num_rules; ++rule_idx)
    status = check_rule(where, family, &rules[rule_idx]);
  return status;
}

static opdeck_status check_defaults(const char *where, const opdeck_pack_family *family) {
  for (int32_t arg_idx = 0; arg_idx < family->num_args; ++arg_idx) {
    const opdeck_pack_arg *row = &family->args[arg_idx];
    if (row->kind == OPDECK_ARG_TENSOR && row->dims == NULL && row->rank > 0)
      return od_fail(OPDECK_PACK, "%s: argument %s has no dims", where, row->name);
    if (row->kind != OPDECK_ARG_TENSOR && row->default_kind == OPDECK_DEFAULT_RSQRT &&
        !is_dim(family, row->default_field))
      return od_fail(OPDECK_PACK, "%s: the default of %s names %s, which is no dim", where, row->name,
                     row->default_field);
  }
  return OPDECK_OK;
}

static int is_size(const opdeck_pack_family *family, const char *name) {
  for (int32_t idx = 0; idx < family->num_sizes; ++idx)
    if (strcmp(family->sizes[idx].name, name) == 0) return 1;
  return 0;
}

/* Whether a product before it has its name: then it may count what not every problem has. */
static int is_further_row(const opdeck_pack_family *family, int32_t product_idx) {
  for (int32_t idx = 0; idx < product_idx; ++idx)
    if (strcmp(family->products[idx].name, family->products[product_idx].name) == 0) return 1;
  return 0;
}

static opdeck_status check_products(const char *where, const opdeck_pack_family *family) {
  if (!is_list(family->products, family->num_products, OD_MAX_FIELDS))
    return od_fail(OPDECK_PACK, "%s: its products are missing", where);
  for (int32_t idx = 0; idx < family->num_products; ++idx) {
    const opdeck_pack_product *product = &family->products[idx];
    if (product->name == NULL || !is_list(product->counts, product->num_counts, INT32_MAX))
      return od_fail(OPDECK_PACK, "%s: product %d is malformed", where, idx);
    for (int32_t count_idx = 0; count_idx < product->num_counts; ++count_idx) {
      const opdeck_pack_count *count = &product->counts[count_idx];
      const int is_counted = count->field != NULL && (is_dim(family, count->field) || (is_further_row(family, idx) &&
                                                                                       is_size(family, count->field)));
      if (!is_counted || count->divisor < 1)
        return od_fail(OPDECK_PACK, "%s: count %d of product %s is malformed", where, count_idx, product->name);
    }
  }
  return OPDECK_OK;
}

static opdeck_status check_sizes(const char *where, const opdeck_pack_family *family) {
  if (!is_list(family->sizes, family->num_sizes, OD_MAX_FIELDS))
    return od_fail(OPDECK_PACK, "%s: its sizes are missing", where);
  opdeck_status status = OPDECK_OK;
  for (int32_t idx = 0; status == OPDECK_OK && idx < family->num_sizes; ++idx) {
    const opdeck_pack_size *size = &family->sizes[idx];
    const opdeck_pack_count *count = &size->count;
    const int is_named = size->name != NULL && count->field != NULL && is_optional_dim(family, count->field);
    if (!is_named || count->divisor < 1 || !is_list(size->rules, size->num_rules, INT32_MAX))
      return od_fail(OPDECK_PACK, "%s: size %d is malformed", where, idx);
    status = check_rules(where, family, size->rules, size->num_rules);
  }
  return status;
}

static opdeck_status check_family(const char *path, const opdeck_pack_family *family) {
  if (family->name == NULL) return od_fail(OPDECK_PACK, "%s: a family has no name", path);
  char where[PATH_MAX + 64];
  od_text text = od_text_in(where, sizeof where);
  od_text_add(&text, "%s: family %s", path, family->name);
  if (!is_list(family->args, family->num_args, OD_MAX_ARGS))
    return od_fail(OPDECK_PACK, "%s: got %d arguments, want 0..%d", where, family->num_args, OD_MAX_ARGS);
  if (!is_list(family->checks, family->num_checks, INT32_MAX) || !is_list(family->empty, family->num_empty, INT32_MAX))
    return od_fail(OPDECK_PACK, "%s: its rules are missing", where);
  opdeck_status status = check_rows(where, family->args, family->num_args);
  if (status == OPDECK_OK) status = check_defaults(where, family);
  if (status == OPDECK_OK) status = check_sizes(where, family);
  if (status == OPDECK_OK) status = check_products(where, family);
  for (int32_t rule_idx = 0; status == OPDECK_OK && rule_idx < family->num_checks; ++rule_idx) {
    const opdeck_rule *rule = &family->checks[rule_idx];
    if (rule->field != NULL && od_rule_is_well_formed(rule) && is_legal_scalar_rule(family, rule)) continue;
    status = check_rule(where, family, rule);
  }
  for (int32_t rule_idx = 0; status == OPDECK_OK && rule_idx < family->num_empty; ++rule_idx)
    if (family->empty[rule_idx].when_field != NULL)
      return od_fail(OPDECK_PACK, "%s: a rule of no work is conditional", where); /* it would hold by not applying */
  return status == OPDECK_OK ? check_rules(where, family, family->empty, family->num_empty) : status;
}

static opdeck_status check_workspace(const char *where, const opdeck_pack_family *family,
                                     const opdeck_pack_variant *variant) {
  if (!is_list(variant->workspace, variant->num_terms, INT32_MAX))
    return od_fail(OPDECK_PACK, "%s: the terms of its workspace are missing", where);
  for (int32_t term_idx = 0; term_idx < variant->num_terms; ++term_idx) {
    const opdeck_pack_term *term = &variant->workspace[term_idx];
    if (term->factor_bytes < 1 || !is_list(term->counts, term->num_counts, INT32_MAX))
      return od_fail(OPDECK_PACK, "%s: term %d of its workspace is malformed", where, term_idx);
    for (int32_t count_idx = 0; count_idx < term->num_counts; ++count_idx) {
      const opdeck_pack_count *count = &term->counts[count_idx];
      const int is_named = count->field != NULL && (is_field(family, count->field) || is_optional_dim(family, count->field));
      if (!is_named || count->divisor < 1)
        return od_fail(OPDECK_PACK, "%s: count %d of term %d of its workspace is malformed", where, count_idx,
                       term_idx);
    }
  }
  return OPDECK_OK;
}

static int are_dims_in_rank(const int32_t *dims, int32_t num_dims, int32_t rank) {
  for (int32_t dim_idx = 0; dim_idx < num_dims; ++dim_idx)
    if (dims[dim_idx] < 0 || dims[dim_idx] >= rank) return 0;
  return 1;
}

static opdeck_status check_param(const char *where, const opdeck_pack_family *family,
                                 const opdeck_pack_variant *variant, int32_t param_idx) {
  const opdeck_pack_param *param = &variant->params[param_idx];
  if (param->source == OPDECK_SOURCE_WORKSPACE) {
    if (variant->num_terms == 0)
      return od_fail(OPDECK_PACK, "%s: parameter %d is the workspace, but the variant needs none", where, param_idx);
    if (param->kind == OPDECK_ARG_TENSOR && param->num_shape_dims == 0 && param->num_stride_dims == 0) return OPDECK_OK;
    return od_fail(OPDECK_PACK, "%s: parameter %d, the workspace, is no tensor of static layout", where, param_idx);
  }
  const int64_t leaf_idx = -1 - (int64_t)param->source;
  if (param->source >= family->num_args || leaf_idx >= variant->num_leaves)
    return od_fail(OPDECK_PACK, "%s: parameter %d has source %d", where, param_idx, param->source);
  const opdeck_pack_arg *row = param->source >= 0 ? &family->args[param->source] : &variant->leaves[leaf_idx];
  if (param->kind != row->kind)
    return od_fail(OPDECK_PACK, "%s: parameter %d is of kind %d, %s of kind %d", where, param_idx, param->kind,
                   row->name, row->kind);
  if (row->kind != OPDECK_ARG_TENSOR) return OPDECK_OK;
  if (!is_list(param->shape_dims, param->num_shape_dims, row->rank) ||
      !is_list(param->stride_dims, param->num_stride_dims, row->rank) ||
      !are_dims_in_rank(param->shape_dims, param->num_shape_dims, row->rank) ||
      !are_dims_in_rank(param->stride_dims, param->num_stride_dims, row->rank))
    return od_fail(OPDECK_PACK, "%s: parameter %d lists dims that %s does not have", where, param_idx, row->name);
  return OPDECK_OK;
}

static opdeck_status check_params(const char *where, const opdeck_pack_family *family,
                                  const opdeck_pack_variant *variant) {
  if (!is_list(variant->params, variant->num_params, OD_MAX_PARAMS))
    return od_fail(OPDECK_PACK, "%s: got %d parameters, want 0..%d", where, variant->num_params, OD_MAX_PARAMS);
  opdeck_status status = OPDECK_OK;
  for (int32_t param_idx = 0; status == OPDECK_OK && param_idx < variant->num_params; ++param_idx)
    status = check_param(where, family, variant, param_idx);
  if (status == OPDECK_OK && od_params_bytes(variant) > OD_MAX_PARAM_BYTES)
    return od_fail(OPDECK_PACK, "%s: its parameters take %zu bytes, want at most %d", where, od_params_bytes(variant),
                   OD_MAX_PARAM_BYTES);
  return status;
}

static const char *fault_of_variant(const opdeck_pack_table *table, const opdeck_pack_variant *variant) {
  if (variant->arch == NULL) return "arch";
  if (variant->fusion == NULL) return "fusion";
  if (variant->config == NULL) return "config";
  if (variant->cubin_sha256 == NULL || strlen(variant->cubin_sha256) != 64) return "cubin_sha256";
  if (variant->ptx == NULL) return "ptx";
  if (variant->cuda_init == NULL || variant->cuda_load_to_device == NULL || variant->entry == NULL)
    return "entry points";
  if (variant->family_idx < 0 || variant->family_idx >= table->num_families) return "family_idx";
  if (!is_list(variant->accept, variant->num_accept, INT32_MAX)) return "accept";
  if (!is_list(variant->prefer, variant->num_prefer, INT32_MAX)) return "prefer";
  return is_list(variant->leaves, variant->num_leaves, OD_MAX_LEAVES) ? NULL : "leaves";
}

static opdeck_status check_variant(const char *path, const opdeck_pack_table *table,
                                   const opdeck_pack_variant *variant) {
  if (variant->id == NULL) return od_fail(OPDECK_PACK, "%s: a variant has no id", path);
  char where[PATH_MAX + 256];
  od_text text = od_text_in(where, sizeof where);
  od_text_add(&text, "%s: variant %s", path, variant->id);
  const char *fault = fault_of_variant(table, variant);
  if (fault != NULL) return od_fail(OPDECK_PACK, "%s: %s: missing or not legal", where, fault);
  const opdeck_pack_family *family = &table->families[variant->family_idx];
  opdeck_status status = check_rows(where, variant->leaves, variant->num_leaves);
  if (status == OPDECK_OK) status = check_rules(where, family, variant->accept, variant->num_accept);
  if (status == OPDECK_OK) status = check_rules(where, family, variant->prefer, variant->num_prefer);
  if (status == OPDECK_OK) status = check_workspace(where, family, variant);
  return status == OPDECK_OK ? check_params(where, family, variant) : status;
}

opdeck_status od_pack_check(const char *path, const opdeck_pack_table *table) {
  if (table->abi != OPDECK_PACK_ABI)
    return od_fail(OPDECK_VERSION, "%s: got pack ABI %u, want %d (libopdeck %d.%d)", path, (unsigned)table->abi,
                   OPDECK_PACK_ABI, OPDECK_VERSION_MAJOR, OPDECK_VERSION_MINOR);
  if (table->host_triple == NULL || strcmp(table->host_triple, HOST_TRIPLE) != 0)
    return od_fail(OPDECK_VERSION, "%s: got host code for %s, want %s", path,
                   table->host_triple == NULL ? "no host" : table->host_triple, HOST_TRIPLE);
  if (!is_list(table->families, table->num_families, INT32_MAX) ||
      !is_list(table->variants, table->num_variants, INT32_MAX) || table->num_variants == 0)
    return od_fail(OPDECK_PACK, "%s: it has no kernels", path);
  opdeck_status status = OPDECK_OK;
  for (int32_t family_idx = 0; status == OPDECK_OK && family_idx < table->num_families; ++family_idx)
    status = check_family(path, &table->families[family_idx]);
  for (int32_t variant_idx = 0; status == OPDECK_OK && variant_idx < table->num_variants; ++variant_idx)
    status = check_variant(path, table, &table->variants[variant_idx]);
  return status;
}
