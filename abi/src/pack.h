/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.h: the tables of a pack, as opdeck.aot generates them in C and libopdeck reads them.
 *
 * A pack is a shared object that exports one function, opdeck_pack_v1. Everything in the tables is constant data
 * of that object. A family's arguments and checks, and a variant's acceptance, are rows of data here; rules.c evaluates
 * them for C and for Python alike.
 */
#ifndef OPDECK_PACK_H
#define OPDECK_PACK_H

#include "driver_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPDECK_PACK_ABI 1

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

/* `field op values` or `field op rhs_field`. Fields are the dims that the arguments bind (b, sq, ...), "dtype.X" (an
 * opdeck_pack_dtype value of the type symbol X), "has.ARG" (1 when the optional ARG is given), "arch" (90, 100, 103), "num_sms". */
typedef struct opdeck_rule {
  const char *field;
  int32_t op; /* opdeck_rule_op */
  int32_t num_values;
  const int64_t *values;
  const char *rhs_field; /* NULL: compare with values */
} opdeck_rule;

/* Canonical dtype numbers, the same as opdeck.core.dtypes. */
typedef enum opdeck_pack_dtype {
  OPDECK_DT_FP16 = 1,
  OPDECK_DT_BF16 = 2,
  OPDECK_DT_FP32 = 3,
  OPDECK_DT_FP8_E4M3 = 4,
  OPDECK_DT_FP8_E5M2 = 5,
  OPDECK_DT_FP6_E3M2 = 6,
  OPDECK_DT_FP6_E2M3 = 7,
  OPDECK_DT_FP4_E2M1 = 8,
  OPDECK_DT_E8M0 = 9,
  OPDECK_DT_UE4M3 = 10,
  OPDECK_DT_INT32 = 11,
  OPDECK_DT_INT64 = 12,
  OPDECK_DT_UINT8 = 13
} opdeck_pack_dtype;

typedef enum opdeck_pack_default {
  OPDECK_DEFAULT_NONE = 0,
  OPDECK_DEFAULT_RSQRT = 1 /* 1 / sqrt(default_field) */
} opdeck_pack_default;

/* One argument of a family, in the family's order. The first argument that names a dim or a dtype symbol binds it;
 * the later ones must agree. */
typedef struct opdeck_pack_arg {
  const char *name;
  int32_t kind;     /* opdeck_arg_kind */
  int32_t access;   /* 1 read, 2 write, 3 both */
  int32_t optional; /* 1: may be left out (a tensor is then passed to the kernel with a NULL pointer) */
  int32_t rank;
  const char *const *dims;      /* rank names */
  const char *dtype_symbol;     /* "T"; NULL for scalars */
  int32_t num_dtypes;           /* the opdeck_pack_dtype values that are legal for it */
  int32_t align_bytes;          /* of the data pointer and of each stride but the last, where its extent is > 1 */
  const int32_t *dtypes;
  int32_t contiguous_last;      /* 1: the last stride must be 1 */
  int32_t default_kind;         /* opdeck_pack_default, of an optional scalar */
  const char *default_field;
} opdeck_pack_arg;

typedef struct opdeck_pack_family {
  const char *name;
  const opdeck_pack_arg *args;
  int32_t num_args;
  int32_t num_checks;          /* a check that fails is INVALID_ARGUMENT */
  const opdeck_rule *checks;
  const opdeck_rule *empty;    /* a launch where one of these holds has nothing to do and launches nothing */
  int32_t num_empty;
  int32_t reserved;
} opdeck_pack_family;

/* One parameter of an exported entry, in its order. A tensor becomes
 * {void *data; int64_t shapes[num_shape_dims]; int64_t strides[num_stride_dims];}. The stream comes after the last. */
typedef struct opdeck_pack_param {
  int32_t source;     /* index into the family's args, or -1 - L for leaf L of the fusion */
  int32_t kind;       /* opdeck_arg_kind */
  int32_t num_shape_dims;
  int32_t num_stride_dims;
  const int32_t *shape_dims;  /* which dims are dynamic */
  const int32_t *stride_dims; /* which strides are dynamic */
} opdeck_pack_param;

typedef struct opdeck_pack_leaf {
  const char *name;
  int32_t kind; /* opdeck_arg_kind */
  int32_t rank;
  int32_t dtype; /* opdeck_pack_dtype of a tensor */
  int32_t reserved;
} opdeck_pack_leaf;

typedef struct opdeck_pack_variant {
  const char *id;
  const char *arch;   /* "sm_100a" */
  const char *fusion; /* canonical name, "none" without one */
  const char *config; /* "tile_m=128 tile_n=128 ..." */
  const opdeck_rule *accept;
  const opdeck_pack_leaf *leaves;
  const opdeck_pack_param *params;
  int32_t family_idx;
  int32_t num_accept;
  int32_t num_leaves;
  int32_t num_params;
  uint32_t smem_bytes;
  uint32_t num_registers;
  uint32_t num_threads;
  uint32_t reserved;
  /* Exported by the DSL's object; protocol in loader.c. */
  void (*cuda_init)(void **args);
  void (*cuda_load_to_device)(void **args);
  void (*entry)(void **args, int32_t num_args);
  const char *cubin_sha256; /* 64 hex digits */
  const char *ptx;
  uint64_t ptx_bytes;
} opdeck_pack_variant;

typedef struct opdeck_pack_table {
  uint32_t struct_size;
  uint32_t abi; /* OPDECK_PACK_ABI */
  const char *name;
  const char *dsl_version;
  const char *host_triple;
  const opdeck_pack_family *families;
  const opdeck_pack_variant *variants; /* in priority order */
  int32_t num_families;
  int32_t num_variants;
} opdeck_pack_table;

/* Keeps the driver's table for the shim and fills *table. Returns 0, or 1 when struct_size of either is unknown. */
typedef int (*opdeck_pack_v1_fn)(const opdeck_driver_api *driver, opdeck_pack_table *table);

#ifdef __cplusplus
}
#endif
#endif
