/* SPDX-License-Identifier: Apache-2.0
 *
 * dtypes.h: the element types in use. The numbers are pack.h's, the names those of opdeck.core.dtypes.
 */
#ifndef OPDECK_DTYPES_H
#define OPDECK_DTYPES_H

#include "opdeck.h"
#include "pack.h"

typedef struct od_dtype {
  const char *name;
  uint8_t code; /* opdeck_dtype_code */
  uint8_t bits;
} od_dtype;

/* NULL for a number that is no opdeck_pack_dtype. */
const od_dtype *od_dtype_of(int64_t pack_dtype);
/* Name of the DLPack type of a tensor; "code 5, 16 bits" for one that no dtype has, in `spare`. */
const char *od_dtype_name_of_tensor(const opdeck_tensor *tensor, char *spare, size_t spare_bytes);

#endif
