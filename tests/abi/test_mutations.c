/* SPDX-License-Identifier: Apache-2.0
 *
 * test_mutations.c: legal problems with members set to odd values, many thousands of them, reproducible from the seed.
 * Each call must return: with success and one launch of what was asked, or with an error that says something and no
 * launch.
 */
#include "fmha_problem.h"

#include <math.h>

enum {
  NUM_ROUNDS = 40000,
  MAX_MUTATIONS = 3
};

static uint64_t random_state = 20240607;

static uint64_t random_below(uint64_t limit) { /* xorshift64* (Vigna) */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * UINT64_C(2685821657736338717) % limit;
}

static int64_t odd_int(void) {
  static const int64_t values[] = {0,         1,         2,         3,         4,          5,
                                   8,         16,        64,        96,        -1,         -1024,
                                   INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UINT32_MAX, INT64_C(1) << 39};
  return values[random_below(sizeof values / sizeof values[0])];
}

static const char *odd_name(void) {
  static const char *const names[] = {NULL,          "",     "q",     "k",    "o",    "lse",       "softmax_scale",
                                      "fmha_fwd",    "copy", "alibi", "none", "%s%n", "fmha_bf16", "fmha_hopper",
                                      "alibi.slopes"};
  return names[random_below(sizeof names / sizeof names[0])];
}

static void mutate_tensor(fmha_problem *fmha) {
  const uint64_t arg = random_below(5);
  opdeck_tensor *tensor = &fmha->tensors[arg];
  switch (random_below(11)) {
    case 0: tensor->data = random_below(2) ? NULL : memory[random_below(5)] + random_below(64); break;
    case 1: tensor->device_type = (int32_t)odd_int(); break;
    case 2: tensor->device_id = (int32_t)odd_int(); break;
    case 3: tensor->ndim = (int32_t)odd_int(); break;
    case 4: tensor->dtype_code = (uint8_t)odd_int(); break;
    case 5: tensor->dtype_bits = (uint8_t)odd_int(); break;
    case 6: tensor->dtype_lanes = (uint16_t)odd_int(); break;
    case 7: tensor->shape = NULL; break;
    case 8: tensor->strides = NULL; break;
    case 9: fmha->shapes[arg][random_below(4)] = odd_int(); break;
    default: fmha->strides[arg][random_below(4)] = odd_int(); break;
  }
}

static void mutate_problem(fmha_problem *fmha, const opdeck_fusion *fusion) {
  opdeck_arg *arg = &fmha->args[random_below(NUM_FMHA_ARGS)];
  switch (random_below(8)) {
    case 0: fmha->problem.struct_size = (uint32_t)odd_int(); break;
    case 1: fmha->problem.num_args = (uint32_t)random_below(NUM_FMHA_ARGS + 1); break; /* more would be a lie */
    case 2: fmha->problem.family = odd_name(); break;
    case 3: fmha->problem.args = NULL; break;
    case 4: fmha->problem.variant = odd_name(); break;
    case 5: fmha->problem.fusion = fusion; break;
    case 6: arg->name = odd_name(); break;
    default:
      /* A tensor's kind changed reads its pointer as a number, which is harmless; the converse no library can detect.
       */
      if (arg->kind == OPDECK_ARG_TENSOR)
        arg->kind = OPDECK_ARG_I32 + (int32_t)random_below(9);
      else
        arg->value.f32 = random_below(2) ? NAN : (float)odd_int();
      break;
  }
}

static void mutate(fmha_problem *fmha, const opdeck_fusion *fusion) {
  const uint64_t num_mutations = random_below(MAX_MUTATIONS + 1);
  for (uint64_t mutation = 0; mutation < num_mutations; ++mutation) {
    if (random_below(3) == 0)
      mutate_problem(fmha, fusion);
    else
      mutate_tensor(fmha);
  }
}

static void check_failure(opdeck_status status) {
  CHECK(status == OPDECK_INVALID_ARGUMENT || status == OPDECK_UNSUPPORTED || status == OPDECK_VERSION);
  CHECK(opdeck_last_error()[0] != '\0');
}

/* q's shape as launched is the problem's. */
static void check_launch(const fmha_problem *fmha, const fake_log *seen) {
  for (int dim = 0; dim < 3; ++dim) CHECK((int64_t)seen->call.words[ARG_Q][1 + dim] == fmha->shapes[ARG_Q][dim]);
}

int main(void) {
  fake_log *seen = find_log(FAKE_EMULATOR);
  seen->expected_device = 1;
  opdeck_ctx *ctx = create_ctx("emulator:sm_100a");
  const opdeck_fusion fusion = {sizeof fusion, 0, "alibi", NULL};
  int num_planned = 0;
  int num_launched = 0;
  for (int round = 0; round < NUM_ROUNDS; ++round) {
    fmha_problem fmha;
    init_fmha(&fmha);
    mutate(&fmha, &fusion);
    char text[600];
    opdeck_plan *plan = NULL;
    const opdeck_status explained = opdeck_explain(ctx, &fmha.problem, text, sizeof text, NULL);
    const opdeck_status planned = opdeck_plan_create(ctx, &fmha.problem, &plan);
    /* To explain is to answer, also that nothing accepts. */
    CHECK(explained == planned || (explained == OPDECK_OK && planned == OPDECK_UNSUPPORTED));
    if (planned != OPDECK_OK) {
      check_failure(planned);
      continue;
    }
    ++num_planned;
    const int num_before = seen->num_launches;
    if (random_below(2) == 0) mutate(&fmha, &fusion); /* what is launched is not what was planned */
    const opdeck_status launched = opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL);
    if (launched != OPDECK_OK) check_failure(launched);
    if (launched != OPDECK_OK) CHECK(seen->num_launches == num_before);
    if (seen->num_launches > num_before) check_launch(&fmha, seen);
    num_launched += seen->num_launches - num_before;
    opdeck_plan_destroy(plan);
  }
  printf("%d of %d planned, %d launched\n", num_planned, NUM_ROUNDS, num_launched);
  CHECK(num_planned > NUM_ROUNDS / 10 && num_planned < NUM_ROUNDS && num_launched > num_planned / 4);
  opdeck_ctx_destroy(ctx);
  return check_exit_status();
}
