/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.h: what the library itself needs of rules.c besides opdeck_rules.h.
 */
#ifndef OPDECK_RULES_INTERNAL_H
#define OPDECK_RULES_INTERNAL_H

#include "opdeck_rules.h"
#include "text.h"

const opdeck_field *od_find_field(const opdeck_field *fields, int32_t num_fields, const char *name);
/* Whether every field that the rule names is there. */
int od_rule_is_decidable(const opdeck_rule *rule, const opdeck_field *fields, int32_t num_fields);
/* Whether a rule about a scalar argument holds; if not, the reason is added to `reason`. */
int od_scalar_rule_holds(const opdeck_rule *rule, double got, od_text *reason);
/* Whether `op` is known and takes the number of constants that the rule has. */
int od_rule_is_well_formed(const opdeck_rule *rule);

#endif
