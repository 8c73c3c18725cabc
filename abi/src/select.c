/* SPDX-License-Identifier: Apache-2.0
 *
 * select.c: walks the variants of a family in priority order, for opdeck_plan_create (plan.c) and for opdeck_explain,
 * which lists them all. Chosen is the first that accepts, or what is preferred to it: the first whose preferences hold
 * and that accepts nothing else.
 */
#include "select.h"

#include "dtypes.h"
#include "rules.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  REASON_BYTES = 512,
  TABLE_BYTES = 6144,
  FAULT_BYTES = 1024,
  MAX_REASONS = 32
};

/* A reason that variants have, and one of them. */
typedef struct od_reason {
  char text[REASON_BYTES];
  const char *variant_id;
  int32_t num_variants;
} od_reason;

/* What variants refuse for, of each the first reason. */
typedef struct od_reasons {
  int32_t num_reasons;
  int32_t num_others; /* variants whose reasons had no room */
  od_reason reasons[MAX_REASONS];
} od_reasons;

/* The state of one walk. */
typedef struct od_search {
  const opdeck_problem *problem;
  od_binding *binding;
  od_text *table;      /* gets a line a variant that refuses; NULL: */
  od_reasons *reasons; /* gets the reasons of those of the device's arch; NULL: nobody wants them */
  const opdeck_pack_variant *instead_of; /* only variants that are preferred to this one; NULL: all */
  opdeck_ctx *ctx;
  int32_t next_pack_idx;
  int32_t next_variant_idx;
  int32_t num_variants;    /* seen of the family */
  int32_t num_other_archs; /* among them */
  int32_t nearest_failures;
  char nearest[REASON_BYTES]; /* the variant with the fewest failures, and its first reason */
  opdeck_status fault;        /* the first error of binding: an argument is wrong, whatever the variant */
  char fault_message[FAULT_BYTES];
} od_search;

static void keep_fault(od_search *search, opdeck_status status) {
  if (search->fault != OPDECK_OK) return;
  search->fault = status;
  od_text text = od_text_in(search->fault_message, sizeof search->fault_message);
  od_text_add(&text, "%s", opdeck_last_error());
}

/* Reasons why the variant does not take the problem: their number, and the first one's text. */
static int32_t count_failures(od_search *search, const opdeck_pack_variant *variant, char reason[REASON_BYTES]) {
  const char *fusion = od_fusion_name(search->problem);
  const od_binding *binding = search->binding;
  int32_t num_failures = 0;
  od_text text = od_text_in(reason, REASON_BYTES);
  if (strcmp(variant->arch, search->ctx->device.arch) != 0) {
    ++num_failures;
    od_text_add(&text, "arch: got %s, want %s", search->ctx->device.arch, variant->arch);
  }
  if (strcmp(variant->fusion, fusion) != 0 && ++num_failures == 1)
    od_text_add(&text, "fusion: got %s, want %s", fusion, variant->fusion);
  for (int32_t rule_idx = 0; rule_idx < variant->num_accept; ++rule_idx) {
    const int is_first = num_failures == 0;
    num_failures += opdeck_rules_first_failure(&variant->accept[rule_idx], 1, binding->fields, binding->num_fields,
                                               is_first ? reason : NULL, is_first ? REASON_BYTES : 0) == 0;
  }
  return num_failures;
}

static void keep_nearest(od_search *search, const opdeck_pack_variant *variant, int32_t num_failures,
                         const char *reason) {
  if (search->nearest[0] != '\0' && num_failures >= search->nearest_failures) return;
  search->nearest_failures = num_failures;
  od_text text = od_text_in(search->nearest, sizeof search->nearest);
  od_text_add(&text, "%s (%s)", variant->id, reason);
}

static void keep_reason(od_reasons *kept, const char *variant_id, const char *text) {
  int32_t idx = 0;
  while (idx < kept->num_reasons && strcmp(kept->reasons[idx].text, text) != 0) ++idx;
  if (idx == MAX_REASONS) {
    ++kept->num_others;
    return;
  }
  od_reason *reason = &kept->reasons[idx];
  if (idx == kept->num_reasons) {
    ++kept->num_reasons;
    od_text copy = od_text_in(reason->text, sizeof reason->text);
    od_text_add(&copy, "%s", text);
    reason->variant_id = variant_id;
    reason->num_variants = 0;
  }
  ++reason->num_variants;
}

static void add_reasons(od_text *table, const od_reasons *kept) {
  for (int32_t idx = 0; idx < kept->num_reasons; ++idx) {
    const od_reason *reason = &kept->reasons[idx];
    if (reason->num_variants == 1)
      od_text_add(table, "  %s: %s\n", reason->variant_id, reason->text);
    else
      od_text_add(table, "  %s (%d variants, such as %s)\n", reason->text, (int)reason->num_variants,
                  reason->variant_id);
  }
}

/* A refusal, with its reason: a line of a table that has one for each, or kept with those that are the same. */
static void note_refusal(od_search *search, const opdeck_pack_variant *variant, const char *reason) {
  if (search->table != NULL)
    od_text_add(search->table, "  %s: %s\n", variant->id, reason);
  else if (search->reasons != NULL && strcmp(variant->arch, search->ctx->device.arch) == 0) /* the others' refusals tell little */
    keep_reason(search->reasons, variant->id, reason);
}

/* Whether the variant takes the problem; the leaves are then bound. */
static int is_accepted(od_search *search, const opdeck_pack_variant *variant) {
  char reason[REASON_BYTES];
  const int32_t num_failures = count_failures(search, variant, reason);
  if (num_failures > 0) {
    search->num_other_archs += strcmp(variant->arch, search->ctx->device.arch) != 0;
    keep_nearest(search, variant, num_failures, reason);
    note_refusal(search, variant, reason);
    return 0;
  }
  const int32_t num_fields = search->binding->num_fields;
  const opdeck_status status = od_bind_leaves(variant, search->problem, &search->ctx->device, search->binding);
  if (status == OPDECK_OK) return 1;
  search->binding->num_fields = num_fields; /* without the dims that leaves bound */
  keep_fault(search, status);
  note_refusal(search, variant, opdeck_last_error());
  return 0;
}

static int is_wanted(const opdeck_problem *problem, const opdeck_pack_variant *variant) {
  return problem->variant == NULL || strcmp(problem->variant, variant->id) == 0;
}

/* Whether two texts, either of which may be missing, are the same. */
static int is_same_text(const char *a, const char *b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* Whether two rules hold of the same problems. */
static int is_same_rule(const opdeck_rule *a, const opdeck_rule *b) {
  return strcmp(a->field, b->field) == 0 && a->op == b->op && a->num_values == b->num_values &&
         (a->num_values == 0 || memcmp(a->values, b->values, (size_t)a->num_values * sizeof *a->values) == 0) &&
         is_same_text(a->rhs_field, b->rhs_field) && a->rhs_plus == b->rhs_plus &&
         is_same_text(a->when_field, b->when_field) && a->when_value == b->when_value;
}

static int has_rule(const opdeck_pack_variant *variant, const opdeck_rule *rule) {
  for (int32_t rule_idx = 0; rule_idx < variant->num_accept; ++rule_idx)
    if (is_same_rule(&variant->accept[rule_idx], rule)) return 1;
  return 0;
}

/* Whether the preferences of a variant hold, and it has all rules of the other, which accepts the problem: one for
 * larger head dims is not preferred to one that fits. */
static int is_preferred(const od_binding *binding, const opdeck_pack_variant *variant,
                        const opdeck_pack_variant *other) {
  for (int32_t rule_idx = 0; rule_idx < other->num_accept; ++rule_idx)
    if (!has_rule(variant, &other->accept[rule_idx])) return 0;
  const int32_t num_rules = variant->num_prefer;
  return num_rules > 0 && opdeck_rules_first_failure(variant->prefer, num_rules, binding->fields, binding->num_fields,
                                                     NULL, 0) == num_rules;
}

static int32_t find_family(const opdeck_pack_table *table, const char *name) {
  int32_t family_idx = 0;
  while (family_idx < table->num_families && strcmp(table->families[family_idx].name, name) != 0) ++family_idx;
  return family_idx;
}

/* The next variant of this pack that accepts, or NULL. */
static const opdeck_pack_variant *next_of_pack(od_search *search, const opdeck_pack_table *table) {
  const int32_t family_idx = find_family(table, search->problem->family);
  if (family_idx == table->num_families) return NULL;
  const opdeck_status status =
      od_bind_args(&table->families[family_idx], search->problem, &search->ctx->device, search->binding);
  if (status != OPDECK_OK) keep_fault(search, status);
  while (search->next_variant_idx < table->num_variants) {
    const opdeck_pack_variant *variant = &table->variants[search->next_variant_idx++];
    if (variant->family_idx != family_idx || !is_wanted(search->problem, variant)) continue;
    if (search->instead_of != NULL && !is_preferred(search->binding, variant, search->instead_of)) continue;
    ++search->num_variants;
    if (status == OPDECK_OK && is_accepted(search, variant)) return variant;
  }
  return NULL;
}

/* Goes on to the next variant that accepts; the binding is then bound to it. */
static int next_accepting(od_search *search, od_choice *choice) {
  const int32_t num_packs = od_ctx_num_packs(search->ctx);
  for (; search->next_pack_idx < num_packs; ++search->next_pack_idx, search->next_variant_idx = 0) {
    od_pack *pack = search->ctx->packs[search->next_pack_idx];
    if (next_of_pack(search, &pack->table) == NULL) continue;
    *choice = (od_choice){pack, search->next_variant_idx - 1};
    return 1;
  }
  return 0;
}

static const opdeck_pack_variant *variant_of(const od_choice *choice) {
  return &choice->pack->table.variants[choice->variant_idx];
}

/* What is chosen; the binding is then bound to it. `search` is that of the first that accepts, and at its beginning. */
static int choose(od_search *search, od_choice *choice) {
  if (!next_accepting(search, choice)) return 0;
  od_search preferred = {.problem = search->problem, .binding = search->binding, .instead_of = variant_of(choice),
                         .ctx = search->ctx};
  if (next_accepting(&preferred, choice)) return 1;
  od_search again = {.problem = search->problem, .binding = search->binding, .ctx = search->ctx};
  return next_accepting(&again, choice);
}

static opdeck_status refuse_unknown(opdeck_ctx *ctx, const opdeck_problem *problem) {
  char names[512];
  od_text text = od_text_in(names, sizeof names);
  const int32_t num_packs = od_ctx_num_packs(ctx);
  int is_family_known = 0;
  for (int32_t pack_idx = 0; pack_idx < num_packs; ++pack_idx) {
    const opdeck_pack_table *table = &ctx->packs[pack_idx]->table;
    is_family_known |= find_family(table, problem->family) < table->num_families;
    for (int32_t family_idx = 0; family_idx < table->num_families; ++family_idx)
      od_text_add(&text, "%s%s", text.needed_bytes == 1 ? "" : ", ", table->families[family_idx].name);
  }
  if (is_family_known && problem->variant != NULL)
    return od_fail(OPDECK_INVALID_ARGUMENT, "problem.variant: got \"%s\", want the id of a loaded kernel of %s",
                   problem->variant, problem->family);
  return od_fail(OPDECK_UNSUPPORTED, "%s: no loaded pack has a kernel of it (loaded packs: %d, their families: %s)",
                 problem->family, (int)num_packs, text.needed_bytes == 1 ? "none" : names);
}

static opdeck_status refuse(const od_search *search) {
  if (search->num_variants == 0) return refuse_unknown(search->ctx, search->problem);
  if (search->fault != OPDECK_OK) return od_fail(search->fault, "%s", search->fault_message);
  char lines[TABLE_BYTES];
  od_text table = od_text_in(lines, sizeof lines);
  add_reasons(&table, search->reasons);
  const int is_cut = table.needed_bytes > table.capacity_bytes || search->reasons->num_others > 0;
  return od_fail(OPDECK_UNSUPPORTED,
                 "%s on %s: none of %d variants (%d of them for other archs) accepts the problem; nearest: %s\n%s%s",
                 search->problem->family, search->ctx->device.arch, (int)search->num_variants,
                 (int)search->num_other_archs, search->nearest, lines,
                 is_cut ? " ... (opdeck_explain has all)" : "");
}

opdeck_status od_select(opdeck_ctx *ctx, const opdeck_problem *problem, od_binding *binding, od_choice *choice) {
  od_reasons reasons;
  reasons.num_reasons = 0;
  reasons.num_others = 0;
  od_search search = {.problem = problem, .binding = binding, .reasons = &reasons, .ctx = ctx};
  return choose(&search, choice) ? OPDECK_OK : refuse(&search);
}

static void add_fields(od_text *text, const od_binding *binding) {
  for (int32_t field_idx = 0; field_idx < binding->num_fields; ++field_idx) {
    const opdeck_field *field = &binding->fields[field_idx];
    const od_dtype *dtype = strncmp(field->name, "dtype.", 6) == 0 ? od_dtype_of(field->value) : NULL;
    if (dtype != NULL)
      od_text_add(text, " %s=%s", field->name, dtype->name);
    else
      od_text_add(text, " %s=%" PRId64, field->name, field->value);
  }
  od_text_add(text, "\n");
}

static opdeck_status explain(opdeck_ctx *ctx, const opdeck_problem *problem, od_binding *binding, od_text *text) {
  od_search search = {.problem = problem, .binding = binding, .table = text, .ctx = ctx};
  od_text_add(text, "%s on %s, fusion %s\n", problem->family, ctx->device.arch, od_fusion_name(problem));
  od_search first = {.problem = problem, .binding = binding, .ctx = ctx};
  od_choice chosen = {NULL, 0};
  choose(&first, &chosen);
  od_choice choice;
  int32_t num_accepting = 0;
  while (next_accepting(&search, &choice)) {
    const int is_chosen = choice.pack == chosen.pack && choice.variant_idx == chosen.variant_idx;
    ++num_accepting;
    od_text_add(text, "  %s: accepts%s\n", variant_of(&choice)->id, is_chosen ? " (chosen)" : "");
  }
  if (search.num_variants == 0) return refuse_unknown(ctx, problem);
  if (num_accepting == 0 && search.fault != OPDECK_OK) return od_fail(search.fault, "%s", search.fault_message);
  od_text_add(text, "fields:");
  add_fields(text, binding);
  return OPDECK_OK;
}

opdeck_status opdeck_explain(opdeck_ctx *ctx, const opdeck_problem *problem, char *text, size_t capacity_bytes,
                             size_t *needed_bytes) {
  od_clear_error();
  if (ctx == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  if (text == NULL && capacity_bytes > 0)
    return od_fail(OPDECK_INVALID_ARGUMENT, "text: got NULL with capacity_bytes %zu", capacity_bytes);
  opdeck_status status = od_check_problem(problem);
  if (status != OPDECK_OK) return status;
  od_binding *binding = malloc(sizeof *binding);
  if (binding == NULL) return od_fail(OPDECK_INTERNAL, "out of memory");
  od_text table = od_text_in(text, capacity_bytes);
  status = explain(ctx, problem, binding, &table);
  if (needed_bytes != NULL) *needed_bytes = table.needed_bytes;
  free(binding);
  return status;
}
