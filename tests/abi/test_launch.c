/* SPDX-License-Identifier: Apache-2.0
 *
 * test_launch.c: what reaches a variant's entry, the emulator's session around it, and the launches that must not
 * happen.
 */
#include "fmha_problem.h"

#include <math.h>

static opdeck_ctx *ctx;
static fake_log *seen;

static float float_of(uint64_t word) {
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

static int words_are(int arg, int num_words, const uint64_t *want) {
  for (int word = 0; word < num_words; ++word)
    if (seen->call.words[arg][word] != want[word]) return 0;
  return 1;
}

static opdeck_plan *create_plan(const fmha_problem *fmha) {
  opdeck_plan *plan = NULL;
  CHECK_OK(opdeck_plan_create(ctx, &fmha->problem, &plan));
  return plan;
}

static void test_parameters(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  opdeck_plan *plan = create_plan(&fmha);
  size_t bytes = 99;
  CHECK_OK(opdeck_plan_workspace_bytes(plan, &bytes));
  CHECK(bytes == 0);
  opdeck_kernel_info info = {.struct_size = sizeof info};
  CHECK_OK(opdeck_plan_info(plan, &info));
  CHECK(strcmp(info.variant, "fmha_bf16") == 0);
  fmha.tensors[ARG_Q].byte_offset = 32;
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, (void *)0x77));
  CHECK(strcmp(seen->call.variant, "fmha_bf16") == 0);
  CHECK(seen->call.num_args == 8 && seen->stream == (void *)0x77);
  CHECK(words_are(ARG_Q, 7, (const uint64_t[]){(uint64_t)(uintptr_t)memory[ARG_Q] + 32, 2, 3, 4, 768, 256, 64}));
  CHECK(words_are(ARG_K, 7, (const uint64_t[]){(uint64_t)(uintptr_t)memory[ARG_K], 2, 5, 2, 640, 128, 64}));
  CHECK(words_are(ARG_O, 7, (const uint64_t[]){(uint64_t)(uintptr_t)memory[ARG_O], 2, 3, 4, 768, 256, 64}));
  CHECK(words_are(ARG_LSE, 7, (const uint64_t[]){(uint64_t)(uintptr_t)memory[ARG_LSE], 2, 4, 3, 12, 3, 1}));
  CHECK(float_of(seen->call.words[ARG_SCALE][0]) == 0.25F);
  /* A plan serves other pointers and scalars. */
  fmha.tensors[ARG_K].data = memory[ARG_K] + 4096;
  fmha.args[ARG_SCALE].value.f32 = 0.5F;
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  CHECK(seen->call.words[ARG_K][0] == (uint64_t)(uintptr_t)memory[ARG_K] + 4096);
  CHECK(float_of(seen->call.words[ARG_SCALE][0]) == 0.5F && seen->stream == NULL);
  opdeck_plan_destroy(plan);
}

static void test_optional_arguments_and_views(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  fmha.problem.num_args = 4; /* no lse, no scale */
  fmha.tensors[ARG_Q].strides = NULL;
  fmha.strides[ARG_O][1] = 64; /* BHSD */
  fmha.strides[ARG_O][2] = 3 * 64;
  set_shape(&fmha, ARG_K, 4, (const int64_t[]){2, 1, 2, 64});
  set_shape(&fmha, ARG_V, 4, (const int64_t[]){2, 1, 2, 64});
  fmha.strides[ARG_K][1] = 5;
  opdeck_plan *plan = create_plan(&fmha);
  fmha.strides[ARG_K][1] = 9; /* the stride of an extent of 1 is nobody's business */
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  CHECK(words_are(ARG_Q, 7, (const uint64_t[]){(uint64_t)(uintptr_t)memory[ARG_Q], 2, 3, 4, 768, 256, 64}));
  CHECK(words_are(ARG_K, 7, (const uint64_t[]){(uint64_t)(uintptr_t)memory[ARG_K], 2, 1, 2, 128, 64, 64}));
  CHECK(words_are(ARG_O, 7, (const uint64_t[]){(uint64_t)(uintptr_t)memory[ARG_O], 2, 3, 4, 768, 64, 192}));
  CHECK(words_are(ARG_LSE, 7, (const uint64_t[]){0, 0, 0, 0, 0, 0, 0}));
  CHECK(fabsf(float_of(seen->call.words[ARG_SCALE][0]) - 0.125F) == 0.0F);
  CHECK(seen->num_tensors == 4);
  opdeck_plan_destroy(plan);
}

static void test_session(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  opdeck_plan *plan = create_plan(&fmha);
  seen->sha256[0] = '\0';
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  CHECK(seen->num_tensors == 5);
  CHECK(strcmp(seen->tensors[3].name, "o") == 0 && seen->tensors[3].access == OPDECK_EMU_WRITE);
  CHECK(strcmp(seen->tensors[1].name, "k") == 0 && seen->tensors[1].access == OPDECK_EMU_READ);
  CHECK(seen->tensors[1].elem_bits == 16 && seen->tensors[4].elem_bits == 32 && seen->tensors[4].num_dims == 3);
  CHECK(seen->tensors[1].data == memory[ARG_K] && seen->shapes[1][1] == 5);
  CHECK(seen->options.schedule == OPDECK_EMU_RANDOM && seen->options.seed == 7 && seen->options.hazards == 0);
  opdeck_launch_report report = {.struct_size = sizeof report};
  CHECK_OK(opdeck_ctx_last_report(ctx, &report));
  CHECK(report.num_launches == 1 && report.num_ctas == 7 && report.mma_macs == 1234567890123);
  CHECK(seen->num_outside_session == 0 && seen->num_wrong_ctx == 0);
  opdeck_plan_destroy(plan);
}

static void test_leaves(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  const int64_t num_heads[] = {4};
  const int64_t stride[] = {0}; /* a broadcast: one slope for all heads */
  float slope = 0.5F;
  const opdeck_tensor slopes = {&slope, OPDECK_DEVICE_CPU, 0, 1, OPDECK_CODE_FLOAT, 32, 1, num_heads, stride, 0};
  const opdeck_arg leaves[] = {{"alibi.offset", OPDECK_ARG_I32, 0, {.i32 = -3}},
                               {"alibi.slopes", OPDECK_ARG_TENSOR, 0, {.tensor = &slopes}}};
  const opdeck_fusion fusion = {sizeof fusion, 2, "alibi", leaves};
  fmha.problem.fusion = &fusion;
  opdeck_plan *plan = create_plan(&fmha);
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  CHECK(strcmp(seen->call.variant, "fmha_alibi") == 0 && seen->call.num_args == 10);
  CHECK(words_are(6, 3, (const uint64_t[]){(uint64_t)(uintptr_t)&slope, 4, 0}));
  CHECK((int32_t)seen->call.words[7][0] == -3);
  fmha.problem.fusion = NULL;
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_INVALID_ARGUMENT,
               "fusion: got none, want alibi as when the plan was made");
  const opdeck_fusion fewer = {sizeof fewer, 1, "alibi", leaves};
  fmha.problem.fusion = &fewer;
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_INVALID_ARGUMENT,
               "got 6 arguments and 1 leaves, want the 6 and 2");
  opdeck_plan_destroy(plan);
}

/* Other masks may have as many leaves as the plan's. */
static void test_another_fusion_is_refused(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  opdeck_plan *plan = create_plan(&fmha);
  opdeck_fusion fusion = {sizeof fusion, 0, "causal[align=bottom_right]", NULL};
  fmha.problem.fusion = &fusion;
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_INVALID_ARGUMENT,
               "fusion: got causal[align=bottom_right], want none as when the plan was made");
  fusion.name = NULL;
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_INVALID_ARGUMENT,
               "fusion.name: got NULL, want a name");
  fusion.name = "none";
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  opdeck_plan_destroy(plan);
}

static opdeck_plan *refusing_plan;

/* Bends a launch of a good plan; it must be refused, saying so, and launch nothing. */
#define LAUNCH_REFUSED(bend, text)                                                                                \
  do {                                                                                                            \
    fmha_problem fmha;                                                                                            \
    init_fmha(&fmha);                                                                                             \
    const int num_launches = seen->num_launches;                                                                  \
    bend;                                                                                                         \
    CHECK_STATUS(opdeck_plan_launch(refusing_plan, &fmha.problem, NULL, 0, NULL), OPDECK_INVALID_ARGUMENT, text); \
    CHECK(seen->num_launches == num_launches);                                                                    \
  } while (0)

static void test_refused_launches(void) {
  fmha_problem good;
  init_fmha(&good);
  refusing_plan = create_plan(&good);
  CHECK_STATUS(opdeck_plan_launch(NULL, &good.problem, NULL, 0, NULL), OPDECK_INVALID_ARGUMENT, "plan: got NULL");
  CHECK_STATUS(opdeck_plan_launch(refusing_plan, NULL, NULL, 0, NULL), OPDECK_INVALID_ARGUMENT, "problem: got NULL");
  LAUNCH_REFUSED(fmha.problem.struct_size = 1, "problem.struct_size: got 1");
  LAUNCH_REFUSED(fmha.problem.args = NULL, "problem: got 6 arguments");
  LAUNCH_REFUSED(fmha.problem.num_args = 5, "problem: got 5 arguments and 0 leaves, want the 6 and 0");
  LAUNCH_REFUSED(fmha.args[ARG_V].name = NULL, "argument 2: got NULL of kind 1, want v of kind 1");
  LAUNCH_REFUSED(fmha.args[ARG_V].name = "k", "argument 2: got k of kind 1, want v");
  LAUNCH_REFUSED(fmha.args[ARG_V].kind = OPDECK_ARG_F32, "argument 2: got v of kind 3, want v of kind 1");
  LAUNCH_REFUSED(fmha.args[ARG_V].value.tensor = NULL, "v: got tensor NULL");
  LAUNCH_REFUSED(fmha.tensors[ARG_V].data = NULL, "v: got data NULL, want 1280 elements");
  LAUNCH_REFUSED(fmha.tensors[ARG_LSE].data = NULL,
                 "lse: got data NULL, want 24 elements (an optional argument is left out)");
  LAUNCH_REFUSED(fmha.tensors[ARG_V].byte_offset = 8, "want a multiple of 16 bytes");
  LAUNCH_REFUSED(fmha.shapes[ARG_V][1] = 4,
                 "v: got another dtype, shape or strides than the plan's: bf16, shape (2, 5, 2, 64)");
  LAUNCH_REFUSED(fmha.strides[ARG_V][1] = 256, "v: got another dtype, shape or strides");
  LAUNCH_REFUSED(fmha.tensors[ARG_V].ndim = 3, "v: got another dtype, shape or strides");
  LAUNCH_REFUSED(fmha.tensors[ARG_V].shape = NULL, "v: got another dtype, shape or strides");
  LAUNCH_REFUSED(fmha.tensors[ARG_V].dtype_code = OPDECK_CODE_FLOAT, "v: got another dtype, shape or strides");
  LAUNCH_REFUSED(fmha.tensors[ARG_V].device_type = OPDECK_DEVICE_CUDA, "v: got device_type 2, want 1");
  LAUNCH_REFUSED(fmha.args[ARG_SCALE].value.f32 = NAN, "softmax_scale: got nan, want a finite number");
  LAUNCH_REFUSED(fmha.args[ARG_SCALE].value.f32 = -INFINITY, "softmax_scale: got -inf, want a finite number");
  LAUNCH_REFUSED(fmha.args[ARG_SCALE].value.f32 = -1.0F, "softmax_scale: got -1, want >= 0");
  LAUNCH_REFUSED(fmha.tensors[ARG_O].data = memory[ARG_Q], "o: got the memory of q, want memory of its own");
  LAUNCH_REFUSED(fmha.tensors[ARG_LSE].data = memory[ARG_O], "got the memory of ");
  LAUNCH_REFUSED(fmha.tensors[ARG_O].data = memory[ARG_Q] + 2 * 3 * 4 * 64 * 2 - 16, "o: got the memory of q");
  LAUNCH_REFUSED(fmha.tensors[ARG_Q].data = memory[ARG_O] + 16, "o: got the memory of q");
  LAUNCH_REFUSED(fmha.tensors[ARG_LSE].data = memory[ARG_V] + 4, "lse: got the memory of v");
  opdeck_plan_destroy(refusing_plan);
}

/* q and o as parts of rows of `row_heads` heads of 64; o begins `o_offset_bytes` behind q. */
static void check_packed(int64_t row_heads, ptrdiff_t o_offset_bytes, opdeck_status want, const char *text) {
  fmha_problem fmha;
  init_fmha(&fmha);
  for (int arg = ARG_Q; arg <= ARG_O; arg += ARG_O - ARG_Q) {
    fmha.strides[arg][0] = 3 * row_heads * 64;
    fmha.strides[arg][1] = row_heads * 64;
  }
  fmha.tensors[ARG_Q].data = memory[ARG_Q] + (o_offset_bytes < 0 ? -o_offset_bytes : 0);
  fmha.tensors[ARG_O].data = (char *)fmha.tensors[ARG_Q].data + o_offset_bytes;
  opdeck_plan *plan = create_plan(&fmha);
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), want, text);
  opdeck_plan_destroy(plan);
}

/* Tensors whose elements lie between each other's are legal; tensors that share one are not. */
static void test_packed_tensors(void) {
  static const char shared[] = "o: got the memory of q, want memory of its own";
  const ptrdiff_t head_bytes = 64 * 2;
  check_packed(8, 4 * head_bytes, OPDECK_OK, "");
  check_packed(8, -4 * head_bytes, OPDECK_OK, "");
  check_packed(8, 12 * head_bytes, OPDECK_OK, ""); /* begins in q's second row */
  check_packed(4, 24 * head_bytes, OPDECK_OK, ""); /* right behind q */
  check_packed(8, 3 * head_bytes, OPDECK_INVALID_ARGUMENT, shared);
  check_packed(8, 5 * head_bytes, OPDECK_INVALID_ARGUMENT, shared);
  check_packed(7, 4 * head_bytes, OPDECK_INVALID_ARGUMENT, shared);
  check_packed(8, 8 * head_bytes, OPDECK_INVALID_ARGUMENT, shared);
}

static void test_null_plan_and_outputs(void) {
  fmha_problem good;
  init_fmha(&good);
  opdeck_plan *plan = create_plan(&good);
  opdeck_kernel_info info = {.struct_size = 3};
  size_t bytes = 0;
  CHECK_STATUS(opdeck_plan_prepare(NULL), OPDECK_INVALID_ARGUMENT, "plan: got NULL");
  CHECK_STATUS(opdeck_plan_info(NULL, &info), OPDECK_INVALID_ARGUMENT, "plan: got NULL");
  CHECK_STATUS(opdeck_plan_info(plan, NULL), OPDECK_INVALID_ARGUMENT, "info: got NULL");
  CHECK_STATUS(opdeck_plan_info(plan, &info), OPDECK_INVALID_ARGUMENT, "info.struct_size: got 3");
  CHECK_STATUS(opdeck_plan_workspace_bytes(NULL, &bytes), OPDECK_INVALID_ARGUMENT, "plan: got NULL");
  CHECK_STATUS(opdeck_plan_workspace_bytes(plan, NULL), OPDECK_INVALID_ARGUMENT, "bytes: got NULL");
  opdeck_plan_destroy(plan);
  opdeck_plan_destroy(NULL);
}

static void test_nothing_to_do(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  set_shape(&fmha, ARG_Q, 4, (const int64_t[]){2, 0, 4, 64});
  set_shape(&fmha, ARG_O, 4, (const int64_t[]){2, 0, 4, 64});
  fmha.tensors[ARG_Q].data = NULL;
  fmha.tensors[ARG_O].data = NULL;
  fmha.problem.num_args = 4;
  opdeck_plan *plan = create_plan(&fmha);
  const int num_launches = seen->num_launches;
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  CHECK(seen->num_launches == num_launches);
  opdeck_launch_report report = {.struct_size = sizeof report};
  CHECK_OK(opdeck_ctx_last_report(ctx, &report));
  CHECK(report.num_launches == 0 && report.num_ctas == 0);
  opdeck_plan_destroy(plan);
  /* No keys: there is work, o = 0; k and v may be NULL, and are not registered. */
  init_fmha(&fmha);
  set_shape(&fmha, ARG_K, 4, (const int64_t[]){2, 0, 2, 64});
  set_shape(&fmha, ARG_V, 4, (const int64_t[]){2, 0, 2, 64});
  fmha.tensors[ARG_K].data = NULL;
  fmha.tensors[ARG_V].data = memory[ARG_V] + 1;
  plan = create_plan(&fmha);
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  CHECK(seen->num_launches == num_launches + 1 && seen->num_tensors == 3);
  CHECK(seen->call.words[ARG_K][0] == 0 && seen->call.words[ARG_V][0] == 0 && seen->call.words[ARG_K][2] == 0);
  opdeck_plan_destroy(plan);
}

static void test_failures_of_the_driver(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  opdeck_plan *plan = create_plan(&fmha);
  seen->launch_result = 719;
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_DRIVER,
               "fmha_bf16: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure");
  snprintf(seen->error, sizeof seen->error, "kernel x, line 12: out of bounds");
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_EMULATOR,
               "fmha_bf16: kernel x, line 12: out of bounds");
  seen->launch_result = 0;
  seen->end_result = 1;
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_EMULATOR, "opdeck_emu_end: kernel x");
  seen->end_result = 0;
  seen->begin_result = 1;
  const int num_launches = seen->num_launches;
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_EMULATOR, "opdeck_emu_begin: kernel x");
  CHECK(seen->num_launches == num_launches);
  seen->begin_result = 0;
  seen->error[0] = '\0';
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  opdeck_plan_destroy(plan);
}

/* A plan prepares once; a load that failed is tried again. */
static void test_prepare(void) {
  const int64_t num_elems[] = {16};
  const opdeck_tensor x = {memory[0], OPDECK_DEVICE_CPU, 0, 1, OPDECK_CODE_FLOAT, 32, 1, num_elems, NULL, 0};
  opdeck_tensor y = x;
  y.data = memory[1];
  const opdeck_arg args[] = {{"x", OPDECK_ARG_TENSOR, 0, {.tensor = &x}}, {"y", OPDECK_ARG_TENSOR, 0, {.tensor = &y}}};
  const opdeck_problem problem = {sizeof problem, 2, "copy", args, NULL, NULL};
  opdeck_plan *plan = NULL;
  CHECK_OK(opdeck_plan_create(ctx, &problem, &plan));
  const int num_loads = seen->num_library_loads;
  seen->load_result = 719;
  CHECK_STATUS(opdeck_plan_prepare(plan), OPDECK_DRIVER, "cuLibraryLoadData: CUDA_ERROR_LAUNCH_FAILED");
  CHECK_STATUS(opdeck_plan_launch(plan, &problem, NULL, 0, NULL), OPDECK_DRIVER, "cuLibraryLoadData");
  seen->load_result = 0;
  CHECK_OK(opdeck_plan_prepare(plan));
  CHECK_OK(opdeck_plan_prepare(plan));
  CHECK_OK(opdeck_plan_launch(plan, &problem, NULL, 0, NULL));
  CHECK(seen->num_library_loads == num_loads + 1);
  CHECK(strncmp(seen->sha256, "e3b0c44298fc", 12) == 0);
  CHECK(words_are(0, 3, (const uint64_t[]){(uint64_t)(uintptr_t)memory[0], 16, 1}));
  CHECK(words_are(2, 1, (const uint64_t[]){148})); /* the default of max_ctas: all SMs */
  opdeck_plan_destroy(plan);
}

/* The workspace's size follows the extents; it reaches the entry and, as memory that holds nothing yet, the emulator.
 */
static void test_workspace(void) {
  const int64_t num_elems[] = {130};
  const opdeck_tensor x = {memory[0], OPDECK_DEVICE_CPU, 0, 1, OPDECK_CODE_FLOAT, 32, 1, num_elems, NULL, 0};
  opdeck_tensor y = x;
  y.data = memory[1];
  const opdeck_arg args[] = {{"x", OPDECK_ARG_TENSOR, 0, {.tensor = &x}}, {"y", OPDECK_ARG_TENSOR, 0, {.tensor = &y}}};
  const opdeck_problem problem = {sizeof problem, 2, "copy", args, NULL, "copy_scratch"};
  static _Alignas(256) char workspace[2048];
  opdeck_plan *plan = NULL;
  size_t bytes = 0;
  CHECK_OK(opdeck_plan_create(ctx, &problem, &plan));
  CHECK_OK(opdeck_plan_workspace_bytes(plan, &bytes));
  CHECK(bytes == 4 * 130 + 256 * 2 + 8);
  const int num_launches = seen->num_launches;
  CHECK_STATUS(opdeck_plan_launch(plan, &problem, NULL, bytes, NULL), OPDECK_WORKSPACE,
               "workspace: got 1040 bytes at NULL, want 1040");
  CHECK_STATUS(opdeck_plan_launch(plan, &problem, workspace, bytes - 1, NULL), OPDECK_WORKSPACE,
               "workspace: got 1039 bytes, want 1040");
  CHECK_STATUS(opdeck_plan_launch(plan, &problem, workspace + 128, bytes, NULL), OPDECK_WORKSPACE,
               "want a multiple of 256 bytes");
  CHECK(seen->num_launches == num_launches);
  CHECK_OK(opdeck_plan_launch(plan, &problem, workspace, sizeof workspace, NULL));
  CHECK(seen->call.words[0][0] == (uint64_t)(uintptr_t)workspace && seen->call.words[0][1] == 0);
  CHECK(words_are(1, 3, (const uint64_t[]){(uint64_t)(uintptr_t)memory[0], 130, 1}));
  CHECK(seen->num_tensors == 3 && seen->tensors[2].data == workspace && seen->shapes[2][0] == 1040);
  CHECK(seen->tensors[2].access == OPDECK_EMU_WRITE && seen->tensors[2].elem_bits == 8);
  opdeck_plan_destroy(plan);
}

/* A dim that only an optional argument has counts where that is given, and is 0 elsewhere. */
static void test_workspace_for_an_optional_argument(void) {
  const int64_t num_elems[] = {130}, num_weights[] = {5};
  const opdeck_tensor x = {memory[0], OPDECK_DEVICE_CPU, 0, 1, OPDECK_CODE_FLOAT, 32, 1, num_elems, NULL, 0};
  opdeck_tensor y = x, weights = x;
  y.data = memory[1];
  weights.shape = num_weights;
  const opdeck_arg args[] = {{"x", OPDECK_ARG_TENSOR, 0, {.tensor = &x}},
                             {"y", OPDECK_ARG_TENSOR, 0, {.tensor = &y}},
                             {"weights", OPDECK_ARG_TENSOR, 0, {.tensor = &weights}}};
  const opdeck_problem problem = {sizeof problem, 3, "copy", args, NULL, "copy_scratch"};
  opdeck_plan *plan = NULL;
  size_t bytes = 0;
  CHECK_OK(opdeck_plan_create(ctx, &problem, &plan));
  CHECK_OK(opdeck_plan_workspace_bytes(plan, &bytes));
  CHECK(bytes == 4 * 130 + 256 * 2 + 8 + 16 * 5);
  opdeck_plan_destroy(plan);
}

static void test_offline(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  fmha.tensors[ARG_Q].device_type = OPDECK_DEVICE_CUDA; /* offline, place is not looked at */
  opdeck_ctx *offline = create_ctx("offline:sm_100a");
  opdeck_plan *plan = NULL;
  CHECK_OK(opdeck_plan_create(offline, &fmha.problem, &plan));
  CHECK_STATUS(opdeck_plan_prepare(plan), OPDECK_NO_DRIVER, "the context is offline (sm_100a)");
  CHECK_STATUS(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL), OPDECK_NO_DRIVER, "the context is offline");
  opdeck_plan_destroy(plan);
  opdeck_ctx_destroy(offline);
}

/* A plan keeps its context alive; the last of them unloads what was loaded. */
static void test_lifetimes(void) {
  fmha_problem fmha;
  init_fmha(&fmha);
  opdeck_plan *plan = create_plan(&fmha);
  opdeck_ctx_destroy(ctx);
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  CHECK(seen->num_library_unloads == 0 && seen->num_library_loads == 4);
  opdeck_plan_destroy(plan);
  CHECK(seen->num_library_unloads == 4);
}

int main(void) {
  seen = find_log(FAKE_EMULATOR);
  seen->expected_device = 1;
  const opdeck_ctx_desc desc = {sizeof desc, OPDECK_HAZARDS_OFF, "emulator:sm_100a", "random:7", FAKE_EMULATOR};
  CHECK_OK(opdeck_ctx_create(&desc, &ctx));
  CHECK_OK(opdeck_ctx_load_pack(ctx, FAKE_PACK));
  test_parameters();
  test_optional_arguments_and_views();
  test_session();
  test_leaves();
  test_another_fusion_is_refused();
  test_refused_launches();
  test_packed_tensors();
  test_null_plan_and_outputs();
  test_nothing_to_do();
  test_failures_of_the_driver();
  test_prepare();
  test_workspace();
  test_workspace_for_an_optional_argument();
  test_offline();
  test_lifetimes();
  CHECK(seen->num_outside_session == 0 && seen->num_wrong_ctx == 0);
  return check_exit_status();
}
