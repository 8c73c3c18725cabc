/* SPDX-License-Identifier: Apache-2.0
 *
 * block_sparse_host.c: a C host that visits only the tiles in which a third party's mask shows something.
 *
 *     block_sparse_host PACK DEVICE
 *
 * bf16 attention of two packed sequences with block_sparse[inner=acme.strided]: of the keys up to a query's own, the last
 * WIDTH and the first 64. Compares O and LSE with double precision on the CPU, and the emulator's multiply-accumulates
 * with those of the listed tiles; lengths of too many sequences must be refused. Exit status 0 when they agree, 1 when not, 2 when opdeck reported an error.
 */
#include "attention_reference.h"
#include "opdeck.h"

#include <stdio.h>

#define O_TOLERANCE 1e-2 /* relative, of bf16 */
#define LSE_TOLERANCE 5e-3

enum {
  NUM_SEQS = 2,
  NUM_Q = 430, /* of all sequences */
  NUM_K = 1000,
  MAX_K = 700, /* of the longest */
  NUM_HEADS = 2,
  D = 64,
  WIDTH = 100,
  TILE = 128,
  Q_TILES = 3,
  K_TILES = 6,
  PAIRS = 2
};
enum { Q, K, V, O, LSE, CU_SEQLENS_Q, CU_SEQLENS_K, NUM_ARGS };

static uint16_t q[NUM_Q * NUM_HEADS * D], k[NUM_K * D], v[NUM_K * D], o[NUM_Q * NUM_HEADS * D];
static float lse[NUM_HEADS * NUM_Q];
static int32_t cu_seqlens_q[NUM_SEQS + 1] = {0, 300, NUM_Q}, cu_seqlens_k[NUM_SEQS + 1] = {0, MAX_K, NUM_K};

static uint8_t kinds[NUM_SEQS][Q_TILES][K_TILES];
static int32_t tiles[NUM_SEQS][PAIRS][K_TILES], ranges[NUM_SEQS][Q_TILES][4], lengths[NUM_SEQS + 1][2];

static char message[512]; /* of the last launch */

static int is_visible(int query, int key, const int32_t length[2]) {
  const int own = query + length[1] - length[0];
  return key <= own && (own - key < WIDTH || key < 64);
}

/* 0 when no query of the tile sees a key of it, 2 when each sees all 128 keys, else 1. */
static uint8_t kind_of(int q_tile, int k_tile, const int32_t length[2]) {
  int num_queries = 0, num_seen = 0;
  for (int query = q_tile * TILE; query < length[0] && query < (q_tile + 1) * TILE; ++query, ++num_queries)
    for (int key = k_tile * TILE; key < length[1] && key < (k_tile + 1) * TILE; ++key)
      num_seen += is_visible(query, key, length);
  return num_seen == 0 ? 0 : num_seen == num_queries * TILE ? 2 : 1;
}

/* Fills `kinds`; returns how many tiles are to be visited, by each head. */
static int make_map(void) {
  int num_tiles = 0;
  for (int seq = 0; seq < NUM_SEQS; ++seq) {
    lengths[seq][0] = cu_seqlens_q[seq + 1] - cu_seqlens_q[seq];
    lengths[seq][1] = cu_seqlens_k[seq + 1] - cu_seqlens_k[seq];
    for (int tile = 0; tile < Q_TILES * K_TILES; ++tile) {
      const int q_tile = tile / K_TILES, k_tile = tile % K_TILES;
      kinds[seq][q_tile][k_tile] = kind_of(q_tile, k_tile, lengths[seq]);
      num_tiles += kinds[seq][q_tile][k_tile] != 0;
    }
  }
  return num_tiles;
}

static opdeck_tensor tensor_of(void *data, int32_t rank, const int64_t *shape, uint8_t code, uint8_t bits) {
  const opdeck_tensor tensor = {data, OPDECK_DEVICE_CPU, 0, rank, code, bits, 1, shape, NULL, 0};
  return tensor;
}

static opdeck_status launch(const char *pack, const char *device, const opdeck_fusion *fusion,
                            opdeck_launch_report *report) {
  const int64_t of_q[] = {1, NUM_Q, NUM_HEADS, D}, of_k[] = {1, NUM_K, 1, D}, of_lse[] = {1, NUM_HEADS, NUM_Q};
  const int64_t of_offsets[] = {NUM_SEQS + 1};
  void *const data[NUM_ARGS] = {q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k};
  const int64_t *const shapes[NUM_ARGS] = {of_q, of_k, of_k, of_q, of_lse, of_offsets, of_offsets};
  static const char *const names[NUM_ARGS] = {"q", "k", "v", "o", "lse", "cu_seqlens_q", "cu_seqlens_k"};
  opdeck_tensor tensors[NUM_ARGS];
  opdeck_arg args[NUM_ARGS];
  for (int arg = 0; arg < NUM_ARGS; ++arg) {
    const uint8_t code = arg <= O ? OPDECK_CODE_BFLOAT : arg == LSE ? OPDECK_CODE_FLOAT : OPDECK_CODE_INT;
    tensors[arg] = tensor_of(data[arg], arg <= O ? 4 : arg == LSE ? 3 : 1, shapes[arg], code, arg <= O ? 16 : 32);
    args[arg] = (opdeck_arg){names[arg], OPDECK_ARG_TENSOR, 0, {.tensor = &tensors[arg]}};
  }
  const opdeck_problem problem = {sizeof problem, NUM_ARGS, "fmha_fwd", args, fusion, NULL};
  const opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = device};
  opdeck_ctx *ctx = NULL;
  opdeck_plan *plan = NULL;
  opdeck_status status = opdeck_ctx_create(&desc, &ctx);
  if (status == OPDECK_OK) status = opdeck_ctx_load_pack(ctx, pack);
  if (status == OPDECK_OK) status = opdeck_plan_create(ctx, &problem, &plan);
  if (status == OPDECK_OK) status = opdeck_plan_launch(plan, &problem, NULL, 0, NULL);
  if (status == OPDECK_OK) status = opdeck_ctx_last_report(ctx, report);
  snprintf(message, sizeof message, "%s", opdeck_last_error());
  opdeck_plan_destroy(plan);
  opdeck_ctx_destroy(ctx);
  return status;
}

/* num_lengths: rows of the lengths, NUM_SEQS if they are right. */
static opdeck_status compute(const char *pack, const char *device, int num_lengths, opdeck_launch_report *report) {
  const int64_t of_kinds[4] = {NUM_SEQS, 1, Q_TILES, K_TILES}, of_tiles[4] = {NUM_SEQS, 1, PAIRS, K_TILES};
  const int64_t of_ranges[4] = {NUM_SEQS, 1, Q_TILES, 4}, of_lengths[2] = {num_lengths, 2};
  const opdeck_tensor kinds_tensor = tensor_of(kinds, 4, of_kinds, OPDECK_CODE_UINT, 8);
  const opdeck_tensor leaf_tensors[3] = {
      tensor_of(tiles, 4, of_tiles, OPDECK_CODE_INT, 32),
      tensor_of(ranges, 4, of_ranges, OPDECK_CODE_INT, 32),
      tensor_of(lengths, 2, of_lengths, OPDECK_CODE_INT, 32),
  };
  const opdeck_status status = opdeck_block_lists(&kinds_tensor, &leaf_tensors[0], &leaf_tensors[1]);
  snprintf(message, sizeof message, "%s", opdeck_last_error());
  if (status != OPDECK_OK) return status;
  const opdeck_arg leaves[4] = {
      {"acme.strided.width", OPDECK_ARG_I32, 0, {.i32 = WIDTH}},
      {"block_sparse.tiles", OPDECK_ARG_TENSOR, 0, {.tensor = &leaf_tensors[0]}},
      {"block_sparse.ranges", OPDECK_ARG_TENSOR, 0, {.tensor = &leaf_tensors[1]}},
      {"block_sparse.lengths", OPDECK_ARG_TENSOR, 0, {.tensor = &leaf_tensors[2]}},
  };
  const opdeck_fusion fusion = {sizeof fusion, 4, "block_sparse[inner=acme.strided]", leaves};
  return launch(pack, device, &fusion, report);
}

/* Weights of one query of one head on the keys of its sequence; returns their log-sum-exp. */
static double weights_of(int seq, int query, int head, double *weights) {
  double sum = 0.0;
  const uint16_t *row = q + ((cu_seqlens_q[seq] + query) * NUM_HEADS + head) * D;
  for (int key = 0; key < lengths[seq][1]; ++key) {
    const double score = dot(row, k + (cu_seqlens_k[seq] + key) * D, D) / sqrt((double)D);
    weights[key] = is_visible(query, key, lengths[seq]) ? exp(score) : 0.0;
    sum += weights[key];
  }
  for (int key = 0; key < lengths[seq][1]; ++key) weights[key] /= sum;
  return log(sum);
}

static int agrees(void) {
  static double weights[MAX_K];
  double error_squares = 0.0, want_squares = 0.0, lse_largest = 0.0;
  for (int seq = 0; seq < NUM_SEQS; ++seq)
    for (int row = 0; row < lengths[seq][0] * NUM_HEADS; ++row) {
      const int query = row / NUM_HEADS, head = row % NUM_HEADS, row_of_all = cu_seqlens_q[seq] + query;
      const double want_lse = weights_of(seq, query, head, weights);
      lse_largest = fmax(lse_largest, lse_error(lse[head * NUM_Q + row_of_all], want_lse));
      for (int elem = 0; elem < D; ++elem) {
        double want = 0.0;
        for (int key = 0; key < lengths[seq][1]; ++key)
          want += weights[key] * (double)float_of_bf16(v[(cu_seqlens_k[seq] + key) * D + elem]);
        const double off = (double)float_of_bf16(o[(row_of_all * NUM_HEADS + head) * D + elem]) - want;
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
  fill_normal(q, NUM_Q * NUM_HEADS * D, 1);
  fill_normal(k, NUM_K * D, 2);
  fill_normal(v, NUM_K * D, 3);
  memset(o, 0xff, sizeof o);
  memset(lse, 0xff, sizeof lse);
  const int num_tiles = make_map();
  opdeck_launch_report report = {.struct_size = sizeof report};
  opdeck_status status = compute(argv[1], argv[2], NUM_SEQS + 1, &report);
  const char *const fault = "block_sparse.lengths: got 3 in dim 0 of shape (3, 2), want batch = 2|1";
  if (status != OPDECK_INVALID_ARGUMENT || strcmp(message, fault) != 0) {
    fprintf(stderr, "%s: %s, want %s\n", opdeck_status_name(status), message, fault);
    return 1;
  }
  status = compute(argv[1], argv[2], NUM_SEQS, &report);
  if (status != OPDECK_OK) {
    fprintf(stderr, "%s: %s\n", opdeck_status_name(status), message);
    return 2;
  }
  const uint64_t want_macs = (uint64_t)num_tiles * NUM_HEADS * TILE * TILE * 2 * D;
  printf("tiles visited %d of %d, multiply-accumulates %llu, want %llu\n", num_tiles, NUM_SEQS * Q_TILES * K_TILES,
         (unsigned long long)report.mma_macs, (unsigned long long)want_macs);
  const int is_right = agrees() && (report.mma_macs == want_macs || report.mma_macs == 0); /* a GPU counts none */
  puts(is_right ? "PASS" : "FAIL");
  return is_right ? 0 : 1;
}
