/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.c: the evaluator of `field op values` rows, for what a family checks (bind.c) and a variant accepts (select.c),
 * and for opdeck.core, which evaluates rows that are in no pack.
 */
#include "rules.h"

#include "dtypes.h"

#include <inttypes.h>
#include <string.h>

const opdeck_field *od_find_field(const opdeck_field *fields, int32_t num_fields, const char *name) {
  for (int32_t field_idx = 0; field_idx < num_fields; ++field_idx)
    if (strcmp(fields[field_idx].name, name) == 0) return &fields[field_idx];
  return NULL;
}

int od_rule_is_well_formed(const opdeck_rule *rule) {
  if (rule->field == NULL || rule->op < OPDECK_RULE_EQ || rule->op > OPDECK_RULE_MULTIPLE_OF) return 0;
  if (rule->rhs_field != NULL && rule->num_values == 0) return rule->op != OPDECK_RULE_IN;
  if (rule->values == NULL) return 0;
  if (rule->rhs_field != NULL) return rule->op != OPDECK_RULE_IN && rule->num_values == 1 && rule->values[0] >= 1;
  return rule->op == OPDECK_RULE_IN ? rule->num_values > 0 : rule->num_values == 1;
}

/* `order` is negative, zero or positive as got is less than, equal to or greater than want. */
static int order_holds(int32_t op, int order) {
  switch (op) {
    case OPDECK_RULE_EQ:
    case OPDECK_RULE_IN: return order == 0;
    case OPDECK_RULE_NE: return order != 0;
    case OPDECK_RULE_LT: return order < 0;
    case OPDECK_RULE_LE: return order <= 0;
    case OPDECK_RULE_GT: return order > 0;
    case OPDECK_RULE_GE: return order >= 0;
    default: return 0;
  }
}

static int is_multiple(int64_t got, int64_t of) {
  if (of == 0) return got == 0;
  if (of == -1) return 1; /* INT64_MIN % -1 overflows */
  return got % of == 0;
}

static int value_holds(int32_t op, int64_t got, int64_t want) {
  if (op == OPDECK_RULE_MULTIPLE_OF) return is_multiple(got, want);
  return order_holds(op, (got > want) - (got < want));
}

/* What a rule with rhs_field compares with. */
static int64_t rhs_value(const opdeck_rule *rule, const opdeck_field *rhs) {
  if (rule->num_values == 0) return rhs->value;
  return rhs->value / rule->values[0] + (rhs->value % rule->values[0] > 0);
}

static int rule_holds(const opdeck_rule *rule, int64_t got, const int64_t *wants, int32_t num_wants) {
  for (int32_t want_idx = 0; want_idx < num_wants; ++want_idx)
    if (value_holds(rule->op, got, wants[want_idx])) return 1;
  return 0;
}

static const char *op_words(int32_t op) {
  switch (op) {
    case OPDECK_RULE_NE: return "other than ";
    case OPDECK_RULE_LT: return "< ";
    case OPDECK_RULE_LE: return "<= ";
    case OPDECK_RULE_GT: return "> ";
    case OPDECK_RULE_GE: return ">= ";
    case OPDECK_RULE_MULTIPLE_OF: return "a multiple of ";
    default: return "";
  }
}

/* Dtypes are numbers in the rows and names to people. */
static void add_value(od_text *text, const char *field, int64_t value) {
  const od_dtype *dtype = strncmp(field, "dtype.", 6) == 0 ? od_dtype_of(value) : NULL;
  if (dtype != NULL)
    od_text_add(text, "%s", dtype->name);
  else
    od_text_add(text, "%" PRId64, value);
}

static uint64_t magnitude(int64_t value) {
  return value < 0 ? -(uint64_t)value : (uint64_t)value;
}

static void add_wanted(od_text *text, const opdeck_rule *rule, const int64_t *wants, int32_t num_wants) {
  od_text_add(text, ", want %s", op_words(rule->op));
  if (rule->rhs_field != NULL) od_text_add(text, "%s", rule->rhs_field);
  if (rule->rhs_field != NULL && rule->num_values == 1)
    od_text_add(text, " / %" PRId64 " rounded up", rule->values[0]);
  if (rule->rhs_field != NULL && rule->rhs_plus != 0)
    od_text_add(text, " %c %" PRIu64, rule->rhs_plus > 0 ? '+' : '-', magnitude(rule->rhs_plus));
  if (rule->rhs_field != NULL) od_text_add(text, " = ");
  for (int32_t want_idx = 0; want_idx < num_wants; ++want_idx) {
    if (want_idx > 0) od_text_add(text, "|");
    add_value(text, rule->field, wants[want_idx]);
  }
}

int od_rule_is_decidable(const opdeck_rule *rule, const opdeck_field *fields, int32_t num_fields) {
  const char *names[3] = {rule->field, rule->rhs_field, rule->when_field};
  for (int name_idx = 0; name_idx < 3; ++name_idx)
    if (names[name_idx] != NULL && od_find_field(fields, num_fields, names[name_idx]) == NULL) return 0;
  return 1;
}

static int holds_or_reason(const opdeck_rule *rule, const opdeck_field *fields, int32_t num_fields, od_text *reason) {
  if (!od_rule_is_well_formed(rule)) {
    od_text_add(reason, "malformed rule on %s: op %" PRId32 " with %" PRId32 " values",
                rule->field == NULL ? "no field" : rule->field, rule->op, rule->num_values);
    return 0;
  }
  const opdeck_field *when = rule->when_field == NULL ? NULL : od_find_field(fields, num_fields, rule->when_field);
  if (rule->when_field != NULL && (when == NULL || when->value != rule->when_value)) return 1;
  const opdeck_field *got = od_find_field(fields, num_fields, rule->field);
  const opdeck_field *rhs = rule->rhs_field == NULL ? NULL : od_find_field(fields, num_fields, rule->rhs_field);
  if (got == NULL || (rule->rhs_field != NULL && rhs == NULL)) {
    if (rule->when_field != NULL) return 1;
    od_text_add(reason, "%s: not among the fields of the problem", got == NULL ? rule->field : rule->rhs_field);
    return 0;
  }
  const int64_t rhs_want = rhs == NULL ? 0 : rhs_value(rule, rhs) + rule->rhs_plus;
  const int64_t *wants = rhs == NULL ? rule->values : &rhs_want;
  const int32_t num_wants = rhs == NULL ? rule->num_values : 1;
  if (rule_holds(rule, got->value, wants, num_wants)) return 1;
  od_text_add(reason, "%s: got ", rule->field);
  add_value(reason, rule->field, got->value);
  add_wanted(reason, rule, wants, num_wants);
  if (rule->hint != NULL) od_text_add(reason, " (%s)", rule->hint);
  return 0;
}

int32_t opdeck_rules_first_failure(const opdeck_rule *rules, int32_t num_rules, const opdeck_field *fields,
                                   int32_t num_fields, char *reason, size_t capacity_bytes) {
  od_text text = od_text_in(reason, capacity_bytes);
  int32_t rule_idx = 0;
  while (rule_idx < num_rules && holds_or_reason(&rules[rule_idx], fields, num_fields, &text)) ++rule_idx;
  return rule_idx;
}

int od_scalar_rule_holds(const opdeck_rule *rule, double got, od_text *reason) {
  const double want = (double)rule->values[0];
  if (order_holds(rule->op, (got > want) - (got < want))) return 1;
  od_text_add(reason, "%s: got %g", rule->field, got);
  add_wanted(reason, rule, rule->values, 1);
  return 0;
}
