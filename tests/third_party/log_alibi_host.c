/* SPDX-License-Identifier: Apache-2.0
 *
 * log_alibi_host.c: a C host that runs a third party's score function by its name, with its tensor argument.
 *
 *     log_alibi_host PACK DEVICE
 *
 * bf16 attention with acme.log_alibi: a logit loses slope[head] * ln(1 + |q + sk - sq - k|). Compares O and LSE with
 * double precision on the CPU: exit status 0 when they agree, 1 when not, 2 when opdeck reported an error.
 */
#include "attention_reference.h"
#include "opdeck.h"

#include <stdio.h>

#define O_TOLERANCE 1e-2 /* relative, of bf16 */
#define LSE_TOLERANCE 5e-3

enum {
  B = 1,
  SQ = 200,
  SK = 300,
  HQ = 4,
  HK = 2,
  D = 64
};

static uint16_t q[B * SQ * HQ * D], k[B * SK * HK * D], v[B * SK * HK * D], o[B * SQ * HQ * D];
static float lse[B * HQ * SQ];
static const float slopes[HQ] = {0.0F, 0.25F, 1.0F, 3.0F};

static opdeck_tensor tensor_of(void *data, int32_t rank, const int64_t *shape, uint8_t code, uint8_t bits) {
  const opdeck_tensor tensor = {data, OPDECK_DEVICE_CPU, 0, rank, code, bits, 1, shape, NULL, 0};
  return tensor;
}

static opdeck_status compute(const char *pack, const char *device) {
  const int64_t q_shape[4] = {B, SQ, HQ, D}, k_shape[4] = {B, SK, HK, D}, lse_shape[3] = {B, HQ, SQ};
  const int64_t slopes_shape[1] = {HQ};
  const opdeck_tensor tensors[5] = {
      tensor_of(q, 4, q_shape, OPDECK_CODE_BFLOAT, 16), tensor_of(k, 4, k_shape, OPDECK_CODE_BFLOAT, 16),
      tensor_of(v, 4, k_shape, OPDECK_CODE_BFLOAT, 16), tensor_of(o, 4, q_shape, OPDECK_CODE_BFLOAT, 16),
      tensor_of(lse, 3, lse_shape, OPDECK_CODE_FLOAT, 32),
  };
  const opdeck_tensor slopes_tensor = tensor_of((void *)slopes, 1, slopes_shape, OPDECK_CODE_FLOAT, 32);
  static const char *const names[5] = {"q", "k", "v", "o", "lse"};
  opdeck_arg args[5];
  for (int arg = 0; arg < 5; ++arg) args[arg] = (opdeck_arg){names[arg], OPDECK_ARG_TENSOR, 0, {.tensor = &tensors[arg]}};
  const opdeck_arg leaf = {"acme.log_alibi.slopes", OPDECK_ARG_TENSOR, 0, {.tensor = &slopes_tensor}};
  const opdeck_fusion fusion = {sizeof fusion, 1, "acme.log_alibi", &leaf};
  const opdeck_problem problem = {sizeof problem, 5, "fmha_fwd", args, &fusion, NULL};
  const opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = device};
  opdeck_ctx *ctx = NULL;
  opdeck_plan *plan = NULL;
  opdeck_status status = opdeck_ctx_create(&desc, &ctx);
  if (status == OPDECK_OK) status = opdeck_ctx_load_pack(ctx, pack);
  if (status == OPDECK_OK) status = opdeck_plan_create(ctx, &problem, &plan);
  if (status == OPDECK_OK) status = opdeck_plan_launch(plan, &problem, NULL, 0, NULL);
  if (status != OPDECK_OK) fprintf(stderr, "%s: %s\n", opdeck_status_name(status), opdeck_last_error());
  opdeck_plan_destroy(plan);
  opdeck_ctx_destroy(ctx);
  return status;
}

/* Logits of one query of one head; returns their log-sum-exp. */
static double logits_of(int query, int head, double *logits) {
  double sum = 0.0;
  for (int key = 0; key < SK; ++key) {
    const double score = dot(q + (query * HQ + head) * D, k + (key * HK + head / (HQ / HK)) * D, D) / sqrt((double)D);
    logits[key] = score - (double)slopes[head] * log(1.0 + abs(query + SK - SQ - key));
    sum += exp(logits[key]);
  }
  return log(sum);
}

static int agrees(void) {
  static double logits[SK];
  double error_squares = 0.0, want_squares = 0.0, lse_largest = 0.0;
  for (int row = 0; row < SQ * HQ; ++row) {
    const int query = row / HQ, head = row % HQ;
    const double want_lse = logits_of(query, head, logits);
    lse_largest = fmax(lse_largest, lse_error(lse[head * SQ + query], want_lse));
    for (int elem = 0; elem < D; ++elem) {
      double want = 0.0;
      for (int key = 0; key < SK; ++key)
        want += exp(logits[key] - want_lse) * (double)float_of_bf16(v[(key * HK + head / (HQ / HK)) * D + elem]);
      const double off = (double)float_of_bf16(o[row * D + elem]) - want;
      error_squares += off * off;
      want_squares += want * want;
    }
  }
  const double o_relative = sqrt(error_squares / want_squares);
  printf("o relative error %.3e, bound %.0e\nlse largest error %.3e, bound %.0e\n", o_relative, O_TOLERANCE, lse_largest,
         LSE_TOLERANCE);
  return o_relative <= O_TOLERANCE && lse_largest <= LSE_TOLERANCE; /* false for NaN */
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s PACK DEVICE\n", argv[0]);
    return 2;
  }
  fill_normal(q, B * SQ * HQ * D, 1);
  fill_normal(k, B * SK * HK * D, 2);
  fill_normal(v, B * SK * HK * D, 3);
  memset(o, 0xff, sizeof o);
  memset(lse, 0xff, sizeof lse);
  if (compute(argv[1], argv[2]) != OPDECK_OK) return 2;
  const int is_right = agrees();
  puts(is_right ? "PASS" : "FAIL");
  return is_right ? 0 : 1;
}
