/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.c: binds a problem to a family's argument rows: names, kinds, layouts, dims and type symbols that must agree,
 * the fields for rules, and the family's checks. Called by select.c.
 */
#include "bind.h"

#include "dtypes.h"
#include "plan.h"
#include "rules.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  MAX_NAME_BYTES = 128
};

const char *od_fusion_name(const opdeck_problem *problem) {
  return problem->fusion == NULL ? "none" : problem->fusion->name;
}

static const char *kind_name(int32_t kind) {
  switch (kind) {
    case OPDECK_ARG_TENSOR: return "a tensor";
    case OPDECK_ARG_I32: return "an int32";
    case OPDECK_ARG_F32: return "a float32";
    default: return "an unknown kind";
  }
}

static opdeck_status check_given(const char *what, const opdeck_arg *given, uint32_t num_given, uint32_t limit) {
  if (num_given > limit)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %u of them, want at most %u", what, (unsigned)num_given,
                   (unsigned)limit);
  if (num_given > 0 && given == NULL)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got NULL, want %u of them", what, (unsigned)num_given);
  for (uint32_t given_idx = 0; given_idx < num_given; ++given_idx) {
    const char *name = given[given_idx].name;
    if (name == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "%s[%u].name: got NULL", what, (unsigned)given_idx);
    if (strnlen(name, MAX_NAME_BYTES) == MAX_NAME_BYTES)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s[%u].name: got %d bytes or more, want fewer", what,
                     (unsigned)given_idx, MAX_NAME_BYTES);
  }
  return OPDECK_OK;
}

opdeck_status od_check_problem(const opdeck_problem *problem) {
  if (problem == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "problem: got NULL");
  opdeck_status status = od_check_struct_size("problem", problem->struct_size, sizeof *problem);
  if (status != OPDECK_OK) return status;
  if (problem->family == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "problem.family: got NULL, want a name");
  status = check_given("problem.args", problem->args, problem->num_args, OD_MAX_ARGS);
  const opdeck_fusion *fusion = problem->fusion;
  if (status != OPDECK_OK || fusion == NULL) return status;
  status = od_check_struct_size("fusion", fusion->struct_size, sizeof *fusion);
  if (status != OPDECK_OK) return status;
  if (fusion->name == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "fusion.name: got NULL, want a name");
  return check_given("fusion.leaves", fusion->leaves, fusion->num_leaves, OD_MAX_LEAVES);
}

static void add_names(od_text *text, const od_slot *slots, int32_t num_slots) {
  for (int32_t slot_idx = 0; slot_idx < num_slots; ++slot_idx)
    od_text_add(text, "%s%s", slot_idx == 0 ? "" : ", ", slots[slot_idx].row->name);
}

static void init_slots(od_slot *slots, const opdeck_pack_arg *rows, int32_t num_rows) {
  for (int32_t row_idx = 0; row_idx < num_rows; ++row_idx) slots[row_idx] = (od_slot){&rows[row_idx], -1, {0}};
}

static od_slot *find_slot(od_slot *slots, int32_t num_slots, const char *name) {
  for (int32_t slot_idx = 0; slot_idx < num_slots; ++slot_idx)
    if (strcmp(slots[slot_idx].row->name, name) == 0) return &slots[slot_idx];
  return NULL;
}

/* Gives each slot its argument by name. `whose` is a family or a fusion. */
static opdeck_status assign(const char *whose, const opdeck_arg *given, uint32_t num_given, od_slot *slots,
                            int32_t num_slots) {
  char names[1024];
  od_text text = od_text_in(names, sizeof names);
  add_names(&text, slots, num_slots);
  for (uint32_t given_idx = 0; given_idx < num_given; ++given_idx) {
    const opdeck_arg *arg = &given[given_idx];
    od_slot *slot = find_slot(slots, num_slots, arg->name);
    if (slot == NULL)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got argument \"%s\", want %s%s", whose, arg->name,
                     num_slots == 0 ? "none" : "one of ", names);
    if (slot->given_idx >= 0)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: argument %s is given twice", whose, arg->name);
    if (arg->kind != slot->row->kind)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %s (kind %" PRId32 "), want %s", arg->name, kind_name(arg->kind),
                     arg->kind, kind_name(slot->row->kind));
    slot->given_idx = (int32_t)given_idx;
  }
  for (int32_t slot_idx = 0; slot_idx < num_slots; ++slot_idx)
    if (slots[slot_idx].given_idx < 0 && !slots[slot_idx].row->optional)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: %s is missing; its arguments are %s", whose,
                     slots[slot_idx].row->name, names);
  return OPDECK_OK;
}

static opdeck_status add_field(od_binding *binding, const char *name, int64_t value) {
  if (binding->num_fields == OD_MAX_FIELDS)
    return od_fail(OPDECK_PACK, "%s has more than %d fields", binding->family->name, OD_MAX_FIELDS);
  binding->fields[binding->num_fields++] = (opdeck_field){name, value};
  return OPDECK_OK;
}

static opdeck_status add_composed_field(od_binding *binding, const char *prefix, const char *name, int64_t value) {
  const uint32_t left = OD_NAME_POOL_BYTES - binding->names_bytes;
  od_text text = od_text_in(binding->names + binding->names_bytes, left);
  od_text_add(&text, "%s%s", prefix, name);
  if (text.needed_bytes > left)
    return od_fail(OPDECK_PACK, "the field names of %s take more than %d bytes", binding->family->name,
                   OD_NAME_POOL_BYTES);
  binding->names_bytes += (uint32_t)text.needed_bytes;
  return add_field(binding, text.data, value);
}

/* The argument whose dim bound a name: the first that has it. NULL for a name that is no dim. */
static const char *binder_of_dim(const od_binding *binding, const char *dim_name) {
  for (int32_t arg_idx = 0; arg_idx < binding->num_args; ++arg_idx) {
    const od_slot *slot = &binding->args[arg_idx];
    for (int32_t dim = 0; slot->given_idx >= 0 && dim < slot->layout.rank; ++dim)
      if (strcmp(slot->row->dims[dim], dim_name) == 0) return slot->row->name;
  }
  return NULL;
}

static opdeck_status bind_dims(od_binding *binding, const od_slot *slot) {
  opdeck_status status = OPDECK_OK;
  for (int32_t dim = 0; status == OPDECK_OK && dim < slot->layout.rank; ++dim) {
    const char *name = slot->row->dims[dim];
    const int64_t extent = slot->layout.shape[dim];
    const opdeck_field *bound = od_find_field(binding->fields, binding->num_fields, name);
    if (bound == NULL) {
      status = add_field(binding, name, extent);
    } else if (bound->value != extent) {
      char shape[160];
      od_format_extents(slot->layout.shape, slot->layout.rank, shape, sizeof shape);
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %s = %" PRId64 " (shape %s), want %" PRId64 " as in %s",
                     slot->row->name, name, extent, shape, bound->value, binder_of_dim(binding, name));
    }
  }
  return status;
}

static opdeck_status bind_dtype(od_binding *binding, const od_slot *slot) {
  const char *symbol = slot->row->dtype_symbol;
  if (symbol == NULL) return OPDECK_OK;
  for (const od_slot *earlier = binding->args; earlier != slot; ++earlier) {
    if (earlier->given_idx < 0 || earlier->row->dtype_symbol == NULL) continue;
    if (strcmp(earlier->row->dtype_symbol, symbol) != 0) continue;
    if (earlier->layout.dtype == slot->layout.dtype) return OPDECK_OK;
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got dtype %s, want %s as in %s", slot->row->name,
                   od_dtype_of(slot->layout.dtype)->name, od_dtype_of(earlier->layout.dtype)->name, earlier->row->name);
  }
  return add_composed_field(binding, "dtype.", symbol, slot->layout.dtype);
}

static opdeck_status run_check(const od_binding *binding, const opdeck_rule *rule) {
  char reason[512];
  if (opdeck_rules_first_failure(rule, 1, binding->fields, binding->num_fields, reason, sizeof reason) == 1)
    return OPDECK_OK;
  const char *binder = binder_of_dim(binding, rule->field);
  const char *got = strstr(reason, ": got ");
  if (binder == NULL || got == NULL)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: %s", binding->family->name, reason);
  return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %s = %s", binder, rule->field, got + strlen(": got "));
}

static int has_dim(const opdeck_pack_arg *row, const char *name) {
  for (int32_t dim = 0; dim < row->rank; ++dim)
    if (strcmp(row->dims[dim], name) == 0) return 1;
  return 0;
}

/* At once, so that an argument that differs from a wrong one is not told to be the wrong one. */
static opdeck_status check_dims(const od_binding *binding, const opdeck_pack_arg *row) {
  const opdeck_pack_family *family = binding->family;
  opdeck_status status = OPDECK_OK;
  for (int32_t rule_idx = 0; status == OPDECK_OK && rule_idx < family->num_checks; ++rule_idx) {
    const opdeck_rule *rule = &family->checks[rule_idx];
    if (has_dim(row, rule->field) && od_rule_is_decidable(rule, binding->fields, binding->num_fields))
      status = run_check(binding, rule);
  }
  return status;
}

static opdeck_status bind_tensors(od_binding *binding, const opdeck_problem *problem, const od_device *device) {
  opdeck_status status = OPDECK_OK;
  for (int32_t arg_idx = 0; status == OPDECK_OK && arg_idx < binding->num_args; ++arg_idx) {
    od_slot *slot = &binding->args[arg_idx];
    if (slot->row->optional) status = add_composed_field(binding, "has.", slot->row->name, slot->given_idx >= 0);
    if (status != OPDECK_OK || slot->given_idx < 0 || slot->row->kind != OPDECK_ARG_TENSOR) continue;
    status = od_layout_of(slot->row, problem->args[slot->given_idx].value.tensor, device, &slot->layout);
    if (status == OPDECK_OK) status = bind_dtype(binding, slot);
    if (status == OPDECK_OK) status = bind_dims(binding, slot);
    if (status == OPDECK_OK) status = check_dims(binding, slot->row);
    if (status == OPDECK_OK && slot->row->contiguous_last == OPDECK_TRANSPOSABLE)
      status = add_composed_field(binding, "transposed.", slot->row->name, slot->layout.is_transposed);
    if (status == OPDECK_OK && slot->layout.has_pitch)
      status = add_composed_field(binding, "pitch.", slot->row->name, od_pitch_elems(&slot->layout));
  }
  return status;
}

static opdeck_status run_checks(const od_binding *binding) {
  const opdeck_pack_family *family = binding->family;
  opdeck_status status = OPDECK_OK;
  for (int32_t rule_idx = 0; status == OPDECK_OK && rule_idx < family->num_checks; ++rule_idx) {
    const opdeck_rule *rule = &family->checks[rule_idx];
    if (!od_is_scalar_rule(family, rule, NULL)) status = run_check(binding, rule); /* launch.c checks those */
  }
  return status;
}

static int64_t ceil_div(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0);
}

int64_t od_count_of(const od_binding *binding, const opdeck_pack_count *count) {
  const opdeck_field *field = od_find_field(binding->fields, binding->num_fields, count->field);
  return ceil_div(field->value, count->divisor);
}

/* Whether the problem has a size of that name (not NUL-terminated), and which. */
static int find_size(const od_binding *binding, const char *name, size_t name_bytes, int64_t *value) {
  const opdeck_pack_family *family = binding->family;
  for (int32_t idx = 0; idx < family->num_sizes; ++idx) {
    const opdeck_pack_size *size = &family->sizes[idx];
    if (strlen(size->name) != name_bytes || memcmp(size->name, name, name_bytes) != 0) continue;
    if (od_find_field(binding->fields, binding->num_fields, size->count.field) == NULL) continue;
    if (opdeck_rules_first_failure(size->rules, size->num_rules, binding->fields, binding->num_fields, NULL, 0) !=
        size->num_rules)
      continue;
    *value = od_count_of(binding, &size->count) + size->plus;
    return 1;
  }
  return 0;
}

/* What a count of a product is of: a field, or a size of the problem. 0 where there is neither. */
static int find_counted(const od_binding *binding, const char *name, int64_t *value) {
  const opdeck_field *field = od_find_field(binding->fields, binding->num_fields, name);
  if (field == NULL) return find_size(binding, name, strlen(name), value);
  *value = field->value;
  return 1;
}

/* 0 where a size is not known. */
static int64_t product_of(const od_binding *binding, const opdeck_pack_product *product) {
  int64_t product_value = 1;
  int has_overflow = 0;
  for (int32_t count_idx = 0; count_idx < product->num_counts; ++count_idx) {
    const opdeck_pack_count *count = &product->counts[count_idx];
    int64_t value = 0;
    if (!find_counted(binding, count->field, &value) || value == 0) return 0;
    has_overflow |= __builtin_mul_overflow(product_value, ceil_div(value, count->divisor), &product_value);
  }
  return has_overflow ? INT64_MAX : product_value;
}

static opdeck_status add_products(od_binding *binding) {
  const opdeck_pack_family *family = binding->family;
  opdeck_status status = OPDECK_OK;
  for (int32_t idx = 0; status == OPDECK_OK && idx < family->num_products; ++idx) {
    const char *name = family->products[idx].name;
    const int64_t value = product_of(binding, &family->products[idx]);
    opdeck_field *bound = NULL;
    for (int32_t field_idx = 0; field_idx < binding->num_fields; ++field_idx)
      if (strcmp(binding->fields[field_idx].name, name) == 0) bound = &binding->fields[field_idx];
    if (bound == NULL)
      status = add_field(binding, name, value);
    else if (value > bound->value)
      bound->value = value;
  }
  return status;
}

static int is_empty_problem(const od_binding *binding) {
  const opdeck_pack_family *family = binding->family;
  for (int32_t rule_idx = 0; rule_idx < family->num_empty; ++rule_idx)
    if (opdeck_rules_first_failure(&family->empty[rule_idx], 1, binding->fields, binding->num_fields, NULL, 0) == 1)
      return 1;
  return 0;
}

opdeck_status od_bind_args(const opdeck_pack_family *family, const opdeck_problem *problem, const od_device *device,
                           od_binding *binding) {
  memset(binding, 0, sizeof *binding);
  binding->family = family;
  binding->num_args = family->num_args;
  init_slots(binding->args, family->args, family->num_args);
  opdeck_status status = assign(family->name, problem->args, problem->num_args, binding->args, binding->num_args);
  if (status == OPDECK_OK) status = add_field(binding, "arch", device->arch_number);
  if (status == OPDECK_OK) status = add_field(binding, "num_sms", device->num_sms);
  if (status == OPDECK_OK) status = bind_tensors(binding, problem, device);
  if (status == OPDECK_OK) status = run_checks(binding);
  if (status == OPDECK_OK) status = add_products(binding);
  if (status == OPDECK_OK) binding->is_empty = is_empty_problem(binding);
  return status;
}

/* Whether a leaf's extent is one of those that `dim` names; writes which are, "batch = 2|1". */
static int is_wanted_extent(const od_binding *binding, const char *dim, int64_t extent, od_text *wanted) {
  int is_wanted = 0;
  for (const char *word = dim; *word != '\0';) {
    const size_t word_bytes = strcspn(word, "|");
    int64_t value = extent;
    if (*word >= '0' && *word <= '9') {
      value = strtoll(word, NULL, 10);
      od_text_add(wanted, "%.*s", (int)word_bytes, word);
    } else {
      find_size(binding, word, word_bytes, &value);
      od_text_add(wanted, "%.*s = %" PRId64, (int)word_bytes, word, value);
    }
    is_wanted |= value == extent;
    word += word_bytes;
    if (*word == '|') od_text_add(wanted, "%c", *word++);
  }
  return is_wanted;
}

static opdeck_status check_leaf_dims(const od_binding *binding, const od_slot *slot) {
  for (int32_t dim = 0; slot->row->dims != NULL && dim < slot->layout.rank; ++dim) {
    char wanted[160], shape[160];
    od_text text = od_text_in(wanted, sizeof wanted);
    const int64_t extent = slot->layout.shape[dim];
    if (is_wanted_extent(binding, slot->row->dims[dim], extent, &text)) continue;
    od_format_extents(slot->layout.shape, slot->layout.rank, shape, sizeof shape);
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %" PRId64 " in dim %" PRId32 " of shape %s, want %s",
                   slot->row->name, extent, dim, shape, wanted);
  }
  return OPDECK_OK;
}

opdeck_status od_bind_leaves(const opdeck_pack_variant *variant, const opdeck_problem *problem, const od_device *device,
                             od_binding *binding) {
  const opdeck_fusion *fusion = problem->fusion;
  binding->num_leaves = variant->num_leaves;
  init_slots(binding->leaves, variant->leaves, variant->num_leaves);
  opdeck_status status = assign(variant->fusion, fusion == NULL ? NULL : fusion->leaves,
                                fusion == NULL ? 0 : fusion->num_leaves, binding->leaves, binding->num_leaves);
  for (int32_t leaf_idx = 0; status == OPDECK_OK && leaf_idx < binding->num_leaves; ++leaf_idx) {
    od_slot *slot = &binding->leaves[leaf_idx];
    if (slot->row->kind != OPDECK_ARG_TENSOR) continue;
    status = od_layout_of(slot->row, fusion->leaves[slot->given_idx].value.tensor, device, &slot->layout);
    if (status == OPDECK_OK) status = check_leaf_dims(binding, slot);
  }
  return status;
}
