/* SPDX-License-Identifier: Apache-2.0
 *
 * test_bind.c: what opdeck_plan_create and opdeck_explain refuse, and how they say it: argument, got, wanted.
 */
#include "fmha_problem.h"

static opdeck_ctx *ctx;

static opdeck_status plan_status(const fmha_problem *fmha) {
  opdeck_plan *plan = NULL;
  const opdeck_status status = opdeck_plan_create(ctx, &fmha->problem, &plan);
  CHECK((status == OPDECK_OK) == (plan != NULL));
  if (status != OPDECK_OK) return status; /* the message must survive */
  opdeck_plan_destroy(plan);
  return status;
}

/* Statements that bend a legal problem, and the message that must follow. */
#define REFUSES(bend, status, text)                 \
  do {                                              \
    fmha_problem fmha;                              \
    init_fmha(&fmha);                               \
    bend;                                           \
    CHECK_STATUS(plan_status(&fmha), status, text); \
  } while (0)
#define INVALID(bend, text) REFUSES(bend, OPDECK_INVALID_ARGUMENT, text)
#define ACCEPTS(bend) REFUSES(bend, OPDECK_OK, "")

static void test_problem_struct(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  opdeck_plan *plan = NULL;
  CHECK_STATUS(opdeck_plan_create(ctx, &fmha.problem, NULL), OPDECK_INVALID_ARGUMENT, "plan: got NULL");
  CHECK_STATUS(opdeck_plan_create(NULL, &fmha.problem, &plan), OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  CHECK_STATUS(opdeck_plan_create(ctx, NULL, &plan), OPDECK_INVALID_ARGUMENT, "problem: got NULL");
  ACCEPTS((void)0);
  INVALID(fmha.problem.struct_size = 0, "problem.struct_size: got 0, want 40");
  REFUSES(fmha.problem.struct_size = 1000, OPDECK_VERSION, "problem.struct_size: got 1000");
  INVALID(fmha.problem.family = NULL, "problem.family: got NULL");
  INVALID(fmha.problem.args = NULL, "problem.args: got NULL, want 6 of them");
  INVALID(fmha.problem.num_args = 4000000000U, "problem.args: got 4000000000 of them, want at most 32");
  REFUSES(fmha.problem.family = "fmha_bwd", OPDECK_UNSUPPORTED, "fmha_bwd: no loaded pack has a kernel of it");
  INVALID(fmha.problem.variant = "fmha_none", "problem.variant: got \"fmha_none\"");
  ACCEPTS(fmha.problem.variant = "fmha_any");
  REFUSES(fmha.problem.variant = "fmha_hopper", OPDECK_UNSUPPORTED, "arch: got sm_100a, want sm_90a");
}

static void test_arguments(void) {
  char long_name[4096];
  memset(long_name, 'x', sizeof long_name - 1);
  long_name[sizeof long_name - 1] = '\0';
  INVALID(fmha.args[ARG_K].name = NULL, "problem.args[1].name: got NULL");
  INVALID(fmha.args[ARG_K].name = long_name, "problem.args[1].name: got 128 bytes or more");
  INVALID(fmha.args[ARG_K].name = "key", "fmha_fwd: got argument \"key\", want one of q, k, v, o, lse, softmax_scale");
  INVALID(fmha.args[ARG_K].name = "q", "argument q is given twice");
  INVALID(fmha.problem.num_args = 3, "fmha_fwd: o is missing; its arguments are q, k, v, o, lse, softmax_scale");
  INVALID(fmha.problem.num_args = 0, "q is missing");
  ACCEPTS(fmha.problem.num_args = 4);
  INVALID(fmha.args[ARG_Q].kind = OPDECK_ARG_F32, "q: got a float32 (kind 3), want a tensor");
  INVALID(fmha.args[ARG_Q].kind = -5, "q: got an unknown kind (kind -5), want a tensor");
  INVALID(fmha.args[ARG_SCALE].kind = OPDECK_ARG_I32, "softmax_scale: got an int32 (kind 2), want a float32");
  INVALID(fmha.args[ARG_V].value.tensor = NULL, "v: got tensor NULL");
}

static void test_types_and_shapes(void) {
  INVALID(fmha.tensors[ARG_Q].ndim = 3, "q: got 3 dims, want 4");
  INVALID(fmha.tensors[ARG_Q].ndim = 2000000000, "q: got 2000000000 dims, want 4");
  INVALID(fmha.tensors[ARG_Q].ndim = -1, "q: got -1 dims, want 4");
  INVALID(fmha.tensors[ARG_Q].shape = NULL, "q: got shape NULL, want 4 extents");
  INVALID(fmha.tensors[ARG_Q].dtype_bits = 64, "q: got dtype DLPack code 4 of 64 bits, want fp16|bf16");
  INVALID(fmha.tensors[ARG_LSE].dtype_bits = 16, "lse: got dtype fp16, want fp32");
  INVALID(fmha.tensors[ARG_Q].dtype_lanes = 4, "q: got dtype_lanes 4, want 1");
  INVALID(fmha.tensors[ARG_V].dtype_code = OPDECK_CODE_FLOAT, "v: got dtype fp16, want bf16 as in q");
  INVALID(fmha.shapes[ARG_Q][1] = -1, "q: got extent -1 in dim 1, want 0..4294967295");
  INVALID(fmha.shapes[ARG_Q][1] = INT64_MAX, "q: got extent 9223372036854775807 in dim 1");
  INVALID(fmha.shapes[ARG_K][0] = 1, "k: got b = 1 (shape (1, 5, 2, 64)), want 2 as in q");
  INVALID(fmha.shapes[ARG_V][1] = 4, "v: got sk = 4 (shape (2, 4, 2, 64)), want 5 as in k");
  INVALID(fmha.shapes[ARG_LSE][2] = 2, "lse: got sq = 2 (shape (2, 4, 2)), want 3 as in q");
  INVALID(fmha.tensors[ARG_Q].device_type = OPDECK_DEVICE_CUDA, "q: got device_type 2, want 1 (host memory");
  INVALID(fmha.tensors[ARG_Q].device_type = -7, "q: got device_type -7, want 1");
  INVALID(set_shape(&fmha, ARG_Q, 4, (const int64_t[]){2, 3, 3, 64}); set_shape(&fmha, ARG_O, 4, fmha.shapes[ARG_Q]);
          fmha.problem.num_args = 4, "q: got hq = 3, want a multiple of hk = 2");
  INVALID(set_shape(&fmha, ARG_K, 4, (const int64_t[]){2, 5, 0, 64});
          set_shape(&fmha, ARG_V, 4, fmha.shapes[ARG_K]), "k: got hk = 0, want >= 1");
}

static void test_strides(void) {
  INVALID(fmha.strides[ARG_Q][3] = 2, "q: got stride 2 in the last dim, want 1 (contiguous)");
  INVALID(fmha.strides[ARG_K][1] = 132, "k: got stride 132 (264 bytes) in dim 1, want a multiple of 16 bytes");
  INVALID(fmha.strides[ARG_K][1] = -128, "k: got stride -128 in dim 1, want more than 0");
  INVALID(fmha.strides[ARG_K][1] = 0, "k: got stride 0 in dim 1, want more than 0");
  INVALID(fmha.strides[ARG_K][0] = INT64_MAX, "want less than 2^40 bytes");
  INVALID(fmha.strides[ARG_K][0] = INT64_MIN, "k: got stride -9223372036854775808");
  INVALID(fmha.strides[ARG_K][0] = INT64_C(1) << 39, "want less than 2^40 bytes");
  ACCEPTS(fmha.strides[ARG_K][0] = (INT64_C(1) << 39) - 8);
  INVALID(fmha.strides[ARG_O][1] = 128,
          "o: got shape (2, 3, 4, 64) with strides (768, 128, 64, 1), want an output whose "
          "elements do not overlap");
  INVALID(fmha.strides[ARG_LSE][0] = 0, "lse: got stride 0 in dim 0, want more than 0");
  ACCEPTS(fmha.tensors[ARG_Q].strides = NULL);
  /* BHSD in memory, seen as BSHD. */
  ACCEPTS((fmha.strides[ARG_O][1] = 64, fmha.strides[ARG_O][2] = 3 * 64));
  /* An extent of 1 makes its stride meaningless, as NumPy's strides of such dims are. */
  ACCEPTS((set_shape(&fmha, ARG_K, 4, (const int64_t[]){2, 1, 2, 64}), fmha.strides[ARG_K][1] = -3,
           set_shape(&fmha, ARG_V, 4, (const int64_t[]){2, 1, 2, 64})));
  /* Zero keys, queries, batches. */
  ACCEPTS((set_shape(&fmha, ARG_K, 4, (const int64_t[]){2, 0, 2, 64}),
           set_shape(&fmha, ARG_V, 4, (const int64_t[]){2, 0, 2, 64})));
}

static void test_huge_empty_shape(void) {
  INVALID((set_shape(&fmha, ARG_K, 4, (const int64_t[]){2, 0, 4000000000, 4000000000}), fmha.strides[ARG_K][0] = 64),
          "k: got more than 2^63 elements");
}

static void test_unsupported(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  static const int args[] = {ARG_Q, ARG_K, ARG_V, ARG_O};
  for (size_t idx = 0; idx < 4; ++idx) {
    fmha.shapes[args[idx]][3] = 32;
  }
  CHECK_STATUS(plan_status(&fmha), OPDECK_UNSUPPORTED,
               "fmha_fwd on sm_100a: none of 5 variants (1 of them for other archs)");
  CHECK(strstr(opdeck_last_error(), "nearest: fmha_bf16 (dqk: got 32, want 64|128 (others: mla))") != NULL);
  CHECK(strstr(opdeck_last_error(),
               "\n  dqk: got 32, want 64|128 (others: mla) (3 variants, such as fmha_bf16)\n") != NULL);
  CHECK(strstr(opdeck_last_error(), "\n  fmha_alibi: fusion: got none, want alibi") != NULL);
  CHECK(strstr(opdeck_last_error(), "\n  fmha_hopper") == NULL);
}

static void test_fusion(void) {
  float slopes[5] = {0};
  int64_t num_heads[] = {4};
  const opdeck_tensor slopes_tensor = {slopes, OPDECK_DEVICE_CPU, 0, 1, OPDECK_CODE_FLOAT, 32, 1, num_heads, NULL, 0};
  opdeck_arg leaves[] = {{"alibi.slopes", OPDECK_ARG_TENSOR, 0, {.tensor = &slopes_tensor}},
                         {"alibi.offset", OPDECK_ARG_I32, 0, {.i32 = 3}}};
  opdeck_fusion fusion = {sizeof fusion, 2, "alibi", leaves};
  ACCEPTS(fmha.problem.fusion = &fusion);
  fusion.struct_size = 8;
  INVALID(fmha.problem.fusion = &fusion, "fusion.struct_size: got 8, want 24");
  fusion.struct_size = sizeof fusion;
  fusion.name = NULL;
  INVALID(fmha.problem.fusion = &fusion, "fusion.name: got NULL");
  fusion.name = "softcap";
  REFUSES(fmha.problem.fusion = &fusion, OPDECK_UNSUPPORTED, "fmha_alibi: fusion: got softcap, want alibi");
  fusion.name = "none";
  INVALID(fmha.problem.fusion = &fusion, "none: got argument \"alibi.slopes\", want none");
  fusion.name = "alibi";
  num_heads[0] = 5;
  INVALID(fmha.problem.fusion = &fusion, "alibi.slopes: got 5 in dim 0 of shape (5), want num_heads = 4|1");
  INVALID((fmha.problem.fusion = &fusion, fmha.args[ARG_LSE] = fmha.args[ARG_SCALE], --fmha.problem.num_args),
          "alibi.slopes: got 5 in dim 0 of shape (5), want num_heads = 3|1");
  num_heads[0] = 3;
  ACCEPTS((fmha.problem.fusion = &fusion, fmha.args[ARG_LSE] = fmha.args[ARG_SCALE], --fmha.problem.num_args));
  num_heads[0] = 1;
  ACCEPTS(fmha.problem.fusion = &fusion);
  num_heads[0] = 4;
  fusion.num_leaves = 1;
  INVALID(fmha.problem.fusion = &fusion, "alibi: alibi.offset is missing");
  fusion.num_leaves = 17;
  INVALID(fmha.problem.fusion = &fusion, "fusion.leaves: got 17 of them, want at most 16");
  fusion.num_leaves = 2;
  leaves[1].kind = OPDECK_ARG_F32;
  INVALID(fmha.problem.fusion = &fusion, "alibi.offset: got a float32 (kind 3), want an int32");
}

/* More blocks of rows than SMs: a later variant is preferred, but not the one that accepts other types too. */
static void test_preference(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  const int64_t sq = 64 * 18 + 1; /* 2 * 4 * 19 blocks */
  set_shape(&fmha, ARG_Q, 4, (const int64_t[]){2, sq, 4, 64});
  set_shape(&fmha, ARG_O, 4, (const int64_t[]){2, sq, 4, 64});
  set_shape(&fmha, ARG_LSE, 3, (const int64_t[]){2, 4, sq});
  char text[4096];
  CHECK_OK(opdeck_explain(ctx, &fmha.problem, text, sizeof text, NULL));
  CHECK(strstr(text, "\n  fmha_bf16: accepts\n  fmha_any: accepts\n  fmha_many: accepts (chosen)\n") != NULL);
  CHECK(strstr(text, " row_blocks=152") != NULL);
  opdeck_plan *plan = NULL;
  opdeck_kernel_info info = {.struct_size = sizeof info};
  CHECK_OK(opdeck_plan_create(ctx, &fmha.problem, &plan));
  CHECK_OK(opdeck_plan_info(plan, &info));
  CHECK(strcmp(info.variant, "fmha_many") == 0);
  opdeck_plan_destroy(plan);
  fmha.problem.variant = "fmha_bf16";
  CHECK_OK(opdeck_plan_create(ctx, &fmha.problem, &plan));
  CHECK_OK(opdeck_plan_info(plan, &info));
  CHECK(strcmp(info.variant, "fmha_bf16") == 0);
  opdeck_plan_destroy(plan);
  fmha.problem.variant = NULL;
  for (int arg = ARG_Q; arg <= ARG_O; ++arg) fmha.tensors[arg].dtype_code = OPDECK_CODE_FLOAT;
  CHECK_OK(opdeck_plan_create(ctx, &fmha.problem, &plan));
  CHECK_OK(opdeck_plan_info(plan, &info));
  CHECK(strcmp(info.variant, "fmha_any") == 0); /* the first that accepts fp16 */
  opdeck_plan_destroy(plan);
}

static void test_explain(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  char text[4096];
  size_t needed_bytes = 0;
  CHECK_OK(opdeck_explain(ctx, &fmha.problem, text, sizeof text, &needed_bytes));
  CHECK(needed_bytes == strlen(text) + 1);
  CHECK(strstr(text, "fmha_fwd on sm_100a, fusion none\n  fmha_bf16: accepts (chosen)\n  fmha_any: accepts\n"
                     "  fmha_many: accepts\n") == text);
  CHECK(strstr(text, "fmha_hopper: arch: got sm_100a, want sm_90a\n") != NULL);
  CHECK(strstr(text, " sk=5 ") != NULL && strstr(text, " dtype.T=bf16 ") != NULL && strstr(text, " has.lse=1") != NULL);
  char small[10];
  size_t needed_again = 0;
  CHECK_OK(opdeck_explain(ctx, &fmha.problem, small, sizeof small, &needed_again));
  CHECK(needed_again == needed_bytes && strcmp(small, "fmha_fwd ") == 0);
  CHECK_OK(opdeck_explain(ctx, &fmha.problem, NULL, 0, &needed_again));
  CHECK(needed_again == needed_bytes);
  CHECK_STATUS(opdeck_explain(ctx, &fmha.problem, NULL, 1, NULL), OPDECK_INVALID_ARGUMENT, "text: got NULL");
  CHECK_STATUS(opdeck_explain(NULL, &fmha.problem, text, 1, NULL), OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  CHECK_STATUS(opdeck_explain(ctx, NULL, text, 1, NULL), OPDECK_INVALID_ARGUMENT, "problem: got NULL");
  fmha.shapes[ARG_K][0] = 7;
  CHECK_STATUS(opdeck_explain(ctx, &fmha.problem, text, sizeof text, NULL), OPDECK_INVALID_ARGUMENT, "k: got b = 7");
}

int main(void) {
  ctx = create_ctx("emulator:sm_100a");
  test_problem_struct();
  test_arguments();
  test_types_and_shapes();
  test_strides();
  test_huge_empty_shape();
  test_unsupported();
  test_fusion();
  test_explain();
  test_preference();
  CHECK(find_log(FAKE_EMULATOR)->num_launches == 0);
  opdeck_ctx_destroy(ctx);
  return check_exit_status();
}
