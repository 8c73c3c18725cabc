/* SPDX-License-Identifier: Apache-2.0
 *
 * pack_check.h: whether a pack's tables are what libopdeck can read.
 */
#ifndef OPDECK_PACK_CHECK_H
#define OPDECK_PACK_CHECK_H

#include "opdeck.h"
#include "pack.h"

opdeck_status od_pack_check(const char *path, const opdeck_pack_table *table);

#endif
