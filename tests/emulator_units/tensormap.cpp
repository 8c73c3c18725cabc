// SPDX-License-Identifier: Apache-2.0
// Tensor maps: decoding, refusals, the walk over a box against an element-by-element one, and reductions.
#include "tensormap.h"

#include <algorithm>
#include <map>

#include "check.h"
#include "tensor_map_words.h"

using namespace opdeck::emu;

namespace {

// A 5-D f16 map whose fields all differ.
TensorMapWords five_dims() {
  TensorMapWords w;
  w.base = 0x7f0000001000;
  w.sizes = {40, 7, 5, 3, 2};
  w.strides = {96, 96 * 8, 96 * 8 * 6, 96 * 8 * 6 * 4};
  w.box = {16, 3, 2, 2, 2};
  return w;
}

void check_decode() {
  const auto map = decode_tensor_map(five_dims().encode().data());
  CHECK(map.ok(), map.error);
  CHECK_EQ(map.value.base, 0x7f0000001000u);
  CHECK_EQ(map.value.rank, 5u);
  const TensorMapWords w = five_dims();
  for (uint32_t d = 0; d < 5; ++d) {
    CHECK_EQ(map.value.size_elems[d], w.sizes[d], d);
    CHECK_EQ(map.value.box_elems[d], w.box[d], d);
    if (d > 0) CHECK_EQ(map.value.stride_bytes[d], w.strides[d - 1], d);
  }
  CHECK_EQ(map.value.box_bytes(), 16u * 3 * 2 * 2 * 2 * 2);
  CHECK_EQ(map.value.transaction_bytes(), map.value.box_bytes());
}

Error error_of(const TensorMapWords& w) { return decode_tensor_map(w.encode().data()).error; }

void check_refusals() {
  const auto with = [](auto change) {
    TensorMapWords w = five_dims();
    change(w);
    return error_of(w);
  };
  CHECK_ERROR(with([](auto& w) { w.base += 8; }), "global address");
  CHECK_ERROR(with([](auto& w) { w.box[0] = 9; }), "boxDim[0]");
  CHECK_ERROR(with([](auto& w) { w.low_flags = 1 << 11; }), "interleave");
  CHECK_ERROR(with([](auto& w) { w.low_flags = 1 << 15; }), "fill");
  CHECK_ERROR(with([](auto& w) { w.type = 14; }), "data type 14");
  CHECK_ERROR(with([](auto& w) { w.atom = 1; }), "swizzle atom");
  CHECK_ERROR(with([](auto& w) { w.swizzle = 1; w.box[0] = 32; }), "at most 32 under swizzle 32B");
  CHECK_ERROR(with([](auto& w) { w.swizzle = 2; w.box[0] = 64; }), "at most 64");
  CHECK_ERROR(with([](auto& w) { w.swizzle = 3; w.box[0] = 128; }), "at most 128");
  CHECK_ERROR(with([](auto& w) { w.type = 12; }), "globalDim[0]");
  CHECK_ERROR(with([](auto& w) { w.type = 12; w.sizes[0] = 128; w.strides[0] = 48; w.base = 16; }), "multiple of 32");
  CHECK_ERROR(with([](auto& w) { w.type = 13; w.sizes[0] = 128; w.box[0] = 64; }), "128 for u6_align16");
  CHECK_ERROR(with([](auto& w) { w.type = 13; w.sizes[0] = 128; w.box[0] = 128; w.swizzle = 1; }), "swizzle");
  CHECK_ERROR(with([](auto& w) { w.low_flags = 5 << 4; }), "rank is");
  std::vector<uint8_t> bytes = five_dims().encode();
  bytes[54] = 1;
  CHECK_ERROR(decode_tensor_map(bytes.data()).error, "im2col");
  bytes = five_dims().encode();
  bytes[8] ^= 1;
  CHECK_ERROR(decode_tensor_map(bytes.data()).error, "version is 3");
}

// Every field of a map that is all zeros but for its version, replaced, gives the map that the host would have encoded.
void check_replacement() {
  using Field = TensorMapField;
  TensorMapWords want = five_dims();
  want.elem_strides = {1, 2, 1, 3, 2};
  want.type = 7;  // f32, and the bit that makes it tf32
  want.low_flags = 1 << 16;
  want.box[0] = 8;
  want.swizzle = 3;
  want.atom = 1;
  std::vector<uint8_t> bytes(128);
  bytes[8] = 2;
  const auto replace = [&](Field field, uint32_t ordinal, uint64_t value) {
    return replace_tensor_map_field(bytes.data(), field, ordinal, value);
  };
  CHECK_EQ(replace(Field::global_address, 0, want.base), "");
  CHECK_EQ(replace(Field::rank, 0, 4), "");
  CHECK_EQ(replace(Field::elemtype, 0, 11), "");
  CHECK_EQ(replace(Field::swizzle_mode, 0, 3), "");
  CHECK_EQ(replace(Field::swizzle_atomicity, 0, 1), "");
  for (uint32_t d = 0; d < 5; ++d) {
    CHECK_EQ(replace(Field::global_dim, d, want.sizes[d]), "");
    CHECK_EQ(replace(Field::box_dim, d, want.box[d]), "");
    CHECK_EQ(replace(Field::element_stride, d, want.elem_strides[d]), "");
    if (d > 0) CHECK_EQ(replace(Field::global_stride, d - 1, want.strides[d - 1]), "");
  }
  CHECK(bytes == want.encode());
  CHECK_EQ(decode_tensor_map(bytes.data()).error, "");

  constexpr TensorMapType kTypes[] = {
      TensorMapType::u8,   TensorMapType::u16,     TensorMapType::u32, TensorMapType::s32,  TensorMapType::u64,
      TensorMapType::s64,  TensorMapType::f16,     TensorMapType::f32, TensorMapType::f32_ftz, TensorMapType::f64,
      TensorMapType::bf16, TensorMapType::tf32,    TensorMapType::tf32_ftz};
  CHECK_EQ(replace(Field::swizzle_mode, 0, 0), "");
  CHECK_EQ(replace(Field::swizzle_atomicity, 0, 0), "");
  CHECK_EQ(replace(Field::box_dim, 0, 16), "");
  for (uint32_t i = 0; i < std::size(kTypes); ++i) {
    CHECK_EQ(replace(Field::elemtype, 0, i), "");
    CHECK_EQ(static_cast<int>(decode_tensor_map(bytes.data()).value.type), static_cast<int>(kTypes[i]), i);
  }

  const std::vector<uint8_t> before = bytes;
  CHECK_ERROR(replace(Field::global_dim, 1, 0), "global_dim is 0, want 1 .. 4294967296");
  CHECK_ERROR(replace(Field::box_dim, 1, 257), "box_dim is 257, want 1 .. 256");
  CHECK_ERROR(replace(Field::element_stride, 1, 9), "element_stride is 9, want 1 .. 8");
  CHECK_ERROR(replace(Field::global_stride, 1, 24), "a multiple of 16");
  CHECK_ERROR(replace(Field::elemtype, 0, 16), "elemtype is 16");
  CHECK_ERROR(replace(Field::swizzle_mode, 0, 4), "swizzle_mode is 4");
  CHECK(bytes == before);
  CHECK_EQ(replace(Field::interleave_layout, 0, 1), "");
  CHECK_ERROR(decode_tensor_map(bytes.data()).error, "interleave");
  CHECK_EQ(replace(Field::interleave_layout, 0, 0), "");
  CHECK_EQ(replace(Field::fill_mode, 0, 1), "");
  CHECK_ERROR(decode_tensor_map(bytes.data()).error, "fill");
  CHECK_EQ(replace(Field::fill_mode, 0, 0), "");
  CHECK_EQ(replace(Field::global_address, 0, 8), "");  // held, but no map that a copy may use
  CHECK_ERROR(decode_tensor_map(bytes.data()).error, "global address");
}

// Element (i0 .. i4) of the box is at smem offset i0 + box0 * (i1 + box1 * ...), and in bounds iff every coordinate is.
void check_walk(const std::vector<int32_t>& coords, const std::vector<uint32_t>& steps = {1, 1, 1, 1, 1}) {
  TensorMapWords w = five_dims();
  w.elem_strides = steps;
  const TensorMap map = decode_tensor_map(w.encode().data()).value;
  std::map<uint32_t, uint64_t> addresses;  // smem byte offset of an element -> global address, 0 outside
  uint32_t expected_offset = 0;
  for_each_run(map, coords.data(), [&](const TileRun& run) {
    CHECK_EQ(run.smem_offset, expected_offset, "runs come in order");
    CHECK_EQ(run.shared_bytes, run.num_elems * 2);
    CHECK_EQ(run.global_bytes, run.num_elems * 2);
    expected_offset += run.shared_bytes;
    for (uint32_t e = 0; e < run.num_elems; ++e)
      addresses[run.smem_offset + e * 2] = run.in_bounds ? run.global_address + e * 2 : 0;
  });
  CHECK_EQ(expected_offset, map.box_bytes());
  uint32_t offset = 0;
  for (uint32_t i4 = 0; i4 < w.box[4]; i4 += steps[4])
    for (uint32_t i3 = 0; i3 < w.box[3]; i3 += steps[3])
      for (uint32_t i2 = 0; i2 < w.box[2]; i2 += steps[2])
        for (uint32_t i1 = 0; i1 < w.box[1]; i1 += steps[1])
          for (uint32_t i0 = 0; i0 < w.box[0]; ++i0, offset += 2) {
            const uint32_t i[5] = {i0, i1, i2, i3, i4};
            bool inside = true;
            int64_t address = static_cast<int64_t>(w.base);
            for (int d = 0; d < 5; ++d) {
              const int64_t at = coords[d] + static_cast<int64_t>(i[d]);
              inside &= at >= 0 && at < static_cast<int64_t>(w.sizes[d]);
              address += at * (d == 0 ? 2 : static_cast<int64_t>(w.strides[d - 1]));
            }
            CHECK_EQ(addresses[offset], inside ? static_cast<uint64_t>(address) : 0, "element", i0, i1, i2, i3, i4);
          }
}

void check_coordinates() {
  const TensorMap map = decode_tensor_map(five_dims().encode().data()).value;
  const auto error = [&map](std::vector<int32_t> coords, TensorCopy copy) {
    return check_coords(map, coords.data(), copy);
  };
  CHECK_EQ(error({-8, -1, 9, 0, 0}, TensorCopy::load), "");
  CHECK_ERROR(error({4, 0, 0, 0, 0}, TensorCopy::load), "coordinate 0 is 4, want a multiple of 8");
  CHECK_EQ(error({32, 9, 9, 0, 0}, TensorCopy::store), "");
  CHECK_ERROR(error({0, 0, -1, 0, 0}, TensorCopy::store), "coordinate 2 of a store");
  CHECK_ERROR(error({-8, 0, 0, 0, 0}, TensorCopy::reduce), "coordinate 0 of a store");
}

void check_padded_types() {
  TensorMapWords w;
  w.sizes = {256, 4};
  w.strides = {128};
  w.box = {128, 2};
  w.type = 12;
  w.swizzle = 3;
  const auto fp4 = decode_tensor_map(w.encode().data());
  CHECK(fp4.ok(), fp4.error);
  CHECK_EQ(fp4.value.box_row_bytes(), 128u);
  CHECK_EQ(fp4.value.transaction_bytes(), 128u, "u4_align16 counts packed bytes: 2 rows of 64");
  const int32_t coords[2] = {128, 1};
  for_each_run(fp4.value, coords, [&](const TileRun& run) {
    CHECK_EQ(run.global_bytes, 64u);
    CHECK_EQ(run.shared_bytes, 128u);
    if (run.in_bounds) CHECK_EQ(run.global_address, 64 + 128u * (1 + run.smem_offset / 128));
  });
  uint8_t packed[24], slots[32], back[24];
  for (int i = 0; i < 24; ++i) packed[i] = static_cast<uint8_t>(i + 1);
  expand_elems(TensorMapType::u4_align16, packed, 32, slots);
  CHECK(slots[7] == 8 && slots[8] == 0 && slots[16] == 9 && slots[31] == 0);
  expand_elems(TensorMapType::u6_align16, packed, 32, slots);
  CHECK(slots[11] == 12 && slots[12] == 0 && slots[16] == 13 && slots[28] == 0);
  compact_elems(TensorMapType::u6_align16, slots, 32, back);
  CHECK(std::equal(packed, packed + 24, back));
}

template <class T>
T reduced(ReduceOp op, TensorMapType type, T memory, T source) {
  reduce_elems(op, type, reinterpret_cast<const uint8_t*>(&source), 1, reinterpret_cast<uint8_t*>(&memory));
  return memory;
}

void check_reductions() {
  using T = TensorMapType;
  using R = ReduceOp;
  CHECK_EQ(reduced<uint32_t>(R::add, T::u32, 0xffffffff, 2), 1u);
  CHECK_EQ(reduced<int32_t>(R::min, T::s32, -5, 3), -5);
  CHECK_EQ(reduced<uint32_t>(R::min, T::u32, static_cast<uint32_t>(-5), 3), 3u);
  CHECK_EQ(reduced<int64_t>(R::max, T::s64, -5, 3), 3);
  CHECK_EQ(reduced<uint32_t>(R::inc, T::u32, 7, 7), 0u);
  CHECK_EQ(reduced<uint32_t>(R::inc, T::u32, 6, 7), 7u);
  CHECK_EQ(reduced<uint32_t>(R::dec, T::u32, 0, 7), 7u);
  CHECK_EQ(reduced<uint32_t>(R::dec, T::u32, 5, 7), 4u);
  CHECK_EQ(reduced<uint32_t>(R::and_, T::u32, 6, 3), 2u);
  CHECK_EQ(reduced<uint64_t>(R::or_, T::u64, 6, 3), 7u);
  CHECK_EQ(reduced<uint64_t>(R::xor_, T::u64, 6, 3), 5u);
  CHECK_EQ(reduced<float>(R::add, T::f32, 1.5f, 2.25f), 3.75f);
  CHECK_EQ(reduced<float>(R::add, T::f32, 0x1p-140f, 0x1p-140f), 0x1p-139f);
  CHECK_EQ(reduced<float>(R::add, T::f32_ftz, 0x1p-140f, 0x1p-140f), 0.0f);
  CHECK_EQ(reduced<uint16_t>(R::add, T::f16, 0x3c00, 0x3c00), 0x4000);        // 1 + 1
  CHECK_EQ(reduced<uint16_t>(R::add, T::f16, 0x6800, 0x3c00), 0x6800);        // 2048 + 1: a tie, to even
  CHECK_EQ(reduced<uint16_t>(R::add, T::bf16, 0x4380, 0x3f80), 0x4380);       // 256 + 1: a tie, to even
  CHECK_EQ(reduced<uint16_t>(R::max, T::f16, 0x7e00, 0xbc00), 0xbc00);        // NaN loses
  CHECK_EQ(reduced<uint16_t>(R::min, T::bf16, 0x0000, 0x8000), 0x8000);       // -0 < +0
  CHECK(check_reduction(R::add, T::f16).empty());
  CHECK_ERROR(check_reduction(R::add, T::s64), "add on s64");
  CHECK_ERROR(check_reduction(R::inc, T::s32), "want u32");
  CHECK_ERROR(check_reduction(R::min, T::f32), "min on f32");
  CHECK_ERROR(check_reduction(R::xor_, T::f16), "xor on f16");
}

}  // namespace

int main() {
  check_decode();
  check_refusals();
  check_replacement();
  check_walk({0, 0, 0, 0, 0});
  check_walk({8, 2, 1, 1, 0});
  check_walk({8, 1, 1, 1, 0}, {1, 2, 1, 2, 1});
  check_walk({-8, -2, 0, 0, -1}, {1, 3, 2, 1, 2});
  check_walk({-5, -1, -1, -1, -1});
  check_walk({30, 5, 4, 2, 1});
  check_walk({-16, 0, 0, 0, 0});
  check_walk({40, 0, 0, 0, 0});
  check_walk({-2147483647, 2147483640, 0, 0, 0});
  check_coordinates();
  check_padded_types();
  check_reductions();
  return check::result();
}
