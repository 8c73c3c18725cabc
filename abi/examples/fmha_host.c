/* SPDX-License-Identifier: Apache-2.0
 *
 * fmha_host.c: causal bf16 attention from C: needs opdeck.h, libopdeck.so and a pack, and neither Python nor the CUDA
 * toolkit.
 *
 *     fmha_host PACK [DEVICE [B SQ SK HQ HK D]]
 *
 * Computes on DEVICE (default OPDECK_DEVICE, else emulator:sm_100a), compares with double precision on the CPU, and
 * exits with 0 when the errors are within bounds, 1 when they are not, 2 when opdeck reported an error.
 */
#define _POSIX_C_SOURCE 200112L /* posix_memalign, in strict C99 */
#include "attention_reference.h"
#include "device_memory.h"
#include "opdeck.h"

#define O_TOLERANCE 1e-2 /* relative, of bf16 */
#define LSE_TOLERANCE 5e-3

enum {
  Q,
  K,
  V,
  O,
  LSE,
  NUM_TENSORS
};

/* All that one run owns. */
typedef struct host {
  attention_sizes sizes;
  device_memory memory;
  opdeck_ctx *ctx;
  opdeck_plan *plan;
  int64_t shapes[NUM_TENSORS][4];
  opdeck_tensor tensors[NUM_TENSORS];
  void *host_copies[NUM_TENSORS];
} host;

static size_t num_elems(const opdeck_tensor *tensor) {
  size_t count = 1;
  for (int32_t dim = 0; dim < tensor->ndim; ++dim) count *= (size_t)tensor->shape[dim];
  return count;
}

static size_t num_bytes(const opdeck_tensor *tensor) { return num_elems(tensor) * tensor->dtype_bits / 8; }

static void describe_tensors(host *run) {
  const attention_sizes *n = &run->sizes;
  const int64_t shapes[NUM_TENSORS][4] = {
      {n->b, n->sq, n->hq, n->d}, {n->b, n->sk, n->hk, n->d}, {n->b, n->sk, n->hk, n->d},
      {n->b, n->sq, n->hq, n->d}, {n->b, n->hq, n->sq, 0},
  };
  memcpy(run->shapes, shapes, sizeof shapes);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    opdeck_tensor *tensor = &run->tensors[idx];
    memset(tensor, 0, sizeof *tensor);
    tensor->device_type = run->memory.is_cuda ? OPDECK_DEVICE_CUDA : OPDECK_DEVICE_CPU;
    tensor->device_id = run->memory.device_id;
    tensor->ndim = idx == LSE ? 3 : 4;
    tensor->dtype_code = idx == LSE ? OPDECK_CODE_FLOAT : OPDECK_CODE_BFLOAT;
    tensor->dtype_bits = idx == LSE ? 32 : 16;
    tensor->dtype_lanes = 1;
    tensor->shape = run->shapes[idx]; /* strides NULL: compact */
  }
}

/* Inputs random, outputs NaN: what a kernel does not write shows. */
static int fill_tensors(host *run) {
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    opdeck_tensor *tensor = &run->tensors[idx];
    const size_t bytes = num_bytes(tensor);
    run->host_copies[idx] = malloc(bytes > 0 ? bytes : 1);
    tensor->data = allocate_on_device(&run->memory, bytes > 0 ? bytes : 1);
    if (run->host_copies[idx] == NULL || tensor->data == NULL) return 1;
    if (idx < O)
      fill_normal((uint16_t *)run->host_copies[idx], (int64_t)num_elems(tensor), (uint64_t)idx + 1);
    else
      memset(run->host_copies[idx], 0xff, bytes);
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
  static const char *const names[NUM_TENSORS] = {"q", "k", "v", "o", "lse"};
  opdeck_arg args[NUM_TENSORS];
  memset(args, 0, sizeof args);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    args[idx].name = names[idx];
    args[idx].kind = OPDECK_ARG_TENSOR;
    args[idx].value.tensor = &run->tensors[idx];
  }
  const opdeck_fusion causal = {sizeof causal, 0, "causal[align=bottom_right]", NULL};
  const opdeck_problem problem = {sizeof problem, NUM_TENSORS, "fmha_fwd", args, &causal, NULL};
  opdeck_status status = opdeck_plan_create(run->ctx, &problem, &run->plan);
  if (status == OPDECK_OK) status = opdeck_plan_prepare(run->plan);
  return status == OPDECK_OK ? opdeck_plan_launch(run->plan, &problem, NULL, 0, NULL) : status;
}

static int report(host *run) {
  for (int idx = O; idx < NUM_TENSORS; ++idx)
    if (copy_to_host(&run->memory, run->host_copies[idx], run->tensors[idx].data, num_bytes(&run->tensors[idx])) != 0)
      return 1;
  const attention_sizes *n = &run->sizes;
  const bf16_view qkv[3] = {{(const uint16_t *)run->host_copies[Q], n->sq * n->hq * n->d, n->hq * n->d, n->d},
                            {(const uint16_t *)run->host_copies[K], n->sk * n->hk * n->d, n->hk * n->d, n->d},
                            {(const uint16_t *)run->host_copies[V], n->sk * n->hk * n->d, n->hk * n->d, n->d}};
  const attention_errors errors = compare_attention(n, qkv, causal_bottom_right, (const uint16_t *)run->host_copies[O],
                                                    (const float *)run->host_copies[LSE]);
  opdeck_kernel_info info;
  opdeck_launch_report counts;
  info.struct_size = sizeof info;
  counts.struct_size = sizeof counts;
  if (opdeck_plan_info(run->plan, &info) != OPDECK_OK || opdeck_ctx_last_report(run->ctx, &counts) != OPDECK_OK)
    return 1;
  const int is_good = errors.o_relative <= O_TOLERANCE && errors.lse_largest <= LSE_TOLERANCE;
  printf("variant  %s\ncubin    %s\n", info.variant, info.cubin_sha256);
  if (counts.num_launches > 0) /* a GPU counts nothing */
    printf("ctas     %llu\nmma_macs %llu\n", (unsigned long long)counts.num_ctas, (unsigned long long)counts.mma_macs);
  printf("o        relative error %.3e, bound %.0e\nlse      largest error %.3e, bound %.0e\n%s\n", errors.o_relative,
         O_TOLERANCE, errors.lse_largest, LSE_TOLERANCE, is_good ? "PASS" : "FAIL");
  return is_good ? 0 : 1;
}

static void release(host *run) {
  opdeck_plan_destroy(run->plan);
  opdeck_ctx_destroy(run->ctx);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    free_on_device(&run->memory, run->tensors[idx].data);
    free(run->host_copies[idx]);
  }
}

static int read_sizes(int argc, char **argv, attention_sizes *sizes) {
  int64_t *values[] = {&sizes->b, &sizes->sq, &sizes->sk, &sizes->hq, &sizes->hk, &sizes->d};
  for (int idx = 0; argc > 3 && idx < 6; ++idx) *values[idx] = atoll(argv[3 + idx]);
  return sizes->b < 1 || sizes->sq < 1 || sizes->sk < 0 || sizes->hk < 1 || sizes->hq % sizes->hk != 0 || sizes->d < 1;
}

int main(int argc, char **argv) {
  host run;
  memset(&run, 0, sizeof run);
  run.sizes = (attention_sizes){1, 128, 256, 2, 1, 128};
  if ((argc != 2 && argc != 3 && argc != 9) || read_sizes(argc, argv, &run.sizes) != 0) {
    fprintf(stderr, "usage: %s PACK [DEVICE [B SQ SK HQ HK D]]\n", argv[0]);
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
