/* SPDX-License-Identifier: Apache-2.0
 *
 * block_lists.c: the leaves of a block-sparse mask from a map of its tiles. Called by C hosts, and by Python.
 *
 * In the list of a pair of query tiles those key tiles that only the first one sees come first, then those of both, then
 * the second one's, so that either has one range; within, those that are seen whole lie together.
 */
#include "bind.h"
#include "dtypes.h"
#include "opdeck.h"
#include "text.h"

#include <inttypes.h>
#include <string.h>

enum {
  EMPTY,
  PARTIAL,
  FULL,
  NUM_KINDS
};

enum {
  RANK = 4,
  NUM_GROUPS = 8
};

/* What a key tile is to the first and to the second query tile, in the order of the list. */
static const uint8_t groups[NUM_GROUPS][2] = {{PARTIAL, EMPTY}, {FULL, EMPTY},   {PARTIAL, PARTIAL}, {FULL, PARTIAL},
                                              {FULL, FULL},     {PARTIAL, FULL}, {EMPTY, FULL},      {EMPTY, PARTIAL}};

static opdeck_status check_strides(const char *name, const opdeck_tensor *tensor) {
  int64_t compact = 1;
  for (int32_t dim = RANK - 1; dim >= 0; --dim) {
    if (tensor->strides != NULL && tensor->shape[dim] > 1 && tensor->strides[dim] != compact)
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got stride %" PRId64 " in dim %" PRId32 ", want %" PRId64, name,
                     tensor->strides[dim], dim, compact);
    compact *= tensor->shape[dim] > 1 ? tensor->shape[dim] : 1;
  }
  return OPDECK_OK;
}

/* Of host memory, compact, four dims; `shape` is what is wanted, -1 for any extent. */
static opdeck_status check_tensor(const char *name, const opdeck_tensor *tensor, int32_t dtype_number,
                                  const int64_t *shape) {
  if (tensor == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got NULL", name);
  const od_dtype *dtype = od_dtype_of(dtype_number);
  char spare[48], got[160], want[160];
  if (tensor->dtype_code != dtype->code || tensor->dtype_bits != dtype->bits || tensor->dtype_lanes != 1)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got dtype %s, want %s", name,
                   od_dtype_name_of_tensor(tensor, spare, sizeof spare), dtype->name);
  if (tensor->device_type != OPDECK_DEVICE_CPU)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got device_type %" PRId32 ", want %d (host memory)", name,
                   tensor->device_type, OPDECK_DEVICE_CPU);
  if (tensor->ndim != RANK || tensor->shape == NULL)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got %" PRId32 " dims, want %d", name, tensor->ndim, RANK);
  int is_as_wanted = 1;
  int64_t num_elems = 1; /* an extent of 0 taken for 1, so that no product of extents overflows */
  for (int32_t dim = 0; dim < RANK; ++dim) {
    const int64_t extent = tensor->shape[dim];
    is_as_wanted &= extent >= 0 && (shape[dim] < 0 || extent == shape[dim]);
    if (__builtin_mul_overflow(num_elems, extent > 0 ? extent : 1, &num_elems))
      return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got more than 2^63 elements", name);
  }
  od_format_extents(tensor->shape, RANK, got, sizeof got);
  od_format_extents(shape, RANK, want, sizeof want);
  if (!is_as_wanted)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got shape %s, want %s", name, got,
                   shape[0] < 0 ? "extents of at least 0" : want);
  if (tensor->data == NULL && tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3] > 0)
    return od_fail(OPDECK_INVALID_ARGUMENT, "%s: got data NULL", name);
  return check_strides(name, tensor);
}

static opdeck_status check_kinds(const uint8_t *kinds, const int64_t *shape) {
  const int64_t num_tiles = shape[0] * shape[1] * shape[2] * shape[3];
  for (int64_t tile = 0; tile < num_tiles; ++tile)
    if (kinds[tile] >= NUM_KINDS)
      return od_fail(OPDECK_INVALID_ARGUMENT, "kinds: got %d at element %" PRId64 ", want 0, 1 or 2", kinds[tile], tile);
  return OPDECK_OK;
}

static void set_range(int32_t *range, int32_t begin, int32_t full_begin, int32_t full_end, int32_t end) {
  const int32_t edges[4] = {begin, full_begin, full_end, end};
  memcpy(range, edges, sizeof edges);
}

/* The list of one pair; `second` and `ranges[1]` are NULL where the pair has but one query tile. */
static void make_list(const uint8_t *first, const uint8_t *second, int64_t num_k_tiles, int32_t *list,
                      int32_t *const ranges[2]) {
  int32_t ends[NUM_GROUPS + 1] = {0};
  int32_t length = 0;
  for (int group = 0; group < NUM_GROUPS; ++group) {
    for (int64_t tile = 0; tile < num_k_tiles; ++tile)
      if (first[tile] == groups[group][0] && (second == NULL ? EMPTY : second[tile]) == groups[group][1])
        list[length++] = (int32_t)tile;
    ends[group + 1] = length;
  }
  for (int64_t rest = length; rest < num_k_tiles; ++rest) list[rest] = 0;
  /* The first one's full tiles lie on both sides of group 2: one range when that is empty, else the longer of the two. */
  const int is_one = ends[2] == ends[3];
  const int is_left = is_one || ends[2] - ends[1] >= ends[5] - ends[3];
  set_range(ranges[0], 0, is_left ? ends[1] : ends[3], is_one || !is_left ? ends[5] : ends[2], ends[6]);
  if (second != NULL) set_range(ranges[1], ends[2], ends[4], ends[7], ends[8]);
}

static void *data_of(const opdeck_tensor *tensor) {
  return (char *)tensor->data + tensor->byte_offset;
}

opdeck_status opdeck_block_lists(const opdeck_tensor *kinds, const opdeck_tensor *tiles, const opdeck_tensor *ranges) {
  od_clear_error();
  const int64_t any[RANK] = {-1, -1, -1, -1};
  opdeck_status status = check_tensor("kinds", kinds, OPDECK_DT_UINT8, any);
  if (status != OPDECK_OK) return status;
  const int64_t *shape = kinds->shape;
  const int64_t num_q_tiles = shape[2], num_k_tiles = shape[3], num_pairs = (num_q_tiles + 1) / 2;
  const int64_t of_tiles[RANK] = {shape[0], shape[1], num_pairs, num_k_tiles};
  const int64_t of_ranges[RANK] = {shape[0], shape[1], num_q_tiles, 4};
  status = check_tensor("tiles", tiles, OPDECK_DT_INT32, of_tiles);
  if (status == OPDECK_OK) status = check_tensor("ranges", ranges, OPDECK_DT_INT32, of_ranges);
  if (status == OPDECK_OK) status = check_kinds(data_of(kinds), shape);
  if (status != OPDECK_OK) return status;
  for (int64_t row = 0; row < shape[0] * shape[1]; ++row)
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      const int64_t q_tile = row * num_q_tiles + 2 * pair;
      const uint8_t *first = (const uint8_t *)data_of(kinds) + q_tile * num_k_tiles;
      int32_t *first_range = (int32_t *)data_of(ranges) + q_tile * 4;
      const int has_second = 2 * pair + 1 < num_q_tiles;
      make_list(first, has_second ? first + num_k_tiles : NULL, num_k_tiles,
                (int32_t *)data_of(tiles) + (row * num_pairs + pair) * num_k_tiles,
                (int32_t *const[2]){first_range, first_range + 4});
    }
  return OPDECK_OK;
}
