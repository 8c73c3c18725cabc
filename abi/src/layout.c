/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.c: checks a tensor's type, place and layout against an argument row; called by bind.c and, for launches, by
 * launch.c. Limits: TMA's 32-bit extents and 40-bit strides, for every tensor (PTX ISA, tensor maps; CUDA Driver API,
 * cuTensorMapEncodeTiled).
 */
#include "bind.h"

#include "dtypes.h"
#include "text.h"

#include <inttypes.h>
#include <string.h>

#define MAX_EXTENT INT64_C(0xffffffff)
#define MAX_STRIDE_BYTES ((INT64_C(1) << 40) - 1)

enum {
  TMA_ALIGN_BYTES = 16
};

void od_format_extents(const int64_t *extents, int32_t rank, char *text_data, size_t capacity_bytes) {
  od_text text = od_text_in(text_data, capacity_bytes);
  od_text_add(&text, "(");
  for (int32_t dim = 0; dim < rank; ++dim) od_text_add(&text, "%s%" PRId64, dim == 0 ? "" : ", ", extents[dim]);
  od_text_add(&text, ")");
}

static opdeck_status check_dtype(const opdeck_pack_arg *row, const opdeck_tensor *tensor, int32_t *found) {
  for (int32_t dtype_idx = 0; dtype_idx < row->num_dtypes; ++dtype_idx) {
    const od_dtype *dtype = od_dtype_of(row->dtypes[dtype_idx]);
    if (dtype->code != tensor->dtype_code || dtype->bits != tensor->dtype_bits || tensor->dtype_lanes != 1) continue;
    *found = row->dtypes[dtype_idx];
    return OPDECK_OK;
  }
  char wanted[256];
  od_text text = od_text_in(wanted, sizeof wanted);
  for (int32_t dtype_idx = 0; dtype_idx < row->num_dtypes; ++dtype_idx)
    od_text_add(&text, "%s%s", dtype_idx == 0 ? "" : "|", od_dtype_of(row->dtypes[dtype_idx])->name);
  if (tensor->dtype_lanes != 1)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got dtype_lanes %d, want 1", row->name, tensor->dtype_lanes);
  char spare[48];
  return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got dtype %s, want %s", row->name,
                 od_dtype_name_of_tensor(tensor, spare, sizeof spare), wanted);
}

opdeck_status od_check_place(const char *name, const opdeck_tensor *tensor, const od_device *device) {
  if (device->driver->kind == OD_DRIVER_NONE) return OPDECK_OK;
  const int is_emulator = device->driver->kind == OD_DRIVER_EMULATOR;
  const int32_t want_type = is_emulator ? OPDECK_DEVICE_CPU : OPDECK_DEVICE_CUDA;
  if (tensor->device_type != want_type)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got device_type %" PRId32 ", want %" PRId32 " (%s)", name,
                   tensor->device_type, want_type, is_emulator ? "host memory, for the emulator" : "CUDA");
  if (!is_emulator && tensor->device_id != device->ordinal)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got a tensor on cuda:%" PRId32 ", want cuda:%d", name,
                   tensor->device_id, device->ordinal);
  return OPDECK_OK;
}

static opdeck_status check_shape(const opdeck_pack_arg *row, const opdeck_tensor *tensor, od_layout *layout) {
  if (tensor->ndim != row->rank)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %" PRId32 " dims, want %" PRId32, row->name, tensor->ndim,
                   row->rank);
  if (tensor->shape == NULL && row->rank > 0)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got shape NULL, want %" PRId32 " extents", row->name, row->rank);
  layout->rank = row->rank;
  int64_t num_elems = 1; /* an extent of 0 taken for 1, so that no product of extents overflows */
  int is_empty = 0;
  for (int32_t dim = 0; dim < row->rank; ++dim) {
    const int64_t extent = tensor->shape[dim];
    if (extent < 0 || extent > MAX_EXTENT)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got extent %" PRId64 " in dim %" PRId32 ", want 0..%" PRId64,
                     row->name, extent, dim, MAX_EXTENT);
    layout->shape[dim] = extent;
    is_empty |= extent == 0;
    if (__builtin_mul_overflow(num_elems, extent > 0 ? extent : 1, &num_elems))
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got more than 2^63 elements", row->name);
  }
  layout->num_elems = is_empty ? 0 : num_elems;
  return OPDECK_OK;
}

/* TMA asks for 32 bytes where it moves elements under a byte. */
int32_t od_align_bytes(const opdeck_pack_arg *row, int32_t dtype) {
  return od_dtype_of(dtype)->bits < 8 ? 2 * row->align_bytes : row->align_bytes;
}

int od_has_pitch(const opdeck_pack_arg *row) {
  int has_pitch = 0;
  for (int32_t dtype_idx = 0; dtype_idx < row->num_dtypes; ++dtype_idx)
    has_pitch |= od_dtype_of(row->dtypes[dtype_idx])->bits < 8;
  return has_pitch && row->access == 1 && row->rank > 1 && row->contiguous_last;
}

static int32_t inner_dim(const od_layout *layout) {
  return layout->rank - (layout->is_transposed ? 2 : 1);
}

static int32_t pitch_dim(const od_layout *layout) {
  return layout->rank - (layout->is_transposed ? 1 : 2);
}

int64_t od_pitch_elems(const od_layout *layout) {
  return layout->strides[pitch_dim(layout)];
}

static int is_transposed(const opdeck_pack_arg *row, const opdeck_tensor *tensor, int32_t dtype) {
  if (row->contiguous_last != OPDECK_TRANSPOSABLE || tensor->strides == NULL || od_dtype_of(dtype)->bits < 8) return 0;
  return tensor->strides[row->rank - 1] != 1 && tensor->strides[row->rank - 2] == 1;
}

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

static int64_t row_stride(const opdeck_pack_arg *row, int64_t row_elems, int32_t dtype) {
  const int64_t align_bits = 8 * (int64_t)od_align_bytes(row, dtype);
  const int64_t align_elems = align_bits / greatest_common_divisor(align_bits, od_dtype_of(dtype)->bits);
  const int64_t elems = row_elems > 0 ? row_elems : 1;
  return (elems + align_elems - 1) / align_elems * align_elems;
}

/* Whether the stride of a dim takes part in any element's address. */
static int is_stride_used(const od_layout *layout, int32_t dim) {
  return (layout->num_elems > 0 && layout->shape[dim] > 1) || (layout->has_pitch && dim == pitch_dim(layout));
}

/* The strides, compact where none are given, and a row's length where they are not used. */
static void set_strides(const opdeck_pack_arg *row, const opdeck_tensor *tensor, od_layout *layout) {
  const int32_t last = layout->rank - 1;
  const int32_t inner = inner_dim(layout);
  int64_t compact = 1;
  for (int32_t dim = last; dim >= 0; --dim) {
    if (is_stride_used(layout, dim))
      layout->strides[dim] = tensor->strides != NULL ? tensor->strides[dim] : compact;
    else
      layout->strides[dim] = dim == inner ? 1 : row_stride(row, layout->shape[inner], layout->dtype);
    compact *= layout->num_elems > 0 || dim == last ? layout->shape[dim] : 1;
  }
}

static opdeck_status check_stride(const opdeck_pack_arg *row, const od_layout *layout, int32_t dim) {
  const int64_t stride = layout->strides[dim];
  const int64_t elem_bits = od_dtype_of(layout->dtype)->bits;
  const int is_broadcastable = row->access == 1 && row->align_bytes < TMA_ALIGN_BYTES;
  if (stride < 0 || (stride == 0 && !is_broadcastable))
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got stride %" PRId64 " in dim %" PRId32 ", want %s", row->name, stride,
                   dim, is_broadcastable ? "at least 0" : "more than 0");
  if (stride > MAX_STRIDE_BYTES * 8 / elem_bits)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got stride %" PRId64 " in dim %" PRId32 ", want less than 2^40 bytes",
                   row->name, stride, dim);
  if (dim == inner_dim(layout)) {
    if (row->contiguous_last && stride != 1)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got stride %" PRId64 " in the last dim, want 1 (contiguous)",
                     row->name, stride);
    return OPDECK_OK;
  }
  const int32_t align_bytes = od_align_bytes(row, layout->dtype);
  if (stride * elem_bits % (8 * (int64_t)align_bytes) != 0)
    return od_fail(OPDECK_INVALID_ARGUMENT,
                   "%s: got stride %" PRId64 " (%" PRId64 " bytes) in dim %" PRId32 ", want a multiple of %" PRId32
                   " bytes",
                   row->name, stride, stride * elem_bits / 8, dim, align_bytes);
  return OPDECK_OK;
}

/* Dims with more than one element, by growing stride: each must step over all that the smaller ones span. This refuses
 * a few interleaved layouts that do not overlap; no array library makes them. */
static int is_overlapping(const od_layout *layout) {
  int32_t order[OD_MAX_RANK];
  int32_t num_dims = 0;
  for (int32_t dim = 0; dim < layout->rank; ++dim) {
    if (!is_stride_used(layout, dim)) continue;
    int32_t at = num_dims++;
    for (; at > 0 && layout->strides[order[at - 1]] > layout->strides[dim]; --at) order[at] = order[at - 1];
    order[at] = dim;
  }
  int64_t last_elem = 0; /* of what the dims so far span */
  for (int32_t order_idx = 0; order_idx < num_dims; ++order_idx) {
    const int32_t dim = order[order_idx];
    if (layout->strides[dim] <= last_elem) return 1;
    last_elem += (layout->shape[dim] - 1) * layout->strides[dim];
  }
  return 0;
}

static int is_span_in_64_bits(const od_layout *layout) {
  int64_t last_elem = 0;
  for (int32_t dim = 0; dim < layout->rank; ++dim) {
    int64_t step = 0;
    if (!is_stride_used(layout, dim)) continue;
    if (__builtin_mul_overflow(layout->shape[dim] - 1, layout->strides[dim], &step) ||
        __builtin_add_overflow(last_elem, step, &last_elem))
      return 0;
  }
  return last_elem <= INT64_MAX / 8;
}

static opdeck_status check_strides(const opdeck_pack_arg *row, const od_layout *layout) {
  for (int32_t dim = 0; dim < layout->rank; ++dim) {
    const opdeck_status status = is_stride_used(layout, dim) ? check_stride(row, layout, dim) : OPDECK_OK;
    if (status != OPDECK_OK) return status;
  }
  if (!is_span_in_64_bits(layout))
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: its strides span more than 2^60 elements", row->name);
  if (row->access == 1 || !is_overlapping(layout)) return OPDECK_OK;
  char shape[160];
  char strides[160];
  od_format_extents(layout->shape, layout->rank, shape, sizeof shape);
  od_format_extents(layout->strides, layout->rank, strides, sizeof strides);
  return od_fail(OPDECK_INVALID_ARGUMENT,
                 "%s: got shape %s with strides %s, want an output whose elements do not overlap", row->name, shape,
                 strides);
}

opdeck_status od_layout_of(const opdeck_pack_arg *row, const opdeck_tensor *tensor, const od_device *device,
                           od_layout *layout) {
  if (tensor == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got tensor NULL, want a tensor", row->name);
  opdeck_status status = check_dtype(row, tensor, &layout->dtype);
  layout->has_pitch = od_has_pitch(row);
  if (status == OPDECK_OK) status = check_shape(row, tensor, layout);
  if (status == OPDECK_OK) status = od_check_place(row->name, tensor, device);
  if (status != OPDECK_OK) return status;
  layout->is_transposed = is_transposed(row, tensor, layout->dtype);
  set_strides(row, tensor, layout);
  return check_strides(row, layout);
}

/* Bytes from a tensor's first to its last, the dims whose strides are multiples of `period_bytes` left out (0: none). */
static uint64_t span_bytes(const od_layout *layout, uint64_t period_bytes) {
  const uint64_t elem_bits = (uint64_t)od_dtype_of(layout->dtype)->bits;
  uint64_t last_elem = 0;
  for (int32_t dim = 0; dim < layout->rank; ++dim) {
    const uint64_t stride = (uint64_t)layout->strides[dim];
    if (!is_stride_used(layout, dim) || (period_bytes != 0 && stride * elem_bits % (8 * period_bytes) == 0)) continue;
    last_elem += (uint64_t)(layout->shape[dim] - 1) * stride;
  }
  return last_elem / 8 * elem_bits + (last_elem % 8 * elem_bits + elem_bits + 7) / 8;
}

/* Whether the tensors lie in parts of their own of each period, as q and o do in a packed (B, S, 4, H, D). */
static int are_interleaved(const od_layout *low, const od_layout *high, uint64_t distance_bytes) {
  const uint64_t elem_bits = (uint64_t)od_dtype_of(low->dtype)->bits;
  for (int32_t dim = 0; dim < low->rank; ++dim) {
    const uint64_t period_bytes = (uint64_t)low->strides[dim] * elem_bits / 8;
    if (!is_stride_used(low, dim) || period_bytes == 0) continue;
    const uint64_t high_begin = distance_bytes % period_bytes;
    if (span_bytes(low, period_bytes) <= high_begin && high_begin + span_bytes(high, period_bytes) <= period_bytes)
      return 1;
  }
  return 0;
}

int od_layouts_overlap(const od_layout *a, const void *a_data, const od_layout *b, const void *b_data) {
  const int is_a_low = (uintptr_t)a_data <= (uintptr_t)b_data;
  const od_layout *low = is_a_low ? a : b;
  const od_layout *high = is_a_low ? b : a;
  const uint64_t distance_bytes =
      is_a_low ? (uintptr_t)b_data - (uintptr_t)a_data : (uintptr_t)a_data - (uintptr_t)b_data;
  return distance_bytes < span_bytes(low, 0) && !are_interleaved(low, high, distance_bytes);
}

int od_layout_matches(const od_layout *layout, const opdeck_tensor *tensor) {
  const od_dtype *dtype = od_dtype_of(layout->dtype);
  if (tensor->dtype_code != dtype->code || tensor->dtype_bits != dtype->bits || tensor->dtype_lanes != 1) return 0;
  if (tensor->ndim != layout->rank || (layout->rank > 0 && tensor->shape == NULL)) return 0;
  int64_t compact = 1;
  for (int32_t dim = layout->rank - 1; dim >= 0; --dim) {
    if (tensor->shape[dim] != layout->shape[dim]) return 0;
    if (!is_stride_used(layout, dim)) continue;
    if ((tensor->strides != NULL ? tensor->strides[dim] : compact) != layout->strides[dim]) return 0;
    compact *= layout->shape[dim];
  }
  return 1;
}
