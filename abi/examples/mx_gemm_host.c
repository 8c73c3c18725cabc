/* SPDX-License-Identifier: Apache-2.0
 *
 * mx_gemm_host.c: a block-scaled product from C, D = A B^T with A and B of MXFP8 (e4m3) and D of bf16: needs opdeck.h,
 * libopdeck.so and a pack, and neither Python nor the CUDA toolkit.
 *
 *     mx_gemm_host PACK [DEVICE [M N K]]
 *
 * Computes on DEVICE (default OPDECK_DEVICE, else emulator:sm_100a), compares with double precision on the CPU, and
 * exits with 0 when the errors are within bounds, 1 when they are not, 2 when opdeck reported an error.
 */
#define _POSIX_C_SOURCE 200112L /* posix_memalign, in strict C99 */
#include "device_memory.h"
#include "opdeck.h"

#include <math.h>

enum {
  BLOCK = 32,      /* elements of K that share a scale */
  TILE_ROWS = 128, /* a tile of scales: 128 rows by 4 blocks, a byte each */
  TILE_BLOCKS = 4,
  TILE_BYTES = TILE_ROWS * TILE_BLOCKS
};

enum {
  A,
  B,
  A_SCALE,
  B_SCALE,
  D,
  NUM_TENSORS
};

/* All that one run owns. */
typedef struct host {
  int64_t m, n, k;
  device_memory memory;
  opdeck_ctx *ctx;
  opdeck_plan *plan;
  int64_t shapes[NUM_TENSORS][4];
  opdeck_tensor tensors[NUM_TENSORS];
  uint8_t *host_copies[NUM_TENSORS];
} host;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static size_t num_bytes(const opdeck_tensor *tensor) {
  size_t elems = 1;
  for (int32_t dim = 0; dim < tensor->ndim; ++dim) elems *= (size_t)tensor->shape[dim];
  return elems * tensor->dtype_bits / 8;
}

/* Where the scale of a row's block lies: tile after tile along K, then along the rows, and in a tile the rows r,
 * r + 32, r + 64 and r + 96 side by side. */
static size_t scale_offset(int64_t row, int64_t block, int64_t k) {
  const int64_t tile = row / TILE_ROWS * ceil_div(k, BLOCK * TILE_BLOCKS) + block / TILE_BLOCKS;
  return (size_t)(tile * TILE_BYTES + row % 32 * 16 + row % TILE_ROWS / 32 * TILE_BLOCKS + block % TILE_BLOCKS);
}

static double e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 15;
  const double mantissa = bits & 7;
  const double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

static double bf16_value(uint16_t bits) {
  const uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

/* Entry (row, k_idx) of A or B. */
static double value_of(const host *run, int operand, int64_t row, int64_t k_idx) {
  const uint8_t scale = run->host_copies[operand + A_SCALE][scale_offset(row, k_idx / BLOCK, run->k)];
  return ldexp(e4m3_value(run->host_copies[operand][row * run->k + k_idx]), scale - 127);
}

static void describe_tensors(host *run) {
  const int64_t k_tiles = ceil_div(run->k, BLOCK * TILE_BLOCKS);
  const int64_t shapes[NUM_TENSORS][4] = {
      {1, run->m, run->k, 0},
      {1, run->n, run->k, 0},
      {1, ceil_div(run->m, TILE_ROWS), k_tiles, TILE_BYTES},
      {1, ceil_div(run->n, TILE_ROWS), k_tiles, TILE_BYTES},
      {1, run->m, run->n, 0},
  };
  static const uint8_t codes[NUM_TENSORS] = {OPDECK_CODE_FP8_E4M3, OPDECK_CODE_FP8_E4M3, OPDECK_CODE_E8M0,
                                             OPDECK_CODE_E8M0, OPDECK_CODE_BFLOAT};
  memcpy(run->shapes, shapes, sizeof shapes);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    opdeck_tensor *tensor = &run->tensors[idx];
    memset(tensor, 0, sizeof *tensor);
    tensor->device_type = run->memory.is_cuda ? OPDECK_DEVICE_CUDA : OPDECK_DEVICE_CPU;
    tensor->device_id = run->memory.device_id;
    tensor->ndim = idx == A_SCALE || idx == B_SCALE ? 4 : 3;
    tensor->dtype_code = codes[idx];
    tensor->dtype_bits = idx == D ? 16 : 8;
    tensor->dtype_lanes = 1;
    tensor->shape = run->shapes[idx]; /* strides NULL: compact */
  }
}

/* Elements of any finite bits; scales between 2^-3 and 2^4. What pads the scales, and D before it is written, is NaN. */
static void fill(const host *run, int idx) {
  uint64_t state = (uint64_t)idx + 1;
  uint8_t *bytes = run->host_copies[idx];
  memset(bytes, 0xff, num_bytes(&run->tensors[idx]));
  if (idx == D) return;
  const int64_t rows = run->tensors[idx % 2].shape[1];
  const int64_t columns = idx < A_SCALE ? run->k : run->k / BLOCK;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const uint8_t byte = (uint8_t)(state >> 56);
      if (idx < A_SCALE)
        bytes[row * columns + column] = (byte & 0x7f) == 0x7f ? 0 : byte;
      else
        bytes[scale_offset(row, column, run->k)] = (uint8_t)(124 + byte % 8);
    }
}

static int fill_tensors(host *run) {
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    opdeck_tensor *tensor = &run->tensors[idx];
    const size_t bytes = num_bytes(tensor);
    run->host_copies[idx] = malloc(bytes);
    tensor->data = allocate_on_device(&run->memory, bytes);
    if (run->host_copies[idx] == NULL || tensor->data == NULL) return 1;
    fill(run, idx);
    if (copy_to_device(&run->memory, tensor->data, run->host_copies[idx], bytes) != 0) return 1;
  }
  return 0;
}

static opdeck_status open_context(host *run, const char *device, const char *pack) {
  opdeck_ctx_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.device = device;
  const opdeck_status status = opdeck_ctx_create(&desc, &run->ctx);
  return status == OPDECK_OK ? opdeck_ctx_load_pack(run->ctx, pack) : status;
}

static opdeck_status compute(host *run) {
  static const char *const names[NUM_TENSORS] = {"a", "b", "a_scale", "b_scale", "d"};
  opdeck_arg args[NUM_TENSORS]; /* alpha, beta, ...: their defaults */
  memset(args, 0, sizeof args);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    args[idx].name = names[idx];
    args[idx].kind = OPDECK_ARG_TENSOR;
    args[idx].value.tensor = &run->tensors[idx];
  }
  const opdeck_problem problem = {sizeof problem, NUM_TENSORS, "mx_gemm", args, NULL, NULL};
  opdeck_status status = opdeck_plan_create(run->ctx, &problem, &run->plan);
  if (status == OPDECK_OK) status = opdeck_plan_prepare(run->plan);
  return status == OPDECK_OK ? opdeck_plan_launch(run->plan, &problem, NULL, 0, NULL) : status;
}

/* The largest error, in units of what summing in fp32 and rounding to bf16 may cost. */
static double largest_error(const host *run) {
  double largest = 0;
  for (int64_t row = 0; row < run->m; ++row)
    for (int64_t column = 0; column < run->n; ++column) {
      double exact = 0;
      double magnitude = 0;
      for (int64_t k_idx = 0; k_idx < run->k; ++k_idx) {
        const double product = value_of(run, A, row, k_idx) * value_of(run, B, column, k_idx);
        exact += product;
        magnitude += fabs(product);
      }
      uint16_t bits;
      memcpy(&bits, run->host_copies[D] + 2 * (row * run->n + column), sizeof bits);
      const double bound = ldexp((double)run->k * magnitude, -24) + ldexp(fabs(exact), -8);
      const double error = fabs(bf16_value(bits) - exact) / bound;
      if (!(error <= largest)) largest = error; /* NaN too */
    }
  return largest;
}

static int report(host *run) {
  if (copy_to_host(&run->memory, run->host_copies[D], run->tensors[D].data, num_bytes(&run->tensors[D])) != 0)
    return 1;
  opdeck_kernel_info info;
  opdeck_launch_report counts;
  info.struct_size = sizeof info;
  counts.struct_size = sizeof counts;
  if (opdeck_plan_info(run->plan, &info) != OPDECK_OK || opdeck_ctx_last_report(run->ctx, &counts) != OPDECK_OK)
    return 1;
  const double error = largest_error(run);
  printf("variant  %s\ncubin    %s\n", info.variant, info.cubin_sha256);
  if (counts.num_launches > 0) /* a GPU counts nothing */
    printf("ctas     %llu\nmma_macs %llu\n", (unsigned long long)counts.num_ctas, (unsigned long long)counts.mma_macs);
  printf("d        largest error %.3f of its bound\n%s\n", error, error <= 1 ? "PASS" : "FAIL");
  return error <= 1 ? 0 : 1;
}

static void release(host *run) {
  opdeck_plan_destroy(run->plan);
  opdeck_ctx_destroy(run->ctx);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    free_on_device(&run->memory, run->tensors[idx].data);
    free(run->host_copies[idx]);
  }
}

int main(int argc, char **argv) {
  host run;
  memset(&run, 0, sizeof run);
  run.m = argc == 6 ? atoll(argv[3]) : 200;
  run.n = argc == 6 ? atoll(argv[4]) : 136;
  run.k = argc == 6 ? atoll(argv[5]) : 160;
  if (argc < 2 || argc == 4 || argc == 5 || argc > 6 || run.m < 1 || run.n < 1 || run.k < 1) {
    fprintf(stderr, "usage: %s PACK [DEVICE [M N K]]\n", argv[0]);
    return 2;
  }
  const char *device = argc > 2 ? argv[2] : getenv("OPDECK_DEVICE");
  if (device == NULL) device = "emulator:sm_100a";
  opdeck_status status = open_context(&run, device, argv[1]);
  int exit_status = 2;
  if (status == OPDECK_OK && open_device_memory(&run.memory, device) == 0) {
    describe_tensors(&run);
    if (fill_tensors(&run) == 0) {
      status = compute(&run);
      if (status == OPDECK_OK) exit_status = report(&run);
    }
  }
  if (status != OPDECK_OK) fprintf(stderr, "%s: %s\n", opdeck_status_name(status), opdeck_last_error());
  release(&run);
  return exit_status;
}
