// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma without scale factors: kinds, shapes, layouts and modifiers.
#include "umma.h"

#include "umma_case.h"

using namespace umma_test;

namespace {

const NumberFormat f8f6f4[] = {NumberFormat::e4m3, NumberFormat::e5m2, NumberFormat::e3m2, NumberFormat::e2m3,
                               NumberFormat::e2m1};

Case of(MmaKind kind, NumberFormat format) {
  Case c;
  c.kind = kind;
  c.a_format = c.b_format = format;
  if (kind == MmaKind::i8) c.accumulator = Accumulator::s32;
  return c;
}

void check_shapes() {
  for (Case c : {of(MmaKind::f16, NumberFormat::f16), of(MmaKind::tf32, NumberFormat::tf32)})
    for (uint32_t num_ctas : {1u, 2u})
      for (uint32_t m : {64u, 128u, 256u})
        for (uint32_t n : {8u, 16u, 24u, 32u, 96u, 256u}) {
          if (m / num_ctas > 128 || m / num_ctas < 64 || n % (m == 64 ? 8 : 16) != 0) continue;
          c.m = m;
          c.n = n;
          c.num_ctas = num_ctas;
          for (bool accumulate : {false, true}) {
            c.accumulate = accumulate;
            check_case(c);
          }
        }
}

void check_layouts() {
  for (Case c : {of(MmaKind::f16, NumberFormat::bf16), of(MmaKind::tf32, NumberFormat::tf32),
                 of(MmaKind::f8f6f4, NumberFormat::e4m3)})
    for (TileSwizzle swizzle : {TileSwizzle::none, TileSwizzle::b32, TileSwizzle::b64, TileSwizzle::b128})
      for (int majors = 0; majors < 4; ++majors)
        for (uint32_t num_ctas : {1u, 2u}) {
          c.num_ctas = num_ctas;
          c.m = 128 * num_ctas;
          c.n = 256;
          c.a_mn = majors & 1;
          c.b_mn = majors & 2;
          c.a_swizzle = c.b_swizzle = swizzle;
          for (uint32_t step : {0u, 3u}) {
            c.step = step;
            check_case(c);
          }
        }
  // 32-byte atoms: tf32, MN-major.
  Case c = of(MmaKind::tf32, NumberFormat::tf32);
  c.a_mn = c.b_mn = true;
  c.a_swizzle = c.b_swizzle = TileSwizzle::b128_atom32;
  check_case(c);
}

void check_formats() {
  for (NumberFormat a : f8f6f4)
    for (NumberFormat b : f8f6f4) {
      Case c = of(MmaKind::f8f6f4, a);
      c.b_format = b;
      check_case(c);
    }
  for (NumberFormat a : {NumberFormat::s8, NumberFormat::u8})
    for (NumberFormat b : {NumberFormat::s8, NumberFormat::u8}) {
      Case c = of(MmaKind::i8, a);
      c.b_format = b;
      check_case(c);
      c.a_mn = c.b_mn = true;
      check_case(c);
    }
}

void check_a_in_tmem() {
  for (Case c : {of(MmaKind::f16, NumberFormat::f16), of(MmaKind::f16, NumberFormat::bf16),
                 of(MmaKind::tf32, NumberFormat::tf32), of(MmaKind::f8f6f4, NumberFormat::e5m2),
                 of(MmaKind::i8, NumberFormat::s8)}) {
    c.a_in_tmem = true;
    check_case(c);
    c.m = 64;
    check_case(c);
    c.num_ctas = 2;
    for (uint32_t m : {128u, 256u}) {
      c.m = m;
      check_case(c);
    }
  }
}

void check_modifiers() {
  Case c = of(MmaKind::f16, NumberFormat::f16);
  c.negate_a = true;
  check_case(c);
  c.negate_b = true;
  check_case(c);
  c.negate_a = false;
  c.a_in_tmem = true;
  check_case(c);
  c = of(MmaKind::f16, NumberFormat::f16);
  c.scale_input_d_log2 = 3;
  check_case(c);
  c.accumulator = Accumulator::f16;
  check_case(c);
  c.scale_input_d_log2 = 0;
  for (bool accumulate : {false, true}) {
    c.accumulate = accumulate;
    check_case(c);
  }
}

void check_disabled_lanes() {
  Case c = of(MmaKind::f16, NumberFormat::f16);
  c.num_ctas = 2;
  c.m = 256;
  Bench bench(c);
  UmmaOperands op = bench.operands();
  op.disabled_lanes = {0x1, 0, 0x80000000, 0, 0, 0xffffffff, 0, 0x2};
  CHECK_EQ(bench.run(op), "");
  for (uint32_t row = 0; row < c.m; ++row) {
    const bool disabled = op.disabled_lanes[row / 32] >> row % 32 & 1;
    for (uint32_t col = 0; col < c.n; ++col)
      CHECK_EQ(bench.actual(row, col), disabled ? bench.before(row, col) : bench.expected(row, col), row, col);
  }
}

void check_integer_overflow() {
  for (bool saturate : {false, true}) {
    Case c = of(MmaKind::i8, NumberFormat::u8);
    c.saturate = saturate;
    Bench bench(c);
    for (uint32_t lane = 0; lane < 128; ++lane)
      for (uint32_t col = 0; col < c.n; ++col) bench.memory[0].cell(lane, d_column + col) = 0x7fffffff;
    CHECK_EQ(bench.run(bench.operands()), "");
    for (uint32_t row = 0; row < c.m; ++row)
      for (uint32_t col = 0; col < c.n; ++col) {
        const double added = bench.expected(row, col) - bench.before(row, col);
        const double wrapped = 0x7fffffff + added - (added > 0 ? 4294967296.0 : 0);
        CHECK_EQ(bench.actual(row, col), saturate ? 2147483647.0 : wrapped, row, col);
      }
  }
}

// One instruction leaves everything but D's cells alone.
void check_footprint() {
  for (uint32_t m : {64u, 128u}) {
    Case c = of(MmaKind::f16, NumberFormat::f16);
    c.m = m;
    c.n = 32;
    Bench bench(c);
    const std::vector<uint32_t> before = bench.memory[0].tmem;
    CHECK_EQ(bench.run(bench.operands()), "");
    std::vector<bool> is_d(before.size());
    for (uint32_t row = 0; row < c.m; ++row)
      for (uint32_t col = 0; col < c.n; ++col)
        is_d[(d_column + col) * 128 + d_place(c, row, col).lane] = true;
    for (size_t i = 0; i < before.size(); ++i)
      if (!is_d[i]) CHECK_EQ(bench.memory[0].tmem[i], before[i], "lane", i % 128, "column", i / 128);
  }
}

// d = fl32(d + a * b) for k ascending: 2^24 + 1 + 1 is 2^24 that way, 2^24 + (1 + 1) is not.
void check_accumulation_order() {
  Case c = of(MmaKind::f16, NumberFormat::f16);
  Bench bench(c);
  for (uint32_t lane = 0; lane < 128; ++lane)
    for (uint32_t col = 0; col < c.n; ++col)
      bench.memory[0].cell(lane, d_column + col) = __builtin_bit_cast(uint32_t, 0x1p24f);
  const OperandTile a{TileSwizzle::b128, false, 128, 128, 2, 1024}, b{TileSwizzle::b128, false, 128, 128, 2, 65536};
  for (uint32_t row = 0; row < 128; ++row)
    for (uint32_t k = 0; k < 16; ++k) {
      a.put(bench.memory[0].smem, row, 16 + k, k < 2 ? 0x3c00 : 0);
      b.put(bench.memory[0].smem, row, 16 + k, 0x3c00);
    }
  CHECK_EQ(bench.run(bench.operands()), "");
  CHECK_EQ(bench.actual(5, 7), 0x1p24);
}

}  // namespace

int main() {
  check_shapes();
  check_layouts();
  check_formats();
  check_a_in_tmem();
  check_modifiers();
  check_disabled_lanes();
  check_integer_overflow();
  check_footprint();
  check_accumulation_order();
  return check::result();
}
