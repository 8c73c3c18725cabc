/* SPDX-License-Identifier: Apache-2.0
 *
 * fmha_varlen_host.c: causal bf16 attention from C over sequences of unequal lengths: queries packed behind each other,
 * keys packed too, or in pages.
 *
 *     fmha_varlen_host PACK [DEVICE [PAGE_ROWS [VARIANT]]]
 *
 * Without PAGE_ROWS, or with 0, keys are packed. VARIANT is the id of the kernel to take. Compares with double precision on the CPU, and exits with 0 when the
 * errors are within bounds and no row outside the sequences was written, 1 when not, 2 when opdeck reported an error.
 */
#define _POSIX_C_SOURCE 200112L /* posix_memalign, in strict C99 */
#include "attention_reference.h"
#include "device_memory.h"
#include "opdeck.h"

#define O_TOLERANCE 1e-2 /* relative, of bf16 */
#define LSE_TOLERANCE 5e-3

enum {
  NUM_SEQS = 4,
  NUM_Q_HEADS = 2,
  HEAD_DIM = 128, /* one key head */
  NUM_Q_ROWS = 220,
  NUM_K_ROWS = 440, /* of packed keys; both more than the sequences have */
  MAX_PAGES = 4,    /* a sequence; pages have at least 128 rows */
  Q_ROW_ELEMS = NUM_Q_HEADS * HEAD_DIM
};

/* Offsets of the sequences in packed rows: one has no query, one has no key. */
static const int32_t q_offsets[NUM_SEQS + 1] = {0, 130, 130, 207, 210};
static const int32_t k_offsets[NUM_SEQS + 1] = {0, 260, 300, 300, 429};

enum {
  Q,
  K,
  V,
  O,
  LSE,
  CU_SEQLENS_Q,
  CU_SEQLENS_K, /* with pages: block_table */
  SEQUSED_K,    /* with pages alone */
  NUM_TENSORS
};

/* All that one run owns. keys, values: the rows of the sequences behind each other. */
typedef struct host {
  int64_t page_rows;
  const char *variant; /* NULL: the first that accepts */
  int32_t block_table[NUM_SEQS][MAX_PAGES];
  int32_t num_keys[NUM_SEQS];
  device_memory memory;
  opdeck_ctx *ctx;
  opdeck_plan *plan;
  int64_t shapes[NUM_TENSORS][4];
  opdeck_tensor tensors[NUM_TENSORS];
  void *host_copies[NUM_TENSORS];
  void *workspace;
  uint16_t keys[NUM_K_ROWS * HEAD_DIM], values[NUM_K_ROWS * HEAD_DIM];
} host;

/* Pages in falling order, so that a sequence's do not follow each other; -1 behind a sequence's last. */
static int32_t number_pages(host *run) {
  int32_t num_pages = 0;
  for (int seq = 0; seq < NUM_SEQS; ++seq) {
    run->num_keys[seq] = k_offsets[seq + 1] - k_offsets[seq];
    for (int page = 0; page < MAX_PAGES; ++page)
      run->block_table[seq][page] = page * run->page_rows < run->num_keys[seq] ? num_pages++ : -1;
  }
  for (int seq = 0; seq < NUM_SEQS; ++seq)
    for (int page = 0; page < MAX_PAGES; ++page)
      if (run->block_table[seq][page] >= 0) run->block_table[seq][page] = num_pages - 1 - run->block_table[seq][page];
  return num_pages;
}

static void describe_tensors(host *run) {
  const int is_paged = run->page_rows > 0;
  const int32_t num_pages = is_paged ? number_pages(run) : 1;
  const int64_t page_rows = is_paged ? run->page_rows : NUM_K_ROWS;
  const int64_t of_list[2] = {is_paged ? NUM_SEQS : NUM_SEQS + 1, MAX_PAGES};
  const int64_t shapes[NUM_TENSORS][4] = {
      {1, NUM_Q_ROWS, NUM_Q_HEADS, HEAD_DIM}, {num_pages, page_rows, 1, HEAD_DIM}, {num_pages, page_rows, 1, HEAD_DIM},
      {1, NUM_Q_ROWS, NUM_Q_HEADS, HEAD_DIM}, {1, NUM_Q_HEADS, NUM_Q_ROWS},        {NUM_SEQS + 1},
      {of_list[0], of_list[1]},               {NUM_SEQS},
  };
  const int32_t ndims[NUM_TENSORS] = {4, 4, 4, 4, 3, 1, is_paged ? 2 : 1, 1};
  memcpy(run->shapes, shapes, sizeof shapes);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    opdeck_tensor *tensor = &run->tensors[idx];
    tensor->device_type = run->memory.is_cuda ? OPDECK_DEVICE_CUDA : OPDECK_DEVICE_CPU;
    tensor->device_id = run->memory.device_id;
    tensor->ndim = ndims[idx];
    tensor->dtype_code = idx <= O ? OPDECK_CODE_BFLOAT : idx == LSE ? OPDECK_CODE_FLOAT : OPDECK_CODE_INT;
    tensor->dtype_bits = idx <= O ? 16 : 32;
    tensor->dtype_lanes = 1;
    tensor->shape = run->shapes[idx]; /* strides NULL: compact */
  }
}

static size_t num_bytes(const opdeck_tensor *tensor) {
  size_t bytes = tensor->dtype_bits / 8;
  for (int32_t dim = 0; dim < tensor->ndim; ++dim) bytes *= (size_t)tensor->shape[dim];
  return bytes;
}

/* The rows of the sequences from `packed` to where K or V has them. */
static void place_keys(const host *run, const uint16_t *packed, uint16_t *placed) {
  for (int seq = 0; seq < NUM_SEQS; ++seq)
    for (int32_t key = 0; key < k_offsets[seq + 1] - k_offsets[seq]; ++key) {
      const int64_t rows = run->page_rows;
      const int64_t row = rows > 0 ? run->block_table[seq][key / rows] * rows + key % rows : k_offsets[seq] + key;
      memcpy(placed + row * HEAD_DIM, packed + (k_offsets[seq] + key) * HEAD_DIM, HEAD_DIM * sizeof *placed);
    }
}

/* Inputs random in the sequences; NaN outside, and in the outputs. */
static int fill_tensors(host *run) {
  fill_normal(run->keys, NUM_K_ROWS * HEAD_DIM, 2);
  fill_normal(run->values, NUM_K_ROWS * HEAD_DIM, 3);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    const size_t bytes = num_bytes(&run->tensors[idx]);
    void *values = run->host_copies[idx] = malloc(bytes);
    run->tensors[idx].data = allocate_on_device(&run->memory, bytes);
    if (values == NULL || run->tensors[idx].data == NULL) return 1;
    memset(values, 0xff, bytes);
    if (idx == Q) fill_normal((uint16_t *)values, q_offsets[NUM_SEQS] * Q_ROW_ELEMS, 1);
    if (idx == K || idx == V) place_keys(run, idx == K ? run->keys : run->values, (uint16_t *)values);
    if (idx == CU_SEQLENS_Q) memcpy(values, q_offsets, bytes);
    if (idx == CU_SEQLENS_K) memcpy(values, run->page_rows > 0 ? run->block_table[0] : k_offsets, bytes);
    if (idx == SEQUSED_K) memcpy(values, run->num_keys, bytes);
    if (copy_to_device(&run->memory, run->tensors[idx].data, values, bytes) != 0) return 1;
  }
  return 0;
}

/* Launches with a workspace of the plan's size; most plans need none. */
static opdeck_status launch(host *run, const opdeck_problem *problem) {
  size_t workspace_bytes = 0;
  opdeck_status status = opdeck_plan_workspace_bytes(run->plan, &workspace_bytes);
  if (status != OPDECK_OK) return status;
  printf("workspace_bytes %zu\n", workspace_bytes);
  if (workspace_bytes > 0) run->workspace = allocate_on_device(&run->memory, workspace_bytes);
  return opdeck_plan_launch(run->plan, problem, run->workspace, workspace_bytes, NULL);
}

static opdeck_status compute(host *run, const char *device, const char *pack) {
  const int is_paged = run->page_rows > 0;
  const char *const names[NUM_TENSORS] = {
      "q", "k", "v", "o", "lse", "cu_seqlens_q", is_paged ? "block_table" : "cu_seqlens_k", "seqused_k"};
  opdeck_arg args[NUM_TENSORS];
  memset(args, 0, sizeof args);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    args[idx].name = names[idx];
    args[idx].kind = OPDECK_ARG_TENSOR;
    args[idx].value.tensor = &run->tensors[idx];
  }
  opdeck_ctx_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.device = device;
  const opdeck_fusion causal = {sizeof causal, 0, "causal[align=bottom_right]", NULL};
  const int32_t num_args = is_paged ? NUM_TENSORS : SEQUSED_K;
  const opdeck_problem problem = {sizeof problem, num_args, "fmha_fwd", args, &causal, run->variant};
  opdeck_status status = opdeck_ctx_create(&desc, &run->ctx);
  if (status == OPDECK_OK) status = opdeck_ctx_load_pack(run->ctx, pack);
  if (status == OPDECK_OK) status = opdeck_plan_create(run->ctx, &problem, &run->plan);
  return status == OPDECK_OK ? launch(run, &problem) : status;
}

static attention_errors errors_of(const host *run, int seq) {
  const int64_t first = q_offsets[seq];
  const attention_sizes sizes = {
      1, q_offsets[seq + 1] - first, k_offsets[seq + 1] - k_offsets[seq], NUM_Q_HEADS, 1, HEAD_DIM};
  const uint16_t *q = (const uint16_t *)run->host_copies[Q] + first * Q_ROW_ELEMS;
  const uint16_t *o = (const uint16_t *)run->host_copies[O] + first * Q_ROW_ELEMS;
  const bf16_view qkv[3] = {{q, 0, Q_ROW_ELEMS, HEAD_DIM},
                            {run->keys + k_offsets[seq] * HEAD_DIM, 0, HEAD_DIM, HEAD_DIM},
                            {run->values + k_offsets[seq] * HEAD_DIM, 0, HEAD_DIM, HEAD_DIM}};
  float lse[NUM_Q_HEADS * NUM_Q_ROWS]; /* of this sequence, compact */
  for (int64_t head = 0; head < NUM_Q_HEADS; ++head)
    memcpy(lse + head * sizes.sq, (const float *)run->host_copies[LSE] + head * NUM_Q_ROWS + first,
           (size_t)sizes.sq * sizeof *lse);
  return compare_attention(&sizes, qkv, causal_bottom_right, o, lse);
}

static int report(host *run) {
  for (int idx = O; idx <= LSE; ++idx)
    if (copy_to_host(&run->memory, run->host_copies[idx], run->tensors[idx].data, num_bytes(&run->tensors[idx])) != 0)
      return 1;
  opdeck_kernel_info info;
  info.struct_size = sizeof info;
  if (opdeck_plan_info(run->plan, &info) != OPDECK_OK) return 1;
  printf("variant %s\n", info.variant);
  int is_good = 1;
  for (int seq = 0; seq < NUM_SEQS; ++seq) {
    const attention_errors errors = errors_of(run, seq);
    printf("sequence %d: o relative error %.3e, lse largest error %.3e\n", seq, errors.o_relative, errors.lse_largest);
    is_good = is_good && errors.o_relative <= O_TOLERANCE && errors.lse_largest <= LSE_TOLERANCE;
  }
  const uint16_t *o = (const uint16_t *)run->host_copies[O];
  for (int64_t elem = q_offsets[NUM_SEQS] * Q_ROW_ELEMS; elem < NUM_Q_ROWS * Q_ROW_ELEMS; ++elem)
    is_good = is_good && o[elem] == 0xffff;
  printf("%s\n", is_good ? "PASS" : "FAIL");
  return is_good ? 0 : 1;
}

int main(int argc, char **argv) {
  static host run;
  if (argc < 2 || argc > 5) {
    fprintf(stderr, "usage: %s PACK [DEVICE [PAGE_ROWS [VARIANT]]]\n", argv[0]);
    return 2;
  }
  const char *device = argc > 2 ? argv[2] : getenv("OPDECK_DEVICE");
  if (device == NULL) device = "emulator:sm_100a";
  run.page_rows = argc > 3 ? atoll(argv[3]) : 0;
  run.variant = argc > 4 ? argv[4] : NULL;
  if (run.page_rows < 0 || (run.page_rows > 0 && run.page_rows < 128)) {
    fprintf(stderr, "PAGE_ROWS: got %s, want 0 or >= 128\n", argv[3]);
    return 2;
  }
  int exit_status = 2;
  if (open_device_memory(&run.memory, device) == 0) {
    describe_tensors(&run);
    if (fill_tensors(&run) == 0) {
      const opdeck_status status = compute(&run, device, argv[1]);
      if (status == OPDECK_OK) exit_status = report(&run);
      if (status != OPDECK_OK) fprintf(stderr, "%s: %s\n", opdeck_status_name(status), opdeck_last_error());
    }
  }
  opdeck_plan_destroy(run.plan);
  opdeck_ctx_destroy(run.ctx);
  free_on_device(&run.memory, run.workspace);
  for (int idx = 0; idx < NUM_TENSORS; ++idx) {
    free_on_device(&run.memory, run.tensors[idx].data);
    free(run.host_copies[idx]);
  }
  return exit_status;
}
