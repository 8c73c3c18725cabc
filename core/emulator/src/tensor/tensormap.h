// SPDX-License-Identifier: Apache-2.0
// TMA tensor maps (CUtensorMap): decoding, validation, and the walk over a box.
// Called by cp.async.bulk.tensor, cp.reduce.async.bulk.tensor and the prefetch of src/isa.
// Source: CUDA driver API, cuTensorMapEncodeTiled (the limits); the encoding as the CuTe DSL's host code writes it and
// as a driver does for an H200 (which also fills the second half, for itself).
// Limits: tiled mode; im2col, interleaved layouts and NaN fill are refused by name.
#pragma once

#include <array>
#include <cstdint>

#include "outcome.h"
#include "swizzle.h"

namespace opdeck::emu {

enum class TensorMapType : uint8_t {
  u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, f32_ftz, tf32, tf32_ftz,
  u4_align8,   // 16 packed 4-bit elements fill 8 bytes of shared memory
  u4_align16,  // 16 4-bit elements fill 8 bytes and 8 bytes of padding
  u6_align16   // 16 6-bit elements fill 12 bytes and 4 bytes of padding
};
const char* tensor_map_type_name(TensorMapType type);

struct TensorMap {
  static constexpr uint32_t max_rank = 5;
  uint64_t base = 0;  // global address
  TensorMapType type = TensorMapType::u8;
  uint32_t rank = 0;
  std::array<uint64_t, max_rank> size_elems{};     // 1 .. 2^32; dimension 0 is contiguous
  std::array<uint64_t, max_rank> stride_bytes{};   // [0] is unused: the pitch of dimension 0 is the element
  std::array<uint32_t, max_rank> box_elems{};      // 1 .. 256
  std::array<uint32_t, max_rank> elem_strides{};   // 1 .. 8, of dimensions 1 and up; [0] is 1
  Swizzle swizzle = Swizzle::none;

  // Bits of one element in global memory (4, 6, 8, ... 64).
  uint32_t elem_bits() const;
  // Bytes in global and in shared memory of `num_elems` neighbours along dimension 0. They differ for the 16-byte
  // padded types only.
  uint64_t global_bytes(uint64_t num_elems) const;
  uint32_t shared_bytes(uint32_t num_elems) const;

  // Elements of the box along a dimension that are copied: every elem_strides-th one.
  uint32_t num_copied(uint32_t dim) const { return (box_elems[dim] + elem_strides[dim] - 1) / elem_strides[dim]; }
  uint32_t box_row_bytes() const { return shared_bytes(box_elems[0]); }
  // Bytes of the whole box in shared memory: what must be inside shared memory.
  uint32_t box_bytes() const;
  // What complete_tx counts for one load of the box. Out-of-bounds elements count. u4_align16 counts the
  // packed bytes, without padding.
  uint32_t transaction_bytes() const;
};

// Decodes the 128 bytes and checks all that cuTensorMapEncodeTiled checks, the base address's alignment included.
Expected<TensorMap> decode_tensor_map(const uint8_t* bytes_128);

// The fields that tensormap.replace writes.
enum class TensorMapField : uint8_t {
  global_address, rank,
  box_dim, global_dim, global_stride, element_stride,  // one for each dimension, or one fewer
  elemtype, interleave_layout, swizzle_mode, swizzle_atomicity, fill_mode
};
const char* tensor_map_field_name(TensorMapField field);
// How many ordinals the field has; 0 where it has none.
uint32_t num_ordinals(TensorMapField field);

// Writes one field, of dimension `ordinal` where it has several, of the 128 bytes. `value` is as PTX counts it (rank - 1,
// a stride in bytes). An error where the field cannot hold it, or the emulator does not know it; whether the whole is a
// valid map is checked when it is used.
Error replace_tensor_map_field(uint8_t* bytes_128, TensorMapField field, uint32_t ordinal, uint64_t value);

enum class TensorCopy : uint8_t { load, store, reduce };

// Whether a copy may start at these coordinates. Hardware traps where the first is not a multiple of 16 bytes, and
// where one of a store or reduction is negative (measured on an H200; loads take any). Padded types take multiples of
// 128.
Error check_coords(const TensorMap& map, const int32_t* coords, TensorCopy copy);

// A piece of a box that is contiguous in global memory and in unswizzled shared memory.
struct TileRun {
  uint64_t global_address;  // meaningless where !in_bounds
  uint32_t smem_offset;     // from the box's start, before the swizzle
  uint32_t global_bytes;    // bytes in global memory (of a run outside: that it would have)
  uint32_t shared_bytes;    // bytes in shared memory; larger than global_bytes for padded types
  uint32_t num_elems;
  bool in_bounds;           // false: a load writes zeros, a store or reduction does nothing
};

// Calls visit(const TileRun&) for all runs of the box whose first element has the coordinates `coords[0 .. rank)`
// (signed, dimension 0 first), in ascending shared-memory order. Runs of one box row: up to three (before, in, after).
template <class Visitor>
void for_each_run(const TensorMap& map, const int32_t* coords, Visitor&& visit);

// Calls visit(smem_address, run_byte, num_bytes) for the pieces of a run that stay contiguous under the swizzle:
// smem_address is the final address (box start + offset, swizzled), run_byte the offset in the run's shared bytes.
// smem_box_address must be a CTA shared offset or a cluster address (the swizzle does not touch its top byte).
template <class Visitor>
void for_each_piece(Swizzle swizzle, uint32_t smem_box_address, const TileRun& run, Visitor&& visit);

// Required alignment of the shared-memory address of a box: 128 bytes. (A swizzled box may start on any 128
// bytes: the pattern follows the absolute address.)
constexpr uint32_t tensor_map_smem_alignment_bytes = 128;

// Expands `num_elems` elements (a multiple of 16 or the rest of a row) of a padded type from packed global bytes into
// 16-byte slots, padding zero; for the other types a copy. compact_elems is the inverse, for stores.
void expand_elems(TensorMapType type, const uint8_t* global, uint32_t num_elems, uint8_t* shared);
void compact_elems(TensorMapType type, const uint8_t* shared, uint32_t num_elems, uint8_t* global);

enum class ReduceOp : uint8_t { add, min, max, inc, dec, and_, or_, xor_ };
const char* reduce_op_name(ReduceOp op);

// Whether PTX (cp.reduce.async.bulk.tensor) has this pair; an error says which types the operation takes.
Error check_reduction(ReduceOp op, TensorMapType type);

// memory[i] = op(memory[i], source[i]) for num_elems elements; f16 and bf16 add round to nearest even, f32 add
// flushes no subnormals (f32_ftz does). Pair checked by check_reduction.
void reduce_elems(ReduceOp op, TensorMapType type, const uint8_t* source, uint32_t num_elems, uint8_t* memory);

// ---- implementation of the templates ----

// Splits [start, start + box) of one dimension into the part below 0, inside [0, size) and beyond.
struct BoxSplit {
  uint32_t before, inside, after;
};
BoxSplit split_box(int64_t start, uint32_t box, uint64_t size);

template <class Visitor>
void for_each_run(const TensorMap& map, const int32_t* coords, Visitor&& visit) {
  const BoxSplit split = split_box(coords[0], map.box_elems[0], map.size_elems[0]);
  const uint32_t row_bytes = map.box_row_bytes();
  uint32_t num_rows = 1;
  for (uint32_t d = 1; d < map.rank; ++d) num_rows *= map.num_copied(d);

  std::array<uint32_t, TensorMap::max_rank> idx{};
  for (uint32_t row = 0; row < num_rows; ++row) {
    uint64_t row_address = map.base;
    bool row_in_bounds = true;
    for (uint32_t d = 1; d < map.rank; ++d) {
      const int64_t at = static_cast<int64_t>(coords[d]) + idx[d] * map.elem_strides[d];
      row_in_bounds &= at >= 0 && static_cast<uint64_t>(at) < map.size_elems[d];
      row_address += static_cast<uint64_t>(at) * map.stride_bytes[d];
    }
    uint32_t elem = 0;
    const auto emit = [&](uint32_t num_elems, bool inside) {
      if (num_elems == 0) return;
      const uint32_t offset = map.shared_bytes(elem);
      const uint64_t first = static_cast<uint64_t>(static_cast<int64_t>(coords[0]) + elem);
      visit(TileRun{inside ? row_address + map.global_bytes(first) : 0, row * row_bytes + offset,
                    static_cast<uint32_t>(map.global_bytes(num_elems)), map.shared_bytes(elem + num_elems) - offset,
                    num_elems, inside});
      elem += num_elems;
    };
    if (row_in_bounds) {
      emit(split.before, false);
      emit(split.inside, true);
      emit(split.after, false);
    } else {
      emit(map.box_elems[0], false);
    }
    for (uint32_t d = 1; d < map.rank && ++idx[d] == map.num_copied(d); ++d) idx[d] = 0;
  }
}

template <class Visitor>
void for_each_piece(Swizzle swizzle, uint32_t smem_box_address, const TileRun& run, Visitor&& visit) {
  const uint32_t start = smem_box_address + run.smem_offset;
  if (swizzle == Swizzle::none) {
    visit(start, 0u, run.shared_bytes);
    return;
  }
  const uint32_t atom_bytes = swizzle_atom_bytes(swizzle);
  for (uint32_t done = 0; done < run.shared_bytes;) {
    const uint32_t linear = start + done;
    const uint32_t to_atom_end = atom_bytes - linear % atom_bytes;
    const uint32_t num_bytes = to_atom_end < run.shared_bytes - done ? to_atom_end : run.shared_bytes - done;
    visit(swizzle_address(swizzle, linear), done, num_bytes);
    done += num_bytes;
  }
}

}  // namespace opdeck::emu
