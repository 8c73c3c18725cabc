/* SPDX-License-Identifier: Apache-2.0
 *
 * attention_reference.h: attention in double precision, bf16 conversion and input values, for the example hosts to
 * check themselves against. C99 and C++.
 */
#ifndef OPDECK_EXAMPLES_ATTENTION_REFERENCE_H
#define OPDECK_EXAMPLES_ATTENTION_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* q (b, sq, hq, d), k and v (b, sk, hk, d); query head h reads key head h / (hq / hk). */
typedef struct attention_sizes {
  int64_t b, sq, sk, hq, hk, d;
} attention_sizes;

/* A bf16 tensor (b, s, h, d) whose last dim is contiguous; strides in elements. */
typedef struct bf16_view {
  const uint16_t *data;
  int64_t b_stride, s_stride, h_stride;
} bf16_view;

/* How many keys, from the first one on, query q_idx sees. */
typedef int64_t (*num_visible_fn)(int64_t q_idx, const attention_sizes *sizes);

static inline int64_t all_visible(int64_t q_idx, const attention_sizes *sizes) {
  (void)q_idx;
  return sizes->sk;
}

/* The last query sees all keys. */
static inline int64_t causal_bottom_right(int64_t q_idx, const attention_sizes *sizes) {
  const int64_t num_visible = q_idx + 1 + sizes->sk - sizes->sq;
  return num_visible < 0 ? 0 : num_visible;
}

static inline uint16_t bf16_of(float value) { /* to nearest, ties to even */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float float_of_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

/* About normally distributed: the sum of 12 uniform numbers of a linear congruential generator (Knuth, MMIX). */
static inline void fill_normal(uint16_t *data, int64_t num_elems, uint64_t seed) {
  uint64_t state = seed;
  for (int64_t elem = 0; elem < num_elems; ++elem) {
    double sum = -6.0;
    for (int term = 0; term < 12; ++term) {
      state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
      sum += (double)(state >> 11) / 9007199254740992.0;
    }
    data[elem] = bf16_of((float)sum);
  }
}

static inline const uint16_t *bf16_row(const bf16_view *view, int64_t b_idx, int64_t s_idx, int64_t h_idx) {
  return view->data + b_idx * view->b_stride + s_idx * view->s_stride + h_idx * view->h_stride;
}

static inline double dot(const uint16_t *left, const uint16_t *right, int64_t num_elems) {
  double sum = 0.0;
  for (int64_t elem = 0; elem < num_elems; ++elem)
    sum += (double)float_of_bf16(left[elem]) * (double)float_of_bf16(right[elem]);
  return sum;
}

/* One query of one head, scale 1 / sqrt(d). `probs` is room for sk values. Writes d outputs; returns the LSE. */
static inline double attention_row(const attention_sizes *sizes, const bf16_view qkv[3], const int64_t idx[3],
                                   int64_t num_visible, double *probs, double *out) {
  const int64_t k_head = idx[2] / (sizes->hq / sizes->hk);
  const uint16_t *q = bf16_row(&qkv[0], idx[0], idx[1], idx[2]);
  const double scale = 1.0 / sqrt((double)sizes->d);
  double row_max = -INFINITY;
  double row_sum = 0.0;
  for (int64_t elem = 0; elem < sizes->d; ++elem) out[elem] = 0.0;
  for (int64_t key = 0; key < num_visible; ++key) {
    probs[key] = scale * dot(q, bf16_row(&qkv[1], idx[0], key, k_head), sizes->d);
    row_max = fmax(row_max, probs[key]);
  }
  for (int64_t key = 0; key < num_visible; ++key) {
    probs[key] = exp(probs[key] - row_max);
    row_sum += probs[key];
  }
  for (int64_t key = 0; key < num_visible; ++key) {
    const uint16_t *v = bf16_row(&qkv[2], idx[0], key, k_head);
    for (int64_t elem = 0; elem < sizes->d; ++elem) out[elem] += probs[key] / row_sum * (double)float_of_bf16(v[elem]);
  }
  return num_visible > 0 ? row_max + log(row_sum) : -INFINITY;
}

/* ||out - want|| / ||want|| of o (b, sq, hq, d) and the largest error of lse (b, hq, sq), both compact. */
typedef struct attention_errors {
  double o_relative;
  double lse_largest;
} attention_errors;

static inline double lse_error(float got, double want) {
  if (isinf(want)) return (double)got == want ? 0.0 : INFINITY;
  return isnan(got) ? INFINITY : fabs((double)got - want);
}

static inline attention_errors compare_attention(const attention_sizes *sizes, const bf16_view qkv[3],
                                                 num_visible_fn num_visible, const uint16_t *o, const float *lse) {
  double *room = (double *)malloc((size_t)(sizes->sk + sizes->d + 1) * sizeof(double));
  double *want = room + sizes->sk;
  double error_squares = 0.0;
  double want_squares = 0.0;
  attention_errors errors = {0.0, 0.0};
  for (int64_t row = 0; room != NULL && row < sizes->b * sizes->sq * sizes->hq; ++row) {
    const int64_t idx[3] = {row / (sizes->sq * sizes->hq), row / sizes->hq % sizes->sq, row % sizes->hq};
    const double want_lse = attention_row(sizes, qkv, idx, num_visible(idx[1], sizes), room, want);
    const double lse_off = lse_error(lse[(idx[0] * sizes->hq + idx[2]) * sizes->sq + idx[1]], want_lse);
    errors.lse_largest = fmax(errors.lse_largest, lse_off);
    for (int64_t elem = 0; elem < sizes->d; ++elem) {
      const double off = (double)float_of_bf16(o[row * sizes->d + elem]) - want[elem];
      error_squares += off * off;
      want_squares += want[elem] * want[elem];
    }
  }
  errors.o_relative = room == NULL ? INFINITY : sqrt(error_squares / (want_squares > 0.0 ? want_squares : 1.0));
  if (isnan(errors.o_relative)) errors.o_relative = INFINITY;
  free(room);
  return errors;
}

#endif
