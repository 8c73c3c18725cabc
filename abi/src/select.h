/* SPDX-License-Identifier: Apache-2.0
 *
 * select.h: the choice of a variant.
 */
#ifndef OPDECK_SELECT_H
#define OPDECK_SELECT_H

#include "bind.h"
#include "context.h"
#include "text.h"

typedef struct od_choice {
  od_pack *pack;
  int32_t variant_idx;
} od_choice;

/* The first variant that accepts the problem; *binding is then bound to it. Else UNSUPPORTED with a reason a variant,
 * or INVALID_ARGUMENT. */
opdeck_status od_select(opdeck_ctx *ctx, const opdeck_problem *problem, od_binding *binding, od_choice *choice);

#endif
