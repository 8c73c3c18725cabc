/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_pack.c: a pack written by hand, linked with shim.c as generated ones are. Its host code does what CuTe DSL's
 * does: load the image, get the kernel into a static handle, set attributes, launch; but its "kernel" takes the
 * arguments that the entry got, as words, for the fake driver to record. Two families: fmha_fwd, and copy for the
 * simplest case.
 *
 * Compiled with FAKE_ABI, FAKE_TRIPLE, FAKE_FIELD, FAKE_RANK or FAKE_SOURCE it is a pack that must be refused.
 */
#include "fake_driver.h"
#include "opdeck.h"
#include "pack.h"

#include <string.h>

#ifndef FAKE_ABI
#define FAKE_ABI OPDECK_PACK_ABI
#endif
#ifndef FAKE_TRIPLE
#if defined(__x86_64__)
#define FAKE_TRIPLE "x86_64-unknown-linux-gnu"
#else
#define FAKE_TRIPLE "aarch64-unknown-linux-gnu"
#endif
#endif
#ifndef FAKE_FIELD /* of an acceptance rule */
#define FAKE_FIELD "dqk"
#endif
#ifndef FAKE_RANK /* of q */
#define FAKE_RANK 4
#endif
#ifndef FAKE_SOURCE /* of the copy's first parameter */
#define FAKE_SOURCE 0
#endif

#define LENGTH(array) (int32_t)(sizeof(array) / sizeof((array)[0]))

int _cudaLibraryLoadData(opdeck_cu_library *library, const void *code, int *jit_options, void **jit_values,
                         unsigned num_jit_options, int *library_options, void **library_values,
                         unsigned num_library_options);
int _cudaLibraryGetKernel(opdeck_cu_kernel *kernel, opdeck_cu_library library, const char *name);
int _cudaKernelSetAttributeForDevice(opdeck_cu_kernel kernel, int attr, int value, int device);
int _cudaLaunchKernelEx(const opdeck_cu_launch_config *config, opdeck_cu_kernel kernel, void **args);

static int load_image(void **args, const char *image) {
  opdeck_cu_library **library = args[0];
  return _cudaLibraryLoadData(*library, image, NULL, NULL, 0, NULL, NULL, 0);
}

static int load_kernel(void **args, opdeck_cu_kernel *kernel) {
  opdeck_cu_library **library = args[0];
  const int32_t *device = args[1];
  const int result = _cudaLibraryGetKernel(kernel, **library, "kernel");
  return result != 0 ? result : _cudaKernelSetAttributeForDevice(*kernel, 8, 1024, *device);
}

static int launch(void **args, int32_t num_args, const char *variant, const opdeck_pack_param *params,
                  opdeck_cu_kernel kernel) {
  fake_call call = {.variant = variant, .num_args = num_args};
  for (int32_t arg_idx = 0; arg_idx < num_args - 2; ++arg_idx) {
    const int32_t num_dynamic = params[arg_idx].num_shape_dims + params[arg_idx].num_stride_dims;
    const size_t num_bytes =
        params[arg_idx].kind == OPDECK_ARG_TENSOR ? (size_t)(1 + num_dynamic) * sizeof(uint64_t) : sizeof(int32_t);
    memcpy(call.words[arg_idx], args[arg_idx], num_bytes);
  }
  opdeck_cu_launch_config config = {1, 1, 1, 128, 1, 1, 0, *(void **)args[num_args - 2], NULL, 0};
  void *kernel_args[] = {&call};
  return _cudaLaunchKernelEx(&config, kernel, kernel_args);
}

/* The three functions of one exported object; VARIANT's parameters are VARIANT_params. */
#define EXPORTED_OBJECT(variant, params)                                                                  \
  static opdeck_cu_kernel variant##_kernel;                                                               \
  static void variant##_init(void **args) { *(int32_t *)args[1] = load_image(args, #variant); }           \
  static void variant##_load(void **args) { *(int32_t *)args[2] = load_kernel(args, &variant##_kernel); } \
  static void variant##_entry(void **args, int32_t num_args) {                                            \
    *(int32_t *)args[num_args - 1] = launch(args, num_args, #variant, params, variant##_kernel);          \
  }

static const int32_t half_dtypes[] = {OPDECK_DT_FP16, OPDECK_DT_BF16};
static const int32_t fp32_only[] = {OPDECK_DT_FP32};
static const char *const q_dims[] = {"b", "sq", "hq", "dqk"};
static const char *const k_dims[] = {"b", "sk", "hk", "dqk"};
static const char *const v_dims[] = {"b", "sk", "hk", "dv"};
static const char *const o_dims[] = {"b", "sq", "hq", "dv"};
static const char *const lse_dims[] = {"b", "hq", "sq"};
static const char *const slope_dims[] = {"num_heads|1"};

#define BSHD(name, access, rank, dims) \
  {name, OPDECK_ARG_TENSOR, access, 0, rank, dims, "T", 2, 16, half_dtypes, 1, OPDECK_DEFAULT_NONE, NULL}

static const opdeck_pack_arg fmha_args[] = {
    BSHD("q", 1, FAKE_RANK, q_dims),
    BSHD("k", 1, 4, k_dims),
    BSHD("v", 1, 4, v_dims),
    BSHD("o", 2, 4, o_dims),
    {"lse", OPDECK_ARG_TENSOR, 2, 1, 3, lse_dims, NULL, 1, 4, fp32_only, 0, OPDECK_DEFAULT_NONE, NULL},
    {"softmax_scale", OPDECK_ARG_F32, 1, 1, 0, NULL, NULL, 0, 0, NULL, 0, OPDECK_DEFAULT_RSQRT, "dqk"},
};
static const opdeck_pack_arg alibi_leaves[] = {
    {"alibi.slopes", OPDECK_ARG_TENSOR, 1, 0, 1, slope_dims, NULL, 1, 4, fp32_only, 0, OPDECK_DEFAULT_NONE, NULL},
    {"alibi.offset", OPDECK_ARG_I32, 1, 0, 0, NULL, NULL, 0, 0, NULL, 0, OPDECK_DEFAULT_NONE, NULL},
};

static const int64_t zero[] = {0};
static const int64_t one[] = {1};
static const int64_t bf16[] = {OPDECK_DT_BF16};
static const int64_t d64_or_128[] = {64, 128};
static const opdeck_rule fmha_checks[] = {
    {"hq", OPDECK_RULE_MULTIPLE_OF, 0, NULL, "hk"},
    {"hk", OPDECK_RULE_GE, 1, one, NULL},
    {"softmax_scale", OPDECK_RULE_GE, 1, zero, NULL},
};
static const opdeck_rule fmha_empty[] = {{"b", OPDECK_RULE_EQ, 1, zero, NULL}, {"sq", OPDECK_RULE_EQ, 1, zero, NULL}};
#define D64_OR_128(the_field) \
  {.field = the_field, .op = OPDECK_RULE_IN, .num_values = 2, .values = d64_or_128, .hint = "others: mla"}
static const opdeck_rule accept_bf16[] = {{"dtype.T", OPDECK_RULE_EQ, 1, bf16, NULL}, D64_OR_128(FAKE_FIELD)};
static const opdeck_rule accept_any_dtype[] = {D64_OR_128("dqk")};

static const int32_t first_three[] = {0, 1, 2};
static const int32_t all_three[] = {0, 1, 2};
static const int32_t first[] = {0};
#define BSHD_PARAM(source) {source, OPDECK_ARG_TENSOR, 3, 3, first_three, first_three}
#define FMHA_PARAMS                                                                                                 \
  BSHD_PARAM(0), BSHD_PARAM(1), BSHD_PARAM(2), BSHD_PARAM(3), {4, OPDECK_ARG_TENSOR, 3, 3, all_three, all_three}, { \
    5, OPDECK_ARG_F32, 0, 0, NULL, NULL                                                                             \
  }
static const opdeck_pack_param fmha_params[] = {FMHA_PARAMS};
static const opdeck_pack_param alibi_params[] = {
    FMHA_PARAMS, {-1, OPDECK_ARG_TENSOR, 1, 1, first, first}, {-2, OPDECK_ARG_I32, 0, 0, NULL, NULL}};

static const char *const n_dims[] = {"n"};
static const char *const m_dims[] = {"m"};
static const opdeck_pack_arg copy_args[] = {
    {"x", OPDECK_ARG_TENSOR, 1, 0, 1, n_dims, NULL, 1, 4, fp32_only, 0, OPDECK_DEFAULT_NONE, NULL},
    {"y", OPDECK_ARG_TENSOR, 2, 0, 1, n_dims, NULL, 1, 4, fp32_only, 0, OPDECK_DEFAULT_NONE, NULL},
    {"max_ctas", OPDECK_ARG_I32, 1, 1, 0, NULL, NULL, 0, 0, NULL, 0, OPDECK_DEFAULT_NUM_SMS, NULL},
    {"weights", OPDECK_ARG_TENSOR, 1, 1, 1, m_dims, NULL, 1, 4, fp32_only, 0, OPDECK_DEFAULT_NONE, NULL},
};
/* 4 n + 256 ceil(n / 128) + 8 + 16 m bytes. */
static const opdeck_pack_count each_elem[] = {{"n", 1}};
static const opdeck_pack_count each_tile[] = {{"n", 128}};
static const opdeck_pack_count each_weight[] = {{"m", 1}};
static const opdeck_pack_term scratch_terms[] = {
    {4, each_elem, 1, 0}, {256, each_tile, 1, 0}, {8, NULL, 0, 0}, {16, each_weight, 1, 0}};
static const opdeck_pack_param scratch_params[] = {{OPDECK_SOURCE_WORKSPACE, OPDECK_ARG_TENSOR, 0, 0, NULL, NULL},
                                                   {0, OPDECK_ARG_TENSOR, 1, 1, first, first},
                                                   {1, OPDECK_ARG_TENSOR, 1, 1, first, first}};
static const opdeck_pack_param copy_params[] = {{FAKE_SOURCE, OPDECK_ARG_TENSOR, 1, 1, first, first},
                                                {1, OPDECK_ARG_TENSOR, 1, 1, first, first},
                                                {2, OPDECK_ARG_I32, 0, 0, NULL, NULL}};

EXPORTED_OBJECT(fmha_bf16, fmha_params)
EXPORTED_OBJECT(fmha_any, fmha_params)
EXPORTED_OBJECT(fmha_many, fmha_params)
EXPORTED_OBJECT(fmha_alibi, alibi_params)
EXPORTED_OBJECT(fmha_hopper, fmha_params)
EXPORTED_OBJECT(copy_f32, copy_params)
EXPORTED_OBJECT(copy_scratch, scratch_params)

static const opdeck_pack_count num_row_blocks[] = {{"b", 1}, {"hq", 1}, {"sq", 64}};
static const opdeck_pack_product fmha_products[] = {{"row_blocks", num_row_blocks, LENGTH(num_row_blocks), 0}};
static const opdeck_rule with_lse[] = {{"has.lse", OPDECK_RULE_EQ, 1, one, NULL}};
static const opdeck_rule without_lse[] = {{"has.lse", OPDECK_RULE_EQ, 1, zero, NULL}};
/* Problems without LSE have another, to see which row counts. */
static const opdeck_pack_size fmha_sizes[] = {
    {"num_heads", {"hq", 1}, with_lse, LENGTH(with_lse), 0},
    {"num_heads", {"hq", 3}, without_lse, LENGTH(without_lse), 1},
};
static const opdeck_rule prefer_many[] = {{"row_blocks", OPDECK_RULE_GT, 0, NULL, "num_sms"}};

static const opdeck_pack_family families[] = {
    {"fmha_fwd", fmha_args, LENGTH(fmha_args), LENGTH(fmha_checks), fmha_checks, fmha_empty, LENGTH(fmha_empty),
     LENGTH(fmha_products), fmha_products, fmha_sizes, LENGTH(fmha_sizes), 0},
    {"copy", copy_args, LENGTH(copy_args), 0, NULL, NULL, 0, 0, NULL, NULL, 0, 0},
};

#define SHA256_OF_NOTHING "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
/* The members that all variants have alike or by their name. */
#define VARIANT(name, the_family_idx, the_arch, the_fusion, the_params)                                         \
  .id = #name, .arch = the_arch, .fusion = the_fusion, .config = "tile_m=128 tile_n=128", .params = the_params, \
  .num_params = LENGTH(the_params), .family_idx = the_family_idx, .smem_bytes = 1024, .num_registers = 168,     \
  .num_threads = 512, .cuda_init = name##_init, .cuda_load_to_device = name##_load, .entry = name##_entry,      \
  .cubin_sha256 = SHA256_OF_NOTHING, .ptx = "// " #name, .ptx_bytes = sizeof "// " #name - 1
#define ACCEPT(rules) .accept = rules, .num_accept = LENGTH(rules)

static const opdeck_pack_variant variants[] = {
    {VARIANT(fmha_bf16, 0, "sm_100a", "none", fmha_params), ACCEPT(accept_bf16)},
    {VARIANT(fmha_any, 0, "sm_100a", "none", fmha_params), ACCEPT(accept_any_dtype), .prefer = prefer_many,
     .num_prefer = LENGTH(prefer_many)},
    {VARIANT(fmha_many, 0, "sm_100a", "none", fmha_params), ACCEPT(accept_bf16), .prefer = prefer_many,
     .num_prefer = LENGTH(prefer_many)},
    {VARIANT(fmha_alibi, 0, "sm_100a", "alibi", alibi_params), ACCEPT(accept_bf16), .leaves = alibi_leaves,
     .num_leaves = LENGTH(alibi_leaves)},
    {VARIANT(fmha_hopper, 0, "sm_90a", "none", fmha_params), ACCEPT(accept_bf16)},
    {VARIANT(copy_f32, 1, "sm_100a", "none", copy_params)},
    {VARIANT(copy_scratch, 1, "sm_100a", "none", scratch_params), .workspace = scratch_terms,
     .num_terms = LENGTH(scratch_terms)},
};

const opdeck_pack_table opdeck_pack_contents = {
    sizeof(opdeck_pack_table), FAKE_ABI,         "fake", "none", FAKE_TRIPLE, families, variants,
    LENGTH(families),          LENGTH(variants),
};
