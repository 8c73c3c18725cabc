/* SPDX-License-Identifier: Apache-2.0
 *
 * test_rules.c: the evaluator of rules against the plain meaning of each operator, over a grid of values with the
 * extremes of int64, and the text of its reasons.
 */
#include "check.h"
#include "opdeck_rules.h"

#include <stdint.h>

static const int64_t grid[] = {INT64_MIN, INT64_MIN + 1, -128,          -3,       -1, 0, 1, 2, 3, 8, 64,
                               96,        128,           INT64_MAX - 1, INT64_MAX};
enum {
  GRID_SIZE = sizeof grid / sizeof grid[0],
  NUM_FIELDS = 2
};

static int is_multiple_slowly(int64_t got, int64_t of) {
  if (of == 0) return got == 0;
  const uint64_t magnitude = got < 0 ? 0 - (uint64_t)got : (uint64_t)got;
  const uint64_t step = of < 0 ? 0 - (uint64_t)of : (uint64_t)of;
  return magnitude % step == 0;
}

static int meaning(int32_t op, int64_t got, int64_t want) {
  switch (op) {
    case OPDECK_RULE_EQ: return got == want;
    case OPDECK_RULE_NE: return got != want;
    case OPDECK_RULE_IN: return got == want;
    case OPDECK_RULE_LT: return got < want;
    case OPDECK_RULE_LE: return got <= want;
    case OPDECK_RULE_GT: return got > want;
    case OPDECK_RULE_GE: return got >= want;
    default: return is_multiple_slowly(got, want);
  }
}

static int holds(const opdeck_rule *rule, const opdeck_field *fields) {
  return opdeck_rules_first_failure(rule, 1, fields, NUM_FIELDS, NULL, 0) == 1;
}

static void test_operators(void) {
  for (int32_t op = OPDECK_RULE_EQ; op <= OPDECK_RULE_MULTIPLE_OF; ++op) {
    for (int got_idx = 0; got_idx < GRID_SIZE; ++got_idx) {
      for (int want_idx = 0; want_idx < GRID_SIZE; ++want_idx) {
        const int64_t got = grid[got_idx];
        const int64_t want = grid[want_idx];
        const opdeck_field fields[NUM_FIELDS] = {{"x", got}, {"y", want}};
        const opdeck_rule by_value = {"x", op, 1, &want, NULL};
        const opdeck_rule by_field = {"x", op, 0, NULL, "y"};
        CHECK(holds(&by_value, fields) == meaning(op, got, want));
        CHECK(holds(&by_field, fields) == (op != OPDECK_RULE_IN && meaning(op, got, want)));
      }
    }
  }
}

static void test_in_takes_any_of_its_values(void) {
  for (int got_idx = 0; got_idx < GRID_SIZE; ++got_idx) {
    for (int num_values = 1; num_values <= GRID_SIZE; ++num_values) {
      const opdeck_field fields[NUM_FIELDS] = {{"x", grid[got_idx]}, {"y", 0}};
      const opdeck_rule rule = {"x", OPDECK_RULE_IN, num_values, grid, NULL};
      CHECK(holds(&rule, fields) == (got_idx < num_values));
    }
  }
}

static const char *reason_of(const opdeck_rule *rule, const opdeck_field *fields, int32_t num_fields) {
  static char reason[128];
  if (opdeck_rules_first_failure(rule, 1, fields, num_fields, reason, sizeof reason) == 1) return "holds";
  return reason;
}

static void check_reason(const opdeck_rule *rule, const char *want) {
  const opdeck_field fields[] = {{"dqk", 96}, {"hq", 6}, {"hk", 4}, {"dtype.T", 3}};
  const char *got = reason_of(rule, fields, 4);
  if (strcmp(got, want) == 0) return;
  printf("got \"%s\", want \"%s\"\n", got, want);
  ++num_failed_checks;
}

static void test_reasons(void) {
  const int64_t values[] = {64, 128};
  const int64_t dtypes[] = {1, 2};
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_IN, 2, values, NULL}, "dqk: got 96, want 64|128");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_EQ, 1, values, NULL}, "dqk: got 96, want 64");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_LT, 1, values, NULL}, "dqk: got 96, want < 64");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_LE, 1, values, NULL}, "dqk: got 96, want <= 64");
  check_reason(&(opdeck_rule){"hq", OPDECK_RULE_GT, 1, values, NULL}, "hq: got 6, want > 64");
  check_reason(&(opdeck_rule){"hq", OPDECK_RULE_GE, 1, values, NULL}, "hq: got 6, want >= 64");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_MULTIPLE_OF, 1, values, NULL}, "dqk: got 96, want a multiple of 64");
  check_reason(&(opdeck_rule){"hq", OPDECK_RULE_MULTIPLE_OF, 0, NULL, "hk"}, "hq: got 6, want a multiple of hk = 4");
  check_reason(&(opdeck_rule){"dtype.T", OPDECK_RULE_IN, 2, dtypes, NULL}, "dtype.T: got fp32, want fp16|bf16");
  check_reason(&(opdeck_rule){"hq", OPDECK_RULE_NE, 0, NULL, "hq"}, "hq: got 6, want other than hq = 6");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_GE, 1, values, NULL}, "holds");
  check_reason(&(opdeck_rule){.field = "dqk", .op = OPDECK_RULE_EQ, .num_values = 1, .values = values, .hint = "mla"},
               "dqk: got 96, want 64 (mla)");
}

static void test_malformed_rules_do_not_hold(void) {
  const int64_t values[] = {96, 96};
  check_reason(&(opdeck_rule){"dv", OPDECK_RULE_EQ, 1, values, NULL}, "dv: not among the fields of the problem");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_EQ, 0, NULL, "dv"}, "dv: not among the fields of the problem");
  check_reason(&(opdeck_rule){NULL, OPDECK_RULE_EQ, 1, values, NULL}, "malformed rule on no field: op 1 with 1 values");
  check_reason(&(opdeck_rule){"dqk", 0, 1, values, NULL}, "malformed rule on dqk: op 0 with 1 values");
  check_reason(&(opdeck_rule){"dqk", 9, 1, values, NULL}, "malformed rule on dqk: op 9 with 1 values");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_EQ, 2, values, NULL}, "malformed rule on dqk: op 1 with 2 values");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_EQ, 1, NULL, NULL}, "malformed rule on dqk: op 1 with 1 values");
  check_reason(&(opdeck_rule){"dqk", OPDECK_RULE_IN, 0, values, NULL}, "malformed rule on dqk: op 3 with 0 values");
}

static void test_first_failure_is_told(void) {
  const int64_t values[] = {0, 96, 6};
  const opdeck_field fields[] = {{"dqk", 96}, {"hq", 6}};
  const opdeck_rule rules[] = {{"dqk", OPDECK_RULE_EQ, 1, values + 1, NULL},
                               {"hq", OPDECK_RULE_EQ, 1, values, NULL},
                               {"hq", OPDECK_RULE_LT, 1, values, NULL}};
  char reason[16];
  CHECK(opdeck_rules_first_failure(rules, 3, fields, 2, reason, sizeof reason) == 1);
  CHECK(strcmp(reason, "hq: got 6, want") == 0); /* cut at the capacity, NUL included */
  CHECK(opdeck_rules_first_failure(rules, 1, fields, 2, reason, sizeof reason) == 1);
  CHECK(strcmp(reason, "") == 0);
  CHECK(opdeck_rules_first_failure(NULL, 0, NULL, 0, NULL, 0) == 0);
}

int main(void) {
  test_operators();
  test_in_takes_any_of_its_values();
  test_reasons();
  test_malformed_rules_do_not_hold();
  test_first_failure_is_told();
  return check_exit_status();
}
