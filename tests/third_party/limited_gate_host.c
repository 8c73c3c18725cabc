/* SPDX-License-Identifier: Apache-2.0
 *
 * limited_gate_host.c: a C host that runs a third party's gated activation by its name, with its numbers, behind a
 * block-scaled product whose result is block-scaled too.
 *
 *     limited_gate_host PACK DEVICE
 *
 * MXFP8 operands, D (M, N / 2) of MXFP8 with its scales, and amax. Compares with double precision on the CPU: exit status
 * 0 when they agree, 1 when not, 2 when opdeck reported an error.
 */
#include "opdeck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
  M = 130,
  N = 128,
  K = 64,
  NUM_COLS = N / 2,
  BLOCK = 32,
  TILE_BYTES = 512,
  NUM_TENSORS = 7
};

static const float slope = 1.5F, limit = 3.0F;
static uint8_t a[M * K], b[N * K], a_scale[2 * TILE_BYTES], b_scale[TILE_BYTES];
static uint8_t d[M * NUM_COLS], d_block_scale[2 * TILE_BYTES];
static float amax = -1.0F; /* whatever stands there does not matter */

static void fill(uint8_t *elements, int count, uint64_t state) {
  for (int idx = 0; idx < count; ++idx) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    elements[idx] = state >> 63 ? 0x38 : 0xb8; /* 1 and -1 as e4m3 */
  }
}

static opdeck_tensor tensor_of(void *data, int32_t rank, const int64_t *shape, uint8_t code, uint8_t bits) {
  const opdeck_tensor tensor = {data, OPDECK_DEVICE_CPU, 0, rank, code, bits, 1, shape, NULL, 0};
  return tensor;
}

static opdeck_status compute(const char *pack, const char *device) {
  const int64_t a_shape[3] = {1, M, K}, b_shape[3] = {1, N, K}, d_shape[3] = {1, M, NUM_COLS}, one[1] = {1};
  const int64_t m_scales[4] = {1, 2, 1, TILE_BYTES}, n_scales[4] = {1, 1, 1, TILE_BYTES};
  const opdeck_tensor tensors[NUM_TENSORS] = {
      tensor_of(a, 3, a_shape, OPDECK_CODE_FP8_E4M3, 8),    tensor_of(b, 3, b_shape, OPDECK_CODE_FP8_E4M3, 8),
      tensor_of(a_scale, 4, m_scales, OPDECK_CODE_E8M0, 8), tensor_of(b_scale, 4, n_scales, OPDECK_CODE_E8M0, 8),
      tensor_of(d, 3, d_shape, OPDECK_CODE_FP8_E4M3, 8),    tensor_of(d_block_scale, 4, m_scales, OPDECK_CODE_E8M0, 8),
      tensor_of(&amax, 1, one, OPDECK_CODE_FLOAT, 32),
  };
  static const char *const names[NUM_TENSORS] = {"a", "b", "a_scale", "b_scale", "d", "d_block_scale", "amax"};
  opdeck_arg args[NUM_TENSORS + 1];
  for (int idx = 0; idx < NUM_TENSORS; ++idx)
    args[idx] = (opdeck_arg){names[idx], OPDECK_ARG_TENSOR, 0, {.tensor = &tensors[idx]}};
  args[NUM_TENSORS] = (opdeck_arg){"alpha", OPDECK_ARG_F32, 0, {.f32 = 0.25F}};
  const opdeck_arg leaves[2] = {
      {"acme.limited_gate.slope", OPDECK_ARG_F32, 0, {.f32 = slope}},
      {"acme.limited_gate.limit", OPDECK_ARG_F32, 0, {.f32 = limit}},
  };
  const opdeck_fusion fusion = {sizeof fusion, 2, "acme.limited_gate", leaves};
  const opdeck_problem problem = {sizeof problem, NUM_TENSORS + 1, "mx_gemm", args, &fusion, NULL};
  const opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = device};
  opdeck_ctx *ctx = NULL;
  opdeck_plan *plan = NULL;
  opdeck_status status = opdeck_ctx_create(&desc, &ctx);
  if (status == OPDECK_OK) status = opdeck_ctx_load_pack(ctx, pack);
  if (status == OPDECK_OK) status = opdeck_plan_create(ctx, &problem, &plan);
  if (status == OPDECK_OK) status = opdeck_plan_launch(plan, &problem, NULL, 0, NULL);
  if (status != OPDECK_OK) fprintf(stderr, "%s\n", opdeck_last_error());
  opdeck_plan_destroy(plan);
  opdeck_ctx_destroy(ctx);
  return status;
}

static double clamped(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

static double sum_of(int row, int column) {
  int sum = 0;
  for (int k = 0; k < K; ++k) sum += a[row * K + k] == b[column * K + k] ? 1 : -1;
  return 0.25 * sum;
}

static double exact(int row, int column) {
  const double gate = clamped(sum_of(row, 2 * column), -INFINITY, limit);
  const double value = clamped(sum_of(row, 2 * column + 1), -limit, limit);
  return gate / (1 + exp(-slope * gate)) * (value + 1);
}

static double e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const double mantissa = bits & 7;
  const double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

static int is_right(void) {
  double largest = 0;
  int num_wrong = 0;
  for (int row = 0; row < M; ++row)
    for (int column = 0; column < NUM_COLS; ++column) {
      const size_t offset = (size_t)(row / 128 * TILE_BYTES + row % 32 * 16 + row % 128 / 32 * 4 + column / BLOCK);
      const int exponent = d_block_scale[offset] - 127;
      const double want = exact(row, column);
      const double got = ldexp(e4m3_value(d[row * NUM_COLS + column]), exponent);
      /* Half a step of e4m3, the eighth that the largest of a block may lose, subnormals. */
      num_wrong += !(fabs(got - want) <= 0.126 * fabs(want) + ldexp(1, exponent - 10));
      if (fabs(want) > largest) largest = fabs(want);
    }
  for (int byte = 0; byte < TILE_BYTES; ++byte) /* the second tile has two rows of two blocks */
    if (byte != 0 && byte != 1 && byte != 16 && byte != 17) num_wrong += d_block_scale[TILE_BYTES + byte] != 0;
  printf("amax %g of %g, %d wrong\n", (double)amax, largest, num_wrong);
  return num_wrong == 0 && fabs((double)amax - largest) <= 1e-5 * largest;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  fill(a, M * K, 1);
  fill(b, N * K, 2);
  memset(a_scale, 127, sizeof a_scale); /* 1 */
  memset(b_scale, 127, sizeof b_scale);
  memset(d_block_scale, 0xff, sizeof d_block_scale);
  memset(d, 0xff, sizeof d);
  if (compute(argv[1], argv[2]) != OPDECK_OK) return 2;
  const int passed = is_right();
  puts(passed ? "PASS" : "FAIL");
  return passed ? 0 : 1;
}
