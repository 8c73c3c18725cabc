/* SPDX-License-Identifier: Apache-2.0
 *
 * test_block_lists.c: lists of block-sparse masks, of every map of three query tiles by three key tiles, and what is said
 * of wrong tensors.
 */
#include "check.h"

#include <string.h>

enum {
  Q_TILES = 3,
  K_TILES = 3,
  PAIRS = 2,
  NUM_TILES = Q_TILES * K_TILES,
  NUM_MAPS = 19683 /* 3 ^ NUM_TILES */
};

static uint8_t kinds[NUM_TILES];
static int32_t tiles[PAIRS * K_TILES], ranges[Q_TILES * 4];
static int64_t of_kinds[4] = {1, 1, Q_TILES, K_TILES}, of_tiles[4] = {1, 1, PAIRS, K_TILES};
static int64_t of_ranges[4] = {1, 1, Q_TILES, 4};

static opdeck_tensor tensor_of(void *data, const int64_t *shape, uint8_t code, uint8_t bits) {
  return (opdeck_tensor){data, OPDECK_DEVICE_CPU, 0, 4, code, bits, 1, shape, NULL, 0};
}

typedef struct list_tensors {
  opdeck_tensor kinds, tiles, ranges;
} list_tensors;

static list_tensors right_tensors(void) {
  return (list_tensors){tensor_of(kinds, of_kinds, OPDECK_CODE_UINT, 8), tensor_of(tiles, of_tiles, OPDECK_CODE_INT, 32),
                        tensor_of(ranges, of_ranges, OPDECK_CODE_INT, 32)};
}

static opdeck_status lists_of(const list_tensors *given) {
  return opdeck_block_lists(&given->kinds, &given->tiles, &given->ranges);
}

/* Each tile that the query tile sees is in its range once and no other is; only whole ones go unmasked. */
static int is_right(int q_tile) {
  const int32_t *range = ranges + 4 * q_tile, *list = tiles + q_tile / 2 * K_TILES;
  int num_listed[K_TILES] = {0};
  if (!(0 <= range[0] && range[0] <= range[1] && range[1] <= range[2] && range[2] <= range[3] && range[3] <= K_TILES))
    return 0;
  for (int position = range[0]; position < range[3]; ++position) {
    if (list[position] < 0 || list[position] >= K_TILES) return 0;
    const int is_whole = position >= range[1] && position < range[2];
    if (is_whole && kinds[q_tile * K_TILES + list[position]] != 2) return 0;
    ++num_listed[list[position]];
  }
  for (int k_tile = 0; k_tile < K_TILES; ++k_tile)
    if (num_listed[k_tile] != (kinds[q_tile * K_TILES + k_tile] != 0)) return 0;
  return 1;
}

static void test_every_map(void) {
  const list_tensors given = right_tensors();
  for (int map = 0; map < NUM_MAPS; ++map) {
    for (int tile = 0, rest = map; tile < NUM_TILES; ++tile, rest /= 3) kinds[tile] = (uint8_t)(rest % 3);
    memset(tiles, 0xff, sizeof tiles);
    memset(ranges, 0xff, sizeof ranges);
    CHECK_OK(lists_of(&given));
    for (int q_tile = 0; q_tile < Q_TILES; ++q_tile) CHECK(is_right(q_tile));
    if (num_failed_checks > 0) return;
  }
}

/* A causal map: of the first query tile a pair's only tile is cut, of the second the first one is seen whole. */
static void test_whole_tiles_go_unmasked(void) {
  static const uint8_t causal[NUM_TILES] = {1, 0, 0, 2, 1, 0, 2, 2, 1};
  const list_tensors given = right_tensors();
  memcpy(kinds, causal, sizeof kinds);
  CHECK_OK(lists_of(&given));
  for (int q_tile = 0; q_tile < Q_TILES; ++q_tile) CHECK(ranges[4 * q_tile + 2] - ranges[4 * q_tile + 1] == q_tile);
}

static void test_wrong_tensors_are_named(void) {
  list_tensors wrong = right_tensors();
  CHECK_STATUS(opdeck_block_lists(NULL, &wrong.tiles, &wrong.ranges), OPDECK_INVALID_ARGUMENT, "kinds: got NULL");
  wrong.kinds.dtype_code = OPDECK_CODE_INT;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "kinds: got dtype DLPack code 0 of 8 bits, want uint8");
  wrong = right_tensors();
  wrong.kinds.ndim = 3;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "kinds: got 3 dims, want 4");
  wrong = right_tensors();
  wrong.kinds.device_type = OPDECK_DEVICE_CUDA;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "kinds: got device_type 2, want 1 (host memory)");
  wrong = right_tensors();
  wrong.tiles.shape = of_kinds;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "tiles: got shape (1, 1, 3, 3), want (1, 1, 2, 3)");
  wrong = right_tensors();
  const int64_t huge[4] = {INT64_C(1) << 32, INT64_C(1) << 31, 1, 2};
  wrong.kinds.shape = huge;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "kinds: got more than 2^63 elements");
  wrong = right_tensors();
  wrong.ranges.dtype_bits = 64;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "ranges: got dtype int64, want int32");
  wrong = right_tensors();
  const int64_t strides[4] = {12, 12, 1, 3};
  wrong.ranges.strides = strides;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "ranges: got stride 3 in dim 3, want 1");
  wrong = right_tensors();
  wrong.tiles.data = NULL;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "tiles: got data NULL");
  wrong = right_tensors();
  kinds[5] = 3;
  CHECK_STATUS(lists_of(&wrong), OPDECK_INVALID_ARGUMENT, "kinds: got 3 at element 5, want 0, 1 or 2");
}

int main(void) {
  test_every_map();
  test_whole_tiles_go_unmasked();
  test_wrong_tensors_are_named();
  return check_exit_status();
}
