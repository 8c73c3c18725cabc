/* SPDX-License-Identifier: Apache-2.0
 *
 * pack.h: the tables of a pack, as opdeck.aot generates them in C and libopdeck reads them.
 *
 * A pack is a shared object that exports one function, opdeck_pack_v1, which shim.c defines. The generated part is
 * constant data: it defines opdeck_pack_contents and what that points to. A family's arguments and checks, and a
 * variant's acceptance, are rows; rules.c evaluates them for C and for Python alike.
 */
#ifndef OPDECK_PACK_H
#define OPDECK_PACK_H

#include "driver_api.h"
#include "opdeck_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPDECK_PACK_ABI 5

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
  OPDECK_DEFAULT_RSQRT = 1, /* 1 / sqrt(default_field) */
  OPDECK_DEFAULT_ZERO = 2,
  OPDECK_DEFAULT_ONE = 3,
  OPDECK_DEFAULT_NUM_SMS = 4 /* of the device, for an i32; the others are for an f32 */
} opdeck_pack_default;

#define OPDECK_TRANSPOSABLE 2

/* One argument of a family, in the family's order, or one leaf of a fusion. The first argument that names a dim or a
 * dtype symbol binds it; the later ones must agree. */
typedef struct opdeck_pack_arg {
  const char *name;
  int32_t kind;             /* opdeck_arg_kind */
  int32_t access;           /* 1 read, 2 write, 3 both */
  int32_t optional;         /* 1: may be left out (a tensor is then passed to the kernel with a NULL pointer) */
  int32_t rank;             /* 0 for scalars */
  const char *const *dims;  /* rank names. A leaf's are numbers, or names of the family's sizes, or some of those with |
                               between, "batch|1"; a name that is no size of the problem is any extent, as is NULL */
  const char *dtype_symbol; /* "T"; NULL: none is bound */
  int32_t num_dtypes;       /* the opdeck_pack_dtype values that are legal for it */
  int32_t align_bytes;      /* of the data pointer and of each stride but the last, where its extent is > 1; twice that
                               for elements under a byte. From 16 on TMA moves the tensor, and a stride of 0 (a
                               broadcast) is refused */
  const int32_t *dtypes;
  int32_t contiguous_last; /* 1: the last stride must be 1; OPDECK_TRANSPOSABLE: or, where elements take a byte or more,
                              the last but one */
  int32_t default_kind;    /* opdeck_pack_default, of an optional scalar */
  const char *default_field;
} opdeck_pack_arg;

/* ceil(field / divisor). */
typedef struct opdeck_pack_count {
  const char *field; /* as in rules */
  int64_t divisor;   /* at least 1 */
} opdeck_pack_count;

/* A field that every problem of a family has besides: the product of counts, INT64_MAX where 64 bits do not hold it.
 * Rows behind the first of a name may count sizes; of those whose sizes are known, the largest product counts. */
typedef struct opdeck_pack_product {
  const char *name;
  const opdeck_pack_count *counts; /* of dims of required arguments */
  int32_t num_counts;
  int32_t reserved;
} opdeck_pack_product;

/* What leaves call a size of the problem: ceil(field / divisor) + plus of those of which all rules hold, and which have
 * the field. The first row of a name whose rules hold counts. */
typedef struct opdeck_pack_size {
  const char *name;
  opdeck_pack_count count;
  const opdeck_rule *rules;
  int32_t num_rules;
  int32_t plus;
} opdeck_pack_size;

typedef struct opdeck_pack_family {
  const char *name;
  const opdeck_pack_arg *args;
  int32_t num_args;
  int32_t num_checks; /* a check that fails is INVALID_ARGUMENT; its field may be a scalar argument: then
                         it compares with one constant, at each launch */
  const opdeck_rule *checks;
  const opdeck_rule *empty; /* a launch where one of these holds has nothing to do and launches nothing */
  int32_t num_empty;
  int32_t num_products;
  const opdeck_pack_product *products;
  const opdeck_pack_size *sizes;
  int32_t num_sizes;
  int32_t reserved;
} opdeck_pack_family;

/* A variant's workspace is the sum of its terms, each factor_bytes times the product of its counts, of which those of
 * fields that the problem does not have are 0. */
typedef struct opdeck_pack_term {
  int64_t factor_bytes;
  const opdeck_pack_count *counts;
  int32_t num_counts;
  int32_t reserved;
} opdeck_pack_term;

/* The source of a parameter that is the workspace: a tensor with neither dynamic shape nor strides. */
#define OPDECK_SOURCE_WORKSPACE INT32_MIN

/* One parameter of an exported entry, in its order. A tensor becomes
 * {void *data; int64_t shapes[num_shape_dims]; int64_t strides[num_stride_dims];}. The stream comes after the last. */
typedef struct opdeck_pack_param {
  int32_t source; /* index into the family's args, -1 - L for leaf L of the fusion, or OPDECK_SOURCE_WORKSPACE */
  int32_t kind;   /* opdeck_arg_kind */
  int32_t num_shape_dims;
  int32_t num_stride_dims;
  const int32_t *shape_dims;  /* which dims are dynamic */
  const int32_t *stride_dims; /* which strides are dynamic */
} opdeck_pack_param;

typedef struct opdeck_pack_variant {
  const char *id;
  const char *arch;   /* "sm_100a" */
  const char *fusion; /* canonical name, "none" without one */
  const char *config; /* "tile_m=128 tile_n=128 ..." */
  const opdeck_rule *accept;
  const opdeck_pack_arg *leaves; /* all read, none optional */
  const opdeck_pack_param *params;
  const opdeck_pack_term *workspace; /* num_terms, 0 where no workspace is needed */
  int32_t family_idx;
  int32_t num_accept;
  int32_t num_leaves;
  int32_t num_params;
  uint32_t smem_bytes;
  uint32_t num_registers;
  uint32_t num_threads;
  int32_t num_terms;
  /* Exported by the DSL's object; protocol in loader.c. */
  void (*cuda_init)(void **args);
  void (*cuda_load_to_device)(void **args);
  void (*entry)(void **args, int32_t num_args);
  const char *cubin_sha256; /* 64 hex digits */
  const char *ptx;
  uint64_t ptx_bytes;
  const opdeck_rule *prefer; /* where all of these hold, num_prefer > 0, the variant goes before those whose `accept` it
                                has */
  int32_t num_prefer;
  int32_t reserved;
} opdeck_pack_variant;

typedef struct opdeck_pack_table {
  uint32_t struct_size;
  uint32_t abi; /* OPDECK_PACK_ABI */
  const char *name;
  const char *dsl_version;
  const char *host_triple; /* "x86_64-unknown-linux-gnu" | "aarch64-unknown-linux-gnu" */
  const opdeck_pack_family *families;
  const opdeck_pack_variant *variants; /* in priority order */
  int32_t num_families;
  int32_t num_variants;
} opdeck_pack_table;

/* Defined by the generated source of a pack. */
extern const opdeck_pack_table opdeck_pack_contents;

/* Keeps the driver's table for the shim and copies opdeck_pack_contents to *table. Returns 0, or 1 when the
 * struct_size of either is not the pack's own. */
int opdeck_pack_v1(const opdeck_driver_api *driver, opdeck_pack_table *table);
typedef int (*opdeck_pack_v1_fn)(const opdeck_driver_api *driver, opdeck_pack_table *table);

#ifdef __cplusplus
}
#endif
#endif
