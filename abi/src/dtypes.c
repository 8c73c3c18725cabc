/* SPDX-License-Identifier: Apache-2.0
 *
 * dtypes.c: the table of element types.
 */
#include "dtypes.h"

#include <stdio.h>

static const od_dtype dtypes[] = {
    [OPDECK_DT_FP16] = {"fp16", OPDECK_CODE_FLOAT, 16},
    [OPDECK_DT_BF16] = {"bf16", OPDECK_CODE_BFLOAT, 16},
    [OPDECK_DT_FP32] = {"fp32", OPDECK_CODE_FLOAT, 32},
    [OPDECK_DT_FP8_E4M3] = {"fp8_e4m3", OPDECK_CODE_FP8_E4M3, 8},
    [OPDECK_DT_FP8_E5M2] = {"fp8_e5m2", OPDECK_CODE_FP8_E5M2, 8},
    [OPDECK_DT_FP6_E3M2] = {"fp6_e3m2", OPDECK_CODE_FP6_E3M2, 6},
    [OPDECK_DT_FP6_E2M3] = {"fp6_e2m3", OPDECK_CODE_FP6_E2M3, 6},
    [OPDECK_DT_FP4_E2M1] = {"fp4_e2m1", OPDECK_CODE_FP4_E2M1, 4},
    [OPDECK_DT_E8M0] = {"e8m0", OPDECK_CODE_E8M0, 8},
    /* DLPack has no unsigned e4m3; scale factors come as e4m3 (the sign bit is ignored). */
    [OPDECK_DT_UE4M3] = {"ue4m3", OPDECK_CODE_FP8_E4M3, 8},
    [OPDECK_DT_INT32] = {"int32", OPDECK_CODE_INT, 32},
    [OPDECK_DT_INT64] = {"int64", OPDECK_CODE_INT, 64},
    [OPDECK_DT_UINT8] = {"uint8", OPDECK_CODE_UINT, 8},
};

enum {
  NUM_DTYPES = sizeof dtypes / sizeof dtypes[0]
};

const od_dtype *od_dtype_of(int64_t pack_dtype) {
  return pack_dtype > 0 && pack_dtype < NUM_DTYPES ? &dtypes[pack_dtype] : NULL;
}

const char *od_dtype_name_of_tensor(const opdeck_tensor *tensor, char *spare, size_t spare_bytes) {
  for (int dtype = 1; dtype < NUM_DTYPES; ++dtype)
    if (dtypes[dtype].code == tensor->dtype_code && dtypes[dtype].bits == tensor->dtype_bits) return dtypes[dtype].name;
  snprintf(spare, spare_bytes, "DLPack code %d of %d bits", tensor->dtype_code, tensor->dtype_bits);
  return spare;
}
