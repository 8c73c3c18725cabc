// SPDX-License-Identifier: Apache-2.0
// One tcgen05.mma test case: random operands placed in the memories of one or two CTAs, the instruction run, and D
// compared with sums in double. All values and sums are exact in f32, so the comparison is exact in any order.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "check.h"
#include "operand_tile.h"
#include "umma.h"

namespace umma_test {

using namespace opdeck::emu;

struct Case {
  MmaKind kind = MmaKind::f16;
  NumberFormat a_format = NumberFormat::f16, b_format = NumberFormat::f16;
  Accumulator accumulator = Accumulator::f32;
  uint32_t m = 128, n = 128, num_ctas = 1;
  TileSwizzle a_swizzle = TileSwizzle::b128, b_swizzle = TileSwizzle::b128;
  bool a_mn = false, b_mn = false;
  bool a_in_tmem = false;
  uint32_t step = 1;  // which 32 bytes of K of the tiles
  bool accumulate = true;
  bool negate_a = false, negate_b = false, saturate = false;
  uint32_t scale_input_d_log2 = 0;
  uint32_t block = 0;  // K elements a scale factor
  NumberFormat scale_format = NumberFormat::ue8m0;
  uint32_t sfa_id = 0, sfb_id = 0;
  Target target = Target::sm_100a;
};

inline std::string name(const Case& c) {
  return std::string(mma_kind_name(c.kind)) + " " + format_name(c.a_format) + "x" + format_name(c.b_format) + " m" +
         std::to_string(c.m) + "n" + std::to_string(c.n) + " ctas " + std::to_string(c.num_ctas) + " swizzle " +
         std::to_string(static_cast<int>(c.a_swizzle)) + std::to_string(static_cast<int>(c.b_swizzle)) + " mn " +
         std::to_string(c.a_mn) + std::to_string(c.b_mn) + " ts " + std::to_string(c.a_in_tmem);
}

inline uint32_t code_bits(NumberFormat f) { return format_traits(f).total_bits; }
inline bool packed_fp4(const Case& c) { return c.kind == MmaKind::mxf4 || c.kind == MmaKind::mxf4nvf4; }
inline uint32_t k_elems(const Case& c) { return packed_fp4(c) ? 64 : 256 / std::max(8u, code_bits(c.a_format)); }

inline uint32_t format_code(MmaKind kind, NumberFormat f) {
  switch (f) {
    case NumberFormat::f16: return 0;
    case NumberFormat::bf16: return 1;
    case NumberFormat::tf32: return 2;
    case NumberFormat::u8: return 0;
    case NumberFormat::s8: return 1;
    case NumberFormat::e4m3: return 0;
    case NumberFormat::e5m2: return 1;
    case NumberFormat::e2m3: return 3;
    case NumberFormat::e3m2: return 4;
    default: return kind == MmaKind::mxf4 || kind == MmaKind::mxf4nvf4 ? 1 : 5;
  }
}

inline uint32_t instruction_descriptor(const Case& c) {
  uint32_t word = format_code(c.kind, c.a_format) << 7 | format_code(c.kind, c.b_format) << 10 |
                  uint32_t{c.negate_a} << 13 | uint32_t{c.negate_b} << 14 | uint32_t{c.a_mn} << 15 |
                  uint32_t{c.b_mn} << 16 | c.n / 8 << 17 | c.m / 16 << 24;
  if (c.block)
    return word | c.sfb_id << 4 | uint32_t{c.scale_format == NumberFormat::ue8m0} << 23 | c.sfa_id << 29;
  const uint32_t d = c.accumulator == Accumulator::f16 ? 0 : c.accumulator == Accumulator::f32 ? 1 : 2;
  return word | d << 4 | uint32_t{c.saturate} << 3;
}

// Where row and column of D are, from the tables of PTX's data path layouts.
struct Place {
  uint32_t cta, lane, column;
};
inline Place d_place(const Case& c, uint32_t row, uint32_t col) {
  if (c.num_ctas == 1) return {0, c.m == 128 ? row : row / 16 * 32 + row % 16, col};
  if (c.m == 256) return {row / 128, row % 128, col};
  return {row / 64, row % 64 + (col >= c.n / 2 ? 64 : 0), col % (c.n / 2)};
}

constexpr uint32_t d_column = 32, a_column = 320, sfa_column = 400, sfb_column = 420;

struct Memory {
  std::vector<uint8_t> smem = std::vector<uint8_t>(200 * 1024, 0xff);
  std::vector<uint32_t> tmem = std::vector<uint32_t>(512 * 128, 0xffffffff);
  uint32_t& cell(uint32_t lane, uint32_t column) { return tmem[column * 128 + lane]; }
};

class Bench {
 public:
  explicit Bench(const Case& c, uint32_t seed = 1) : c_(c), rng_(seed) {
    a_tile_ = {c.a_swizzle, c.a_mn, c.m / c.num_ctas, 128, elem_bytes(c.a_format), 1024};
    b_tile_ = {c.b_swizzle, c.b_mn, c.n / c.num_ctas, 128, elem_bytes(c.b_format), 65536};
    const uint32_t k = k_elems(c);
    a_ = random_values(c.m * k, c.a_format);
    b_ = random_values(c.n * k, c.b_format);
    d_ = random_values(c.m * c.n, c.accumulator == Accumulator::s32 ? NumberFormat::s8 : NumberFormat::e2m1);
    place_operands();
    if (c.block) place_scales();
    for (uint32_t row = 0; row < c.m; ++row)
      for (uint32_t col = 0; col < c.n; ++col) {
        const Place p = d_place(c, row, col);
        memory[p.cta].cell(p.lane, d_column + p.column) = encode_d(d_[row * c.n + col]);
      }
  }

  UmmaOperands operands() const {
    UmmaOperands op;
    op.kind = c_.kind;
    op.target = c_.target;
    op.num_ctas = c_.num_ctas;
    op.scale_vector = c_.block ? k_elems(c_) / c_.block : 0;
    op.instruction_descriptor = instruction_descriptor(c_);
    op.d_address = d_column;
    op.a_in_tmem = c_.a_in_tmem;
    op.a = c_.a_in_tmem ? a_column : a_tile_.tcgen05_descriptor(c_.step);
    op.b_descriptor = b_tile_.tcgen05_descriptor(c_.step);
    op.sfa_address = sfa_column;
    op.sfb_address = sfb_column;
    op.accumulate = c_.accumulate;
    op.scale_input_d_log2 = c_.scale_input_d_log2;
    return op;
  }

  Error run(const UmmaOperands& op) {
    const auto plan = plan_umma(op, static_cast<uint32_t>(memory[0].smem.size()));
    if (!plan.ok()) return plan.error;
    const UmmaCta ctas[2] = {view(memory[0]), view(memory[1])};
    return execute_umma(plan.value, ctas);
  }

  double expected(uint32_t row, uint32_t col) const {
    const uint32_t k = k_elems(c_);
    double sum = c_.accumulate ? std::ldexp(d_[row * c_.n + col], -static_cast<int>(c_.scale_input_d_log2)) : 0;
    for (uint32_t i = 0; i < k; ++i) {
      double product = a_[row * k + i] * b_[col * k + i];
      if (c_.block) product *= sfa_[row * (k / c_.block) + i / c_.block] * sfb_[col * (k / c_.block) + i / c_.block];
      sum += c_.negate_a != c_.negate_b ? -product : product;
    }
    return sum;
  }
  double before(uint32_t row, uint32_t col) const { return d_[row * c_.n + col]; }

  double actual(uint32_t row, uint32_t col) {
    const Place p = d_place(c_, row, col);
    const uint32_t word = memory[p.cta].cell(p.lane, d_column + p.column);
    if (c_.accumulator == Accumulator::s32) return static_cast<int32_t>(word);
    if (c_.accumulator == Accumulator::f16) return decode(word & 0xffff, NumberFormat::f16);
    return __builtin_bit_cast(float, word);
  }

  Memory memory[2];

 private:
  static uint32_t elem_bytes(NumberFormat f) { return std::max(8u, code_bits(f)) / 8; }
  static UmmaCta view(Memory& m) {
    return {{m.smem.data(), static_cast<uint32_t>(m.smem.size())}, {m.tmem.data()}};
  }

  std::vector<double> random_values(size_t count, NumberFormat f) {
    static const double small[] = {0, 0.5, -0.5, 1, -1, 1.5, 2, -2, 3, -4, 6};
    const uint32_t choices = c_.accumulator == Accumulator::f16 ? 5 : 11;
    std::vector<double> values(count);
    for (double& v : values) {
      v = small[rng_() % choices];
      if (f == NumberFormat::s8) v = static_cast<int>(rng_() % 256) - 128;
      if (f == NumberFormat::u8) v = rng_() % 256;
    }
    return values;
  }

  uint32_t encode_d(double v) const {
    if (c_.accumulator == Accumulator::s32) return static_cast<uint32_t>(static_cast<int32_t>(v));
    if (c_.accumulator == Accumulator::f16) return encode(v, {NumberFormat::f16}) | 0xabcd0000;
    return encode(v, {NumberFormat::f32});
  }
  static uint32_t encode_elem(double v, NumberFormat f) {
    if (f == NumberFormat::s8 || f == NumberFormat::u8) return static_cast<uint32_t>(static_cast<int>(v)) & 0xff;
    return encode(v, {f, Rounding::rn, Saturation::finite});
  }

  void put(Memory& m, const OperandTile& tile, uint32_t row, uint32_t k, uint32_t code, NumberFormat f) {
    if (code_bits(f) >= 8)
      tile.put(m.smem, row, c_.step * k_elems(c_) + k, code);
    else
      tile.put_bits(m.smem, row, c_.step * k_elems(c_) + k, code, code_bits(f), packed_fp4(c_) ? 32 : 16);
  }

  void place_operands() {
    const uint32_t k = k_elems(c_);
    for (uint32_t row = 0; row < c_.m; ++row)
      for (uint32_t i = 0; i < k; ++i) {
        const uint32_t code = encode_elem(a_[row * k + i], c_.a_format);
        const uint32_t rows = c_.m / c_.num_ctas;
        if (c_.a_in_tmem)
          put_tmem(row, i, code);
        else
          put(memory[row / rows], a_tile_, row % rows, i, code, c_.a_format);
      }
    const uint32_t cols = c_.n / c_.num_ctas;
    for (uint32_t col = 0; col < c_.n; ++col)
      for (uint32_t i = 0; i < k; ++i)
        put(memory[col / cols], b_tile_, col % cols, i, encode_elem(b_[col * k + i], c_.b_format), c_.b_format);
  }

  // A beside D: the lanes of D's row; both halves of the lanes where those hold the halves of N.
  void put_tmem(uint32_t row, uint32_t k, uint32_t code) {
    const uint32_t bits = code_bits(c_.a_format);
    for (uint32_t col : {0u, c_.n - 1}) {
      const Place p = d_place(c_, row, col);
      uint32_t& word = memory[p.cta].cell(p.lane, a_column + k * bits / 32);
      const uint32_t shift = k * bits % 32, mask = (bits == 32 ? ~0u : (1u << bits) - 1) << shift;
      word = (word & ~mask) | code << shift;
    }
  }

  void put_scale(Memory& m, uint32_t first_lane, uint32_t num_quarters, uint32_t column, uint32_t byte, uint32_t code) {
    for (uint32_t q = 0; q < num_quarters; ++q) {
      uint32_t& word = m.cell(first_lane + 32 * q, column);
      word = (word & ~(0xffu << 8 * byte)) | code << 8 * byte;
    }
  }

  void place_scales() {
    static const double pow2[] = {0.25, 0.5, 1, 2, 4}, e4m3[] = {0.5, 1, 1.5, 2, 3};
    const auto pick = [&] { return (c_.scale_format == NumberFormat::ue8m0 ? pow2 : e4m3)[rng_() % 5]; };
    const auto code_of = [&](double v) { return encode(v, {c_.scale_format, Rounding::rz, Saturation::finite}); };
    const uint32_t factors = k_elems(c_) / c_.block, rows = c_.m / c_.num_ctas;
    for (uint32_t row = 0; row < c_.m; ++row)
      for (uint32_t f = 0; f < factors; ++f) {
        sfa_.push_back(pick());
        const uint32_t i = row % rows;
        put_scale(memory[row / rows], i % 32, 4, sfa_column + i / 32, c_.sfa_id + f, code_of(sfa_.back()));
      }
    const bool halves = c_.num_ctas == 2 && c_.m == 128;
    for (uint32_t col = 0; col < c_.n; ++col)
      for (uint32_t f = 0; f < factors; ++f) {
        sfb_.push_back(pick());
        const uint32_t i = halves ? col % (c_.n / 2) : col;
        const uint32_t lane = i % 32 + (halves && col >= c_.n / 2 ? 64 : 0);
        for (uint32_t cta = 0; cta < c_.num_ctas; ++cta)
          put_scale(memory[cta], lane, halves ? 2 : 4, sfb_column + i / 32, c_.sfb_id + f, code_of(sfb_.back()));
      }
  }

  Case c_;
  std::mt19937 rng_;
  OperandTile a_tile_, b_tile_;
  std::vector<double> a_, b_, d_, sfa_, sfb_;
};

inline void check_case(const Case& c) {
  Bench bench(c);
  const Error error = bench.run(bench.operands());
  const std::string case_name = name(c);
  if (!CHECK_EQ(error, "", case_name)) return;
  for (uint32_t row = 0; row < c.m; ++row)
    for (uint32_t col = 0; col < c.n; ++col)
      if (!CHECK_EQ(bench.actual(row, col), bench.expected(row, col), case_name, "row", row, "column", col)) return;
}

}  // namespace umma_test
