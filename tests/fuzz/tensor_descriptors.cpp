// SPDX-License-Identifier: Apache-2.0
// Words that a kernel writes and the tensor units read: tensor maps, shared-memory and instruction descriptors. What
// decodes must also be safe to walk: every piece of a box or operand stays where it may be.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tensormap.h"
#include "umma.h"
#include "wgmma.h"

namespace {

using namespace opdeck::emu;

constexpr uint32_t kSmemBytes = 227 * 1024;

// Takes values from the input, zeros behind its end.
class Source {
 public:
  Source(const uint8_t* data, size_t num_bytes) : at_(data), left_(num_bytes) {}
  template <class T>
  T take() {
    T value{};
    const size_t num_bytes = std::min(sizeof value, left_);
    if (num_bytes != 0) std::memcpy(&value, at_, num_bytes);
    at_ += num_bytes;
    left_ -= num_bytes;
    return value;
  }

 private:
  const uint8_t* at_;
  size_t left_;
};

void require(bool holds) {
  if (!holds) std::abort();
}

// Clears what makes most random maps invalid, as the input's byte says.
std::array<uint64_t, 16> tensor_map_words(Source& source) {
  const auto repairs = source.take<uint8_t>();
  std::array<uint64_t, 16> q;
  for (uint64_t& word : q) word = source.take<uint64_t>();
  if (repairs & 1) {
    q[0] &= ~uint64_t{31};
    q[1] &= ~(uint64_t{0xffc0'980f} | 1u << 19 | 1u << 20);
    q[3] &= 0xffff'ffff;
    q[6] &= ~(uint64_t{0x1ff} << 47);
    q[7] &= 0xffff'ffff;
  }
  if (repairs & 2) q[6] = (q[6] & ~(uint64_t{0xff} << 56)) | uint64_t{15} << 56;  // a box of 16
  return q;
}

void check_tensor_map(Source& source) {
  const std::array<uint64_t, 16> words = tensor_map_words(source);
  const Expected<TensorMap> decoded = decode_tensor_map(reinterpret_cast<const uint8_t*>(words.data()));
  if (!decoded.ok()) return;
  const TensorMap& map = decoded.value;
  require(map.rank >= 1 && map.rank <= TensorMap::max_rank);
  std::array<int32_t, TensorMap::max_rank> coords;
  for (int32_t& coord : coords) coord = source.take<int32_t>();
  coords[0] &= ~127;
  if (!check_coords(map, coords.data(), TensorCopy::load).empty()) return;
  const uint32_t box_bytes = map.box_bytes();
  uint64_t want_bytes = map.box_row_bytes(), visited_bytes = 0;
  for (uint32_t d = 1; d < map.rank; ++d) want_bytes *= map.num_copied(d);
  require(box_bytes == want_bytes);
  for_each_run(map, coords.data(), [&](const TileRun& run) {
    require(run.num_elems <= map.box_elems[0] && uint64_t{run.smem_offset} + run.shared_bytes <= box_bytes);
    uint32_t covered = 0;
    for_each_piece(map.swizzle, 0, run, [&](uint32_t, uint32_t, uint32_t num_bytes) { covered += num_bytes; });
    require(covered == run.shared_bytes);
    visited_bytes += covered;
  });
  require(visited_bytes == box_bytes);
}

void check_umma(Source& source) {
  UmmaOperands op;
  op.kind = static_cast<MmaKind>(source.take<uint8_t>() % 7);
  op.target = static_cast<Target>(source.take<uint8_t>() % 3);
  op.num_ctas = 1 + source.take<uint8_t>() % 2;
  op.scale_vector = source.take<uint8_t>() % 5;
  const auto repairs = source.take<uint8_t>();
  op.a_in_tmem = repairs & 1;
  op.instruction_descriptor = source.take<uint32_t>();
  op.d_address = source.take<uint32_t>();
  op.a = source.take<uint64_t>();
  op.b_descriptor = source.take<uint64_t>();
  op.sfa_address = source.take<uint32_t>();
  op.sfb_address = source.take<uint32_t>();
  if (repairs & 2) op.d_address &= 0x0070'00ff, op.sfa_address &= 0x1ff, op.sfb_address &= 0x1ff;
  if (repairs & 4)  // the fixed bits of descriptors, and small offsets
    for (uint64_t* word : {&op.a, &op.b_descriptor})
      *word = (*word & 0xc000'00ff'01ff'0fff) | uint64_t{1} << 46;
  if (repairs & 8) op.instruction_descriptor &= 0x1ffe'1fb0;
  decode_instruction_descriptor(op.kind, op.instruction_descriptor, op.target);
  decode_tcgen05_descriptor(op.b_descriptor, op.target);
  const Expected<UmmaPlan> plan = plan_umma(op, kSmemBytes);
  if (!plan.ok()) return;
  for (const UmmaTile& tile : plan.value.tiles)
    require(tile.cta_idx < op.num_ctas && tile.first_lane + tile.num_rows <= 128);
  const auto inside = [](uint32_t smem_offset) { require(smem_offset + 16 <= kSmemBytes); };
  if (!op.a_in_tmem) for_each_a_piece(plan.value, inside);
  for_each_b_piece(plan.value, inside);
}

void check_wgmma(Source& source) {
  WgmmaOperands op;
  op.a_format = op.b_format = static_cast<NumberFormat>(source.take<uint8_t>() % 2);
  op.n_cols = source.take<uint8_t>() * 8;
  const auto flags = source.take<uint8_t>();
  op.a_major = flags & 1 ? Major::mn : Major::k;
  op.b_major = flags & 2 ? Major::mn : Major::k;
  op.a_descriptor = source.take<uint64_t>();
  op.b_descriptor = source.take<uint64_t>();
  if (flags & 4) op.a_descriptor &= 0xc000'00ff'01ff'0fff, op.b_descriptor &= 0xc000'00ff'01ff'0fff;
  decode_wgmma_descriptor(op.b_descriptor);
  const Expected<WgmmaPlan> plan = plan_wgmma(op, kSmemBytes);
  if (!plan.ok()) return;
  const uint32_t k_bytes = 32;
  for_each_operand_piece(plan.value.b_smem, op.b_major,
                         operand_extent(op.b_major, op.n_cols, k_bytes, plan.value.k_elems),
                         [](uint32_t smem_offset) { require(smem_offset + 16 <= kSmemBytes); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  Source source(data, num_bytes);
  switch (source.take<uint8_t>() % 3) {
    case 0: check_tensor_map(source); break;
    case 1: check_umma(source); break;
    default: check_wgmma(source); break;
  }
  return 0;
}
