// SPDX-License-Identifier: Apache-2.0
// wgmma: types, majors, fragments and refusals, against sums in double of exactly representable values.
#include "wgmma.h"

#include <cmath>
#include <vector>

#include "check.h"
#include "operand_tile.h"

using namespace opdeck::emu;

namespace {

struct Case {
  NumberFormat a_format = NumberFormat::f16, b_format = NumberFormat::f16;
  Accumulator accumulator = Accumulator::f32;
  uint32_t n = 128;
  TileSwizzle swizzle = TileSwizzle::b128;
  bool a_mn = false, b_mn = false, a_in_registers = false;
  bool scale_d = true, negate_a = false, negate_b = false;
};

uint32_t elem_bytes(NumberFormat f) { return format_traits(f).total_bits / 8; }
uint32_t encode_elem(double v, NumberFormat f) {
  if (f == NumberFormat::s8 || f == NumberFormat::u8) return static_cast<uint32_t>(static_cast<int>(v)) & 0xff;
  return encode(v, {f, Rounding::rn, Saturation::finite});
}

// Registers of a warpgroup: [warp][register][lane].
struct Fragments {
  explicit Fragments(uint32_t num_registers) : count(num_registers), words(4 * num_registers * 32) {
    for (uint32_t i = 0; i < 4 * num_registers; ++i) table.push_back(&words[i * 32]);
  }
  uint32_t& at(uint32_t thread, uint32_t reg) { return words[(thread / 32 * count + reg) * 32 + thread % 32]; }
  uint32_t count;
  std::vector<uint32_t> words;
  std::vector<uint32_t*> table;
};

// Where element (row, col) of D is: PTX's figure of the m64nNk accumulators, read the other way round.
struct Slot {
  uint32_t thread, reg, half;
};
Slot d_slot(uint32_t row, uint32_t col, Accumulator accumulator) {
  const uint32_t thread = row / 16 * 32 + row % 8 * 4 + col % 8 / 2;
  const uint32_t elem = col / 8 * 4 + row % 16 / 8 * 2 + col % 2;
  return accumulator == Accumulator::f16 ? Slot{thread, elem / 2, elem % 2} : Slot{thread, elem, 0};
}

class Bench {
 public:
  explicit Bench(const Case& c)
      : k_(32 / elem_bytes(c.a_format)), d_fragments_(c.n / (c.accumulator == Accumulator::f16 ? 4 : 2)), c_(c) {
    a_tile_ = {c.swizzle, c.a_mn, 64, 128, elem_bytes(c.a_format), 2048};
    b_tile_ = {c.swizzle, c.b_mn, c.n, 128, elem_bytes(c.b_format), 32768};
    a_ = values(64 * k_, c.a_format);
    b_ = values(c.n * k_, c.b_format);
    d_ = values(64 * c.n, c.accumulator == Accumulator::s32 ? NumberFormat::s8 : NumberFormat::f16);
    for (uint32_t row = 0; row < 64; ++row)
      for (uint32_t k = 0; k < k_; ++k) put_a(row, k, encode_elem(a_[row * k_ + k], c.a_format));
    for (uint32_t col = 0; col < c.n; ++col)
      for (uint32_t k = 0; k < k_; ++k)
        b_tile_.put(smem_, col, 2 * k_ + k, encode_elem(b_[col * k_ + k], c.b_format));
    for (uint32_t row = 0; row < 64; ++row)
      for (uint32_t col = 0; col < c.n; ++col) put_d(row, col, d_[row * c.n + col]);
  }

  WgmmaOperands operands() const {
    return {c_.a_format, c_.b_format, c_.accumulator, c_.n, c_.scale_d, c_.negate_a, c_.negate_b, false,
            c_.a_mn ? Major::mn : Major::k, c_.b_mn ? Major::mn : Major::k, c_.a_in_registers,
            a_tile_.wgmma_descriptor(2), b_tile_.wgmma_descriptor(2)};
  }

  void check() {
    const auto plan = plan_wgmma(operands(), static_cast<uint32_t>(smem_.size()));
    if (!CHECK_EQ(plan.error, "")) return;
    CHECK_EQ(plan.value.num_d_registers, d_fragments_.count);
    CHECK_EQ(plan.value.num_macs(), uint64_t{64} * c_.n * k_);
    execute_wgmma(plan.value, {smem_.data(), static_cast<uint32_t>(smem_.size())},
                  c_.a_in_registers ? a_fragments_.table.data() : nullptr, d_fragments_.table.data());
    for (uint32_t row = 0; row < 64; ++row)
      for (uint32_t col = 0; col < c_.n; ++col)
        if (!CHECK_EQ(get_d(row, col), expected(row, col), format_name(c_.a_format), format_name(c_.b_format), "n",
                      c_.n, "swizzle", static_cast<int>(c_.swizzle), "mn", c_.a_mn, c_.b_mn, "at", row, col))
          return;
  }

 private:
  std::vector<double> values(size_t count, NumberFormat f) {
    static const double small[] = {0, 0.5, -0.5, 1, -1, 1.5, -2, 3};
    std::vector<double> out(count);
    for (double& v : out) {
      v = small[rng_() % (c_.accumulator == Accumulator::f16 ? 5 : 8)];
      if (f == NumberFormat::s8) v = static_cast<int>(rng_() % 256) - 128;
      if (f == NumberFormat::u8) v = rng_() % 256;
    }
    return out;
  }

  // In registers: PTX's figure of the A fragment of m64k16 and its siblings, read the other way round.
  void put_a(uint32_t row, uint32_t k, uint32_t code) {
    if (!c_.a_in_registers) return a_tile_.put(smem_, row, 2 * k_ + k, code);
    const uint32_t bits = elem_bytes(c_.a_format) * 8, per_register = 32 / bits, half = k_ / 2;
    const uint32_t thread = row / 16 * 32 + row % 8 * 4 + k % half / per_register;
    const uint32_t reg = k / half * 2 + row % 16 / 8;
    a_fragments_.at(thread, reg) |= code << k % per_register * bits;
  }

  void put_d(uint32_t row, uint32_t col, double v) {
    const Slot s = d_slot(row, col, c_.accumulator);
    uint32_t& word = d_fragments_.at(s.thread, s.reg);
    if (c_.accumulator == Accumulator::s32)
      word = static_cast<uint32_t>(static_cast<int32_t>(v));
    else if (c_.accumulator == Accumulator::f32)
      word = __builtin_bit_cast(uint32_t, static_cast<float>(v));
    else
      word |= encode(v, {NumberFormat::f16}) << 16 * s.half;
  }
  double get_d(uint32_t row, uint32_t col) {
    const Slot s = d_slot(row, col, c_.accumulator);
    const uint32_t word = d_fragments_.at(s.thread, s.reg);
    if (c_.accumulator == Accumulator::s32) return static_cast<int32_t>(word);
    if (c_.accumulator == Accumulator::f32) return __builtin_bit_cast(float, word);
    return decode(word >> 16 * s.half & 0xffff, NumberFormat::f16);
  }

  double expected(uint32_t row, uint32_t col) const {
    double sum = 0;
    for (uint32_t k = 0; k < k_; ++k) sum += a_[row * k_ + k] * b_[col * k_ + k];
    return (c_.scale_d ? d_[row * c_.n + col] : 0) + (c_.negate_a != c_.negate_b ? -sum : sum);
  }

  uint32_t k_;
  Fragments a_fragments_{4}, d_fragments_;
  Case c_;
  std::mt19937 rng_{7};
  std::vector<uint8_t> smem_ = std::vector<uint8_t>(96 * 1024, 0xff);
  OperandTile a_tile_, b_tile_;
  std::vector<double> a_, b_, d_;
};

void check_types() {
  using F = NumberFormat;
  const std::vector<std::pair<F, F>> floats = {{F::f16, F::f16},   {F::bf16, F::bf16}, {F::tf32, F::tf32},
                                               {F::e4m3, F::e4m3}, {F::e4m3, F::e5m2}, {F::e5m2, F::e4m3},
                                               {F::e5m2, F::e5m2}};
  for (bool a_in_registers : {false, true})
    for (bool scale_d : {false, true}) {
      for (auto [a, b] : floats)
        for (Accumulator accumulator : {Accumulator::f32, Accumulator::f16}) {
          if (accumulator == Accumulator::f16 && (a == F::bf16 || a == F::tf32)) continue;
          Case c;
          c.a_format = a;
          c.b_format = b;
          c.accumulator = accumulator;
          c.a_in_registers = a_in_registers;
          c.scale_d = scale_d;
          c.negate_a = scale_d;
          Bench(c).check();
          c.negate_b = !a_in_registers;
          Bench(c).check();
        }
      for (F a : {F::s8, F::u8})
        for (F b : {F::s8, F::u8}) {
          Case c;
          c.a_format = a;
          c.b_format = b;
          c.accumulator = Accumulator::s32;
          c.a_in_registers = a_in_registers;
          c.scale_d = scale_d;
          Bench(c).check();
        }
    }
}

void check_layouts() {
  for (TileSwizzle swizzle : {TileSwizzle::none, TileSwizzle::b32, TileSwizzle::b64, TileSwizzle::b128})
    for (int majors = 0; majors < 4; ++majors)
      for (uint32_t n : {64u, 128u, 256u}) {
        Case c;
        c.a_format = c.b_format = NumberFormat::bf16;
        c.swizzle = swizzle;
        c.a_mn = majors & 1;
        c.b_mn = majors & 2;
        c.n = n;
        Bench(c).check();
      }
  for (uint32_t n = 8; n <= 256; n += 8) {
    Case c;
    c.n = n;
    Bench(c).check();
  }
}

void check_refusals() {
  const auto error = [](auto change) {
    WgmmaOperands op = Bench(Case{}).operands();
    change(op);
    return plan_wgmma(op, 96 * 1024).error;
  };
  using Op = WgmmaOperands;
  CHECK_ERROR(error([](Op& op) { op.b_format = NumberFormat::bf16; }), "operand types f16 and bf16");
  CHECK_ERROR(error([](Op& op) { op.a_format = op.b_format = NumberFormat::e2m1; }), "operand types e2m1");
  CHECK_ERROR(error([](Op& op) { op.n_cols = 12; }), "N is 12");
  CHECK_ERROR(error([](Op& op) { op.n_cols = 264; }), "N is 264");
  CHECK_ERROR(error([](Op& op) { op.accumulator = Accumulator::s32; }), "D of s32");
  CHECK_ERROR(error([](Op& op) { op.saturate = true; }), ".satfinite");
  CHECK_ERROR(error([](Op& op) { op.a_in_registers = true; op.a_major = Major::mn; }), "A in registers");
  CHECK_ERROR(error([](Op& op) { op.a_format = op.b_format = NumberFormat::e4m3; op.b_major = Major::mn; }),
              "transpose");
  CHECK_ERROR(error([](Op& op) { op.a_format = op.b_format = NumberFormat::bf16; op.accumulator = Accumulator::f16; }),
              "D of f16");
  CHECK_ERROR(error([](Op& op) { op.b_descriptor |= uint64_t{1} << 50; }), "B: shared-memory descriptor");
  CHECK_ERROR(error([](Op& op) { op.a_descriptor |= 0x3fff; }), "A: matrix descriptor");
}

}  // namespace

int main() {
  check_types();
  check_layouts();
  check_refusals();
  return check::result();
}
