// SPDX-License-Identifier: Apache-2.0
// ldmatrix, stmatrix and mma.sync, against PTX's figures read from the element's side.
#include "warp_matrix.h"

#include <vector>

#include "check.h"

using namespace opdeck::emu;

namespace {

void check_matrices() {
  uint16_t rows[8][8];
  for (uint32_t r = 0; r < 8; ++r)
    for (uint32_t c = 0; c < 8; ++c) rows[r][c] = static_cast<uint16_t>(r * 256 + c);
  for (Transpose transpose : {Transpose::no, Transpose::yes}) {
    uint32_t registers[32];
    load_matrix(rows, transpose, registers);
    for (uint32_t r = 0; r < 8; ++r)
      for (uint32_t c = 0; c < 8; ++c) {
        // Row r, column c goes to lane 4r + c/2; transposed, to the lane of row c, column r.
        const uint32_t lane = transpose == Transpose::no ? r * 4 + c / 2 : c * 4 + r / 2;
        const uint32_t half = transpose == Transpose::no ? c % 2 : r % 2;
        CHECK_EQ(registers[lane] >> 16 * half & 0xffff, r * 256 + c, r, c);
      }
    uint16_t back[8][8] = {};
    store_matrix(registers, transpose, back);
    for (uint32_t r = 0; r < 8; ++r)
      for (uint32_t c = 0; c < 8; ++c) CHECK_EQ(back[r][c], rows[r][c], r, c);
  }
  CHECK_EQ(matrix_row_lane(MatrixShape::m8n8, 2, 5), 21u);
  CHECK_EQ(matrix_row_lane(MatrixShape::m16n16, 1, 5), 21u);
}

struct Fragment {
  explicit Fragment(uint32_t num_registers) : words(num_registers * 32) {
    for (uint32_t r = 0; r < num_registers; ++r) table.push_back(&words[r * 32]);
  }
  std::vector<uint32_t> words;
  std::vector<uint32_t*> table;
};

uint32_t code_of(double v, NumberFormat f) {
  if (f == NumberFormat::s8 || f == NumberFormat::u8) return static_cast<uint32_t>(static_cast<int>(v)) & 0xff;
  return encode(v, {f, Rounding::rn, Saturation::finite});
}

// Element (row, k) of A: lane 4 * (row % 8) + ..., register by 8-row half then by half of K.
void check_mma(const WarpMma& mma) {
  const std::string name = std::string(format_name(mma.a_format)) + " " + format_name(mma.b_format);
  CHECK_EQ(check_warp_mma(mma), "", name);
  std::mt19937 rng(11);
  const uint32_t k = mma.k_elems, bits = format_traits(mma.a_format).total_bits, per_word = 32 / bits;
  const bool integers = mma.accumulator == Accumulator::s32;
  const auto value = [&](NumberFormat f) -> double {
    if (f == NumberFormat::u8) return rng() % 256;
    if (f == NumberFormat::s8) return static_cast<int>(rng() % 256) - 128;
    return static_cast<int>(rng() % 5) - 2;
  };
  std::vector<double> a(16 * k), b(8 * k), c(16 * 8);
  for (double& v : a) v = value(mma.a_format);
  for (double& v : b) v = value(mma.b_format);
  for (double& v : c) v = static_cast<int>(rng() % 100) - 50;
  const uint32_t words_of_row = 4;  // lanes that share a row
  const uint32_t k_group = words_of_row * per_word;
  CHECK_EQ(warp_mma_num_a_registers(mma), k / k_group * 2, name);
  CHECK_EQ(warp_mma_num_b_registers(mma), k / k_group, name);
  Fragment fa(warp_mma_num_a_registers(mma)), fb(warp_mma_num_b_registers(mma)), fc(4), fd(4);
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t i = 0; i < k; ++i)
      fa.table[i / k_group * 2 + row / 8][row % 8 * 4 + i % k_group / per_word] |= code_of(a[row * k + i], mma.a_format)
                                                                                  << i % per_word * bits;
  for (uint32_t col = 0; col < 8; ++col)
    for (uint32_t i = 0; i < k; ++i)
      fb.table[i / k_group][col * 4 + i % k_group / per_word] |= code_of(b[col * k + i], mma.b_format)
                                                                << i % per_word * bits;
  const bool halves = mma.accumulator == Accumulator::f16;
  const auto d_word = [&](Fragment& f, uint32_t row, uint32_t col) -> uint32_t& {
    const uint32_t index = row / 8 * 2 + col % 2;
    return f.table[halves ? index / 2 : index][row % 8 * 4 + col / 2];
  };
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t col = 0; col < 8; ++col) {
      const double v = c[row * 8 + col];
      uint32_t& word = d_word(fc, row, col);
      if (integers)
        word = static_cast<uint32_t>(static_cast<int>(v));
      else if (halves)
        word |= encode(v, {NumberFormat::f16}) << 16 * (col % 2);
      else
        word = __builtin_bit_cast(uint32_t, static_cast<float>(v));
    }
  execute_warp_mma(mma, fa.table.data(), fb.table.data(), fc.table.data(), fd.table.data());
  for (uint32_t row = 0; row < 16; ++row)
    for (uint32_t col = 0; col < 8; ++col) {
      double want = c[row * 8 + col];
      for (uint32_t i = 0; i < k; ++i) want += a[row * k + i] * b[col * k + i];
      const uint32_t word = d_word(fd, row, col);
      const double got = integers ? static_cast<int32_t>(word)
                         : halves ? decode(word >> 16 * (col % 2) & 0xffff, NumberFormat::f16)
                                  : __builtin_bit_cast(float, word);
      CHECK_EQ(got, want, name, row, col);
    }
}

void check_refusals() {
  using F = NumberFormat;
  CHECK_ERROR(check_warp_mma({F::f16, F::bf16}), "operand types f16 and bf16");
  CHECK_ERROR(check_warp_mma({F::f16, F::f16, Accumulator::f32, 32}), "K is 32");
  CHECK_ERROR(check_warp_mma({F::s8, F::s8, Accumulator::f32, 32}), "D of s32");
  CHECK_ERROR(check_warp_mma({F::bf16, F::bf16, Accumulator::f16, 16}), "D of f16");
  CHECK_ERROR(check_warp_mma({F::f16, F::f16, Accumulator::f32, 16, true}), ".satfinite");
}

}  // namespace

int main() {
  using F = NumberFormat;
  check_matrices();
  for (uint32_t k : {8u, 16u})
    for (WarpMma mma : {WarpMma{F::f16, F::f16, Accumulator::f32, k}, WarpMma{F::f16, F::f16, Accumulator::f16, k},
                        WarpMma{F::bf16, F::bf16, Accumulator::f32, k}})
      check_mma(mma);
  for (uint32_t k : {4u, 8u}) check_mma({F::tf32, F::tf32, Accumulator::f32, k});
  for (uint32_t k : {16u, 32u}) {
    for (F a : {F::e4m3, F::e5m2})
      for (F b : {F::e4m3, F::e5m2}) check_mma({a, b, Accumulator::f32, k});
    for (F a : {F::s8, F::u8})
      for (F b : {F::s8, F::u8}) check_mma({a, b, Accumulator::s32, k});
  }
  check_refusals();
  return check::result();
}
