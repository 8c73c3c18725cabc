/* SPDX-License-Identifier: Apache-2.0
 *
 * test_threads.c: one context and one plan used by many threads at once: planning, preparing, launching, loading packs;
 * and messages that stay with their thread.
 */
#include "fmha_problem.h"

#include <pthread.h>

enum {
  NUM_THREADS = 8,
  NUM_ROUNDS = 200
};

static opdeck_ctx *ctx;
static opdeck_plan *shared_plan;
static pthread_barrier_t start;

static void *work(void *argument) {
  const int thread_idx = *(const int *)argument;
  fmha_problem fmha;
  init_fmha(&fmha);
  char wanted[64];
  snprintf(wanted, sizeof wanted, "k: got b = %d ", 10 + thread_idx);
  pthread_barrier_wait(&start);
  for (int round = 0; round < NUM_ROUNDS; ++round) {
    fmha_problem bad;
    init_fmha(&bad);
    bad.shapes[ARG_K][0] = 10 + thread_idx;
    opdeck_plan *plan = NULL;
    CHECK_OK(opdeck_plan_launch(shared_plan, &fmha.problem, NULL, 0, NULL));
    CHECK_STATUS(opdeck_plan_create(ctx, &bad.problem, &plan), OPDECK_INVALID_ARGUMENT, wanted);
    CHECK_OK(opdeck_ctx_load_pack(ctx, FAKE_PACK));
    CHECK_OK(opdeck_plan_create(ctx, &fmha.problem, &plan));
    CHECK_OK(opdeck_plan_prepare(plan));
    CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
    opdeck_plan_destroy(plan);
    opdeck_ctx *own = create_ctx("emulator:sm_100a");
    opdeck_ctx_destroy(own);
  }
  return NULL;
}

int main(void) {
  pthread_t threads[NUM_THREADS];
  int thread_idxs[NUM_THREADS];
  fake_log *seen = find_log(FAKE_EMULATOR);
  seen->expected_device = 1;
  ctx = create_ctx("emulator:sm_100a");
  fmha_problem fmha;
  init_fmha(&fmha);
  CHECK_OK(opdeck_plan_create(ctx, &fmha.problem, &shared_plan));
  pthread_barrier_init(&start, NULL, NUM_THREADS);
  for (int idx = 0; idx < NUM_THREADS; ++idx) {
    thread_idxs[idx] = idx;
    if (pthread_create(&threads[idx], NULL, work, &thread_idxs[idx]) != 0) return 1;
  }
  for (int idx = 0; idx < NUM_THREADS; ++idx) pthread_join(threads[idx], NULL);
  CHECK(seen->num_launches == 2 * NUM_THREADS * NUM_ROUNDS);
  CHECK(seen->num_library_loads == 1 && seen->num_inits == 1);
  CHECK(seen->num_outside_session == 0 && seen->num_wrong_ctx == 0);
  opdeck_plan_destroy(shared_plan);
  opdeck_ctx_destroy(ctx);
  pthread_barrier_destroy(&start);
  return check_exit_status();
}
