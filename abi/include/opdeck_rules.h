/* SPDX-License-Identifier: Apache-2.0
 *
 * opdeck_rules.h: rows of `field op values`, the one form in which opdeck states what an operator checks and what a
 * variant accepts, and their one evaluator. Packs hold such rows; Python evaluates rows that are in no pack yet. Not
 * for C hosts, who need opdeck.h alone. C99, also read by cffi.
 */
#ifndef OPDECK_RULES_H
#define OPDECK_RULES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum opdeck_rule_op {
  OPDECK_RULE_EQ = 1,
  OPDECK_RULE_NE = 2,
  OPDECK_RULE_IN = 3,
  OPDECK_RULE_LT = 4,
  OPDECK_RULE_LE = 5,
  OPDECK_RULE_GT = 6,
  OPDECK_RULE_GE = 7,
  OPDECK_RULE_MULTIPLE_OF = 8
} opdeck_rule_op;

/* `field op values` or `field op rhs_field + rhs_plus`; with rhs_field and one value, `field op ceil(rhs_field / value) +
 * rhs_plus`. Fields are the dims that the arguments bind (b, sq, ...), "dtype.X" (the opdeck_pack_dtype of type symbol
 * X), "has.ARG" (1: the optional ARG is given), "pitch.ARG" (elements from one row to the next, of an ARG whose elements
 * may take less than a byte), "arch" (90, 100, 103), "num_sms". */
typedef struct opdeck_rule {
  const char *field;
  int32_t op; /* opdeck_rule_op */
  int32_t num_values;
  const int64_t *values;
  const char *rhs_field;  /* NULL: compare with values; else values has no element, or the divisor, at least 1 */
  int64_t rhs_plus;       /* the sum must have 64 bits */
  const char *when_field; /* not NULL: the rule is about problems alone in which this field has the value when_value, and
                             in which every field that it names is there; about others it says nothing, and holds */
  int64_t when_value;
  const char *hint; /* what a reason says besides, in parentheses: who serves problems of which the rule does not hold;
                       NULL: nothing */
} opdeck_rule;

typedef struct opdeck_field {
  const char *name;
  int64_t value;
} opdeck_field;

/* Index of the first rule that does not hold, or num_rules when all hold. The rule's reason, "dqk: got 96, want
 * 64|128", goes to `reason` (at most capacity_bytes, NUL-terminated; NULL with 0: not wanted). A rule whose field is
 * not among `fields`, or which is malformed, does not hold, and its reason says so. */
int32_t opdeck_rules_first_failure(const opdeck_rule *rules, int32_t num_rules, const opdeck_field *fields,
                                   int32_t num_fields, char *reason, size_t capacity_bytes);

#ifdef __cplusplus
}
#endif
#endif
