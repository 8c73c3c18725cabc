/* SPDX-License-Identifier: Apache-2.0
 *
 * opdeck.h: the C interface of opdeck, fused attention and block-scaled GEMM kernels compiled ahead of time.
 *
 * C99, also read by cffi. libopdeck.so needs only libc: it opens libcuda.so.1 or libopdeck_emu.so when a context
 * asks for one. The interface is append-only: structs begin with `struct_size` (set it to sizeof), enum values
 * never change. Functions return an opdeck_status; opdeck_last_error() then says which argument, what it got and
 * what it wants. On an error nothing was launched and no output was touched.
 *
 *     opdeck_ctx *ctx;  opdeck_plan *plan;
 *     opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = "cuda:0"};
 *     opdeck_ctx_create(&desc, &ctx);
 *     opdeck_ctx_load_pack(ctx, "fmha_fwd.opdeck.so");
 *     opdeck_arg args[] = {{"q", OPDECK_ARG_TENSOR, 0, {.tensor = &q}}, ...};
 *     opdeck_problem problem = {sizeof problem, 5, "fmha_fwd", args, NULL, NULL};
 *     opdeck_plan_create(ctx, &problem, &plan);
 *     opdeck_plan_launch(plan, &problem, NULL, 0, stream);
 *
 * Threads: a context and a plan may be used from any thread at once. Strings returned live as long as the object
 * they were asked of, opdeck_last_error() until the next call on its thread.
 */
#ifndef OPDECK_H
#define OPDECK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPDECK_VERSION_MAJOR 0
#define OPDECK_VERSION_MINOR 1

typedef enum opdeck_status {
  OPDECK_OK = 0,
  OPDECK_INVALID_ARGUMENT = 1,
  OPDECK_UNSUPPORTED = 2, /* no loaded variant accepts the problem; the message has a reason a variant of its arch */
  OPDECK_NO_DRIVER = 3,
  OPDECK_NO_DEVICE = 4,
  OPDECK_DRIVER = 5,
  OPDECK_PACK = 6,
  OPDECK_VERSION = 7,
  OPDECK_EMULATOR = 8, /* the emulator found a fault or a hazard in a kernel */
  OPDECK_WORKSPACE = 9,
  OPDECK_INTERNAL = 10
} opdeck_status;

/* DLPack's type codes (DLDataTypeCode) of the element types in use. */
typedef enum opdeck_dtype_code {
  OPDECK_CODE_INT = 0,
  OPDECK_CODE_UINT = 1,
  OPDECK_CODE_FLOAT = 2,
  OPDECK_CODE_BFLOAT = 4,
  OPDECK_CODE_BOOL = 6,
  OPDECK_CODE_FP8_E4M3 = 10,
  OPDECK_CODE_FP8_E5M2 = 12,
  OPDECK_CODE_E8M0 = 14,
  OPDECK_CODE_FP6_E2M3 = 15,
  OPDECK_CODE_FP6_E3M2 = 16,
  OPDECK_CODE_FP4_E2M1 = 17
} opdeck_dtype_code;

typedef enum opdeck_device_type {
  OPDECK_DEVICE_CPU = 1, /* host memory: what the emulator's kernels work on */
  OPDECK_DEVICE_CUDA = 2
} opdeck_device_type;

/* Laid out as DLPack's DLTensor. strides are in elements; NULL means compact row-major. */
typedef struct opdeck_tensor {
  void *data;
  int32_t device_type; /* opdeck_device_type */
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code; /* opdeck_dtype_code */
  uint8_t dtype_bits;
  uint16_t dtype_lanes; /* 1 */
  const int64_t *shape;
  const int64_t *strides;
  uint64_t byte_offset;
} opdeck_tensor;

typedef enum opdeck_arg_kind {
  OPDECK_ARG_TENSOR = 1,
  OPDECK_ARG_I32 = 2,
  OPDECK_ARG_F32 = 3
} opdeck_arg_kind;

typedef union opdeck_arg_value {
  const opdeck_tensor *tensor;
  int32_t i32;
  float f32;
  uint64_t reserved;
} opdeck_arg_value;

/* One named argument: "q", "softmax_scale", or a leaf of a fusion, "alibi.slopes". */
typedef struct opdeck_arg {
  const char *name;
  int32_t kind;     /* opdeck_arg_kind */
  int32_t reserved; /* 0 */
  opdeck_arg_value value;
} opdeck_arg;

/* A mask or score function by its canonical name, "causal[align=bottom_right]&alibi", with its run-time arguments. */
typedef struct opdeck_fusion {
  uint32_t struct_size;
  uint32_t num_leaves;
  const char *name;
  const opdeck_arg *leaves;
} opdeck_fusion;

/* What to compute, on which tensors. Optional arguments are left out. Planning reads names, types, shapes and
 * strides; launching reads data pointers and scalars too. */
typedef struct opdeck_problem {
  uint32_t struct_size;
  uint32_t num_args;
  const char *family; /* "fmha_fwd" */
  const opdeck_arg *args;
  const opdeck_fusion *fusion; /* NULL = none */
  const char *variant;         /* NULL = the first variant that accepts; else this one or an error */
} opdeck_problem;

typedef struct opdeck_ctx opdeck_ctx;
typedef struct opdeck_plan opdeck_plan;

typedef enum opdeck_hazards {
  OPDECK_HAZARDS_DEFAULT = 0, /* as OPDECK_HAZARDS (on|off|strict) says, else on */
  OPDECK_HAZARDS_ON = 1,
  OPDECK_HAZARDS_OFF = 2,
  OPDECK_HAZARDS_STRICT = 3   /* the letter of the PTX ISA: more fences than NVIDIA's own kernels have */
} opdeck_hazards;

typedef struct opdeck_ctx_desc {
  uint32_t struct_size;
  int32_t hazards;          /* emulator only: opdeck_hazards */
  const char *device;       /* "cuda:N", "emulator:ARCH" with ARCH = sm_90a|sm_100a|sm_103a, or "offline:ARCH", which
                               needs no driver: it lists, plans and explains. NULL = OPDECK_DEVICE */
  const char *schedule;     /* emulator only: "eager", "lazy", "random[:SEED]"; NULL = OPDECK_SCHEDULE, else eager */
  const char *emulator_lib; /* NULL = OPDECK_EMULATOR_LIB, else libopdeck_emu.so beside libopdeck.so */
} opdeck_ctx_desc;

typedef struct opdeck_device_info {
  uint32_t struct_size;
  int32_t is_emulator;
  const char *arch;       /* "sm_100a" */
  int32_t num_sms;        /* 0 offline */
  int32_t driver_version; /* as cuDriverGetVersion, 12080 = CUDA 12.8; 0 offline */
} opdeck_device_info;

typedef struct opdeck_kernel_info {
  uint32_t struct_size;
  uint32_t smem_bytes;
  const char *variant; /* identity of the variant */
  const char *family;
  const char *arch;
  const char *fusion; /* canonical name, "none" without one */
  const char *config; /* "tile_m=128 tile_n=128 kv_stages=3" */
  const char *cubin_sha256;
  const char *pack; /* path of the pack that holds it */
  uint32_t num_registers;
  uint32_t num_threads;
} opdeck_kernel_info;

/* What the emulator counted in the context's last launch. All zero on a GPU. */
typedef struct opdeck_launch_report {
  uint32_t struct_size;
  uint32_t num_launches;
  uint64_t num_ctas;
  uint64_t warp_instructions;
  uint64_t mma_macs;
  uint64_t tma_load_bytes;
  uint64_t tma_store_bytes;
  char cubin_sha256[65];
} opdeck_launch_report;

/* Version of the library loaded: major << 16 | minor. */
uint32_t opdeck_version(void);
const char *opdeck_status_name(opdeck_status status);
/* Message of the last error on this thread, "" when there was none. */
const char *opdeck_last_error(void);

opdeck_status opdeck_ctx_create(const opdeck_ctx_desc *desc, opdeck_ctx **ctx);
/* The context lives on until its last plan is destroyed. Its launches must have finished by then. NULL is allowed. */
void opdeck_ctx_destroy(opdeck_ctx *ctx);
opdeck_status opdeck_ctx_device_info(opdeck_ctx *ctx, opdeck_device_info *info);
/* Adds a pack's kernels behind those already loaded. Loading the same file again changes nothing. */
opdeck_status opdeck_ctx_load_pack(opdeck_ctx *ctx, const char *path);
/* Loads every *.opdeck.so of OPDECK_PACK_PATH (colon-separated folders or files), then of opdeck-packs/ beside
 * libopdeck.so. A pack that does not fit is skipped; the message then says why. */
opdeck_status opdeck_ctx_load_default_packs(opdeck_ctx *ctx);
opdeck_status opdeck_ctx_num_kernels(opdeck_ctx *ctx, uint32_t *num_kernels);
opdeck_status opdeck_ctx_kernel_info(opdeck_ctx *ctx, uint32_t kernel_idx, opdeck_kernel_info *info);
opdeck_status opdeck_ctx_last_report(opdeck_ctx *ctx, opdeck_launch_report *report);

/* Chooses the first variant, in priority order, that accepts the problem. Strides must be at least 0, and more than 0
 * for outputs and for tensors that TMA moves; strides of extents of at most 1 are ignored. */
opdeck_status opdeck_plan_create(opdeck_ctx *ctx, const opdeck_problem *problem, opdeck_plan **plan);
void opdeck_plan_destroy(opdeck_plan *plan);
opdeck_status opdeck_plan_info(opdeck_plan *plan, opdeck_kernel_info *info);
opdeck_status opdeck_plan_workspace_bytes(opdeck_plan *plan, size_t *bytes);
/* Does all loading now, so that a launch (under graph capture, say) loads nothing. */
opdeck_status opdeck_plan_prepare(opdeck_plan *plan);
/* Launches on `stream` (a CUstream; NULL = the default stream). `problem` has the arguments that the plan was made
 * with, in the same order, of the same shapes and strides, and the same fusion; data pointers and scalars may differ.
 * No output may share memory with another tensor. `workspace` is 256-byte aligned device memory of at least
 * opdeck_plan_workspace_bytes, and may be NULL when that is 0. What it holds does not matter. It is the launch's until
 * that is done: launches of one thread on one stream may share one. Allocates nothing and takes no lock (the emulator
 * takes its own: there launches run one by one, and are done on return). */
opdeck_status opdeck_plan_launch(opdeck_plan *plan, const opdeck_problem *problem, void *workspace,
                                 size_t workspace_bytes, void *stream);

/* Writes a table, one line a variant with "accepts" or the reason of its refusal, into text (at most
 * capacity_bytes, NUL-terminated); *needed_bytes, if not NULL, gets the size of the whole text with its NUL. */
opdeck_status opdeck_explain(opdeck_ctx *ctx, const opdeck_problem *problem, char *text, size_t capacity_bytes,
                             size_t *needed_bytes);

/* The lists of the mask "block_sparse[inner=MASK]", whose tiles that no query sees are not visited: its leaves
 * "block_sparse.tiles" and "block_sparse.ranges". kinds (B or 1, Hq or 1, q_tiles, k_tiles) uint8 says what each tile of
 * 128 queries by 128 keys of a sequence is under MASK: 0 = no query sees a key of it, 1 = some may, 2 = each of its
 * queries sees all 128. tiles (.., .., ceil(q_tiles / 2), k_tiles) and ranges (.., .., q_tiles, 4) are int32. All three
 * are compact and in host memory; what is written there goes to the device as the host likes. */
opdeck_status opdeck_block_lists(const opdeck_tensor *kinds, const opdeck_tensor *tiles, const opdeck_tensor *ranges);

#ifdef __cplusplus
}
#endif
#endif
