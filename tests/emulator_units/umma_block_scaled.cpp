// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma with scale factors.
#include <limits>

#include "umma.h"
#include "umma_case.h"

using namespace umma_test;

namespace {

Case of(MmaKind kind, uint32_t block, NumberFormat scale_format) {
  Case c;
  c.kind = kind;
  c.a_format = c.b_format = kind == MmaKind::mxf8f6f4 ? NumberFormat::e4m3 : NumberFormat::e2m1;
  c.block = block;
  c.scale_format = scale_format;
  return c;
}

const Case kinds[] = {of(MmaKind::mxf8f6f4, 32, NumberFormat::ue8m0), of(MmaKind::mxf4, 32, NumberFormat::ue8m0),
                      of(MmaKind::mxf4nvf4, 32, NumberFormat::ue8m0), of(MmaKind::mxf4nvf4, 16, NumberFormat::ue8m0),
                      of(MmaKind::mxf4nvf4, 16, NumberFormat::ue4m3)};

void check_shapes() {
  for (Case c : kinds)
    for (uint32_t num_ctas : {1u, 2u})
      for (uint32_t m : {128u, 256u})
        for (uint32_t n : {8u, 16u, 64u, 96u, 128u, 192u, 256u})
          for (bool accumulate : {false, true}) {
            if (m / num_ctas > 128 || n % (8 * num_ctas) != 0) continue;
            c.num_ctas = num_ctas;
            c.m = m;
            c.n = n;
            c.accumulate = accumulate;
            check_case(c);
          }
}

void check_scale_ids() {
  for (Case c : kinds) {
    const uint32_t factors = k_elems(c) / c.block;
    for (uint32_t a = 0; a + factors <= 4; a += factors)
      for (uint32_t b = 0; b + factors <= 4; b += factors) {
        c.sfa_id = a;
        c.sfb_id = b;
        check_case(c);
      }
  }
}

void check_mixed_formats() {
  const NumberFormat formats[] = {NumberFormat::e4m3, NumberFormat::e5m2, NumberFormat::e3m2, NumberFormat::e2m3,
                                  NumberFormat::e2m1};
  for (NumberFormat a : formats)
    for (NumberFormat b : formats) {
      Case c = kinds[0];
      c.a_format = a;
      c.b_format = b;
      check_case(c);
    }
  Case c = kinds[0];
  c.a_mn = c.b_mn = true;
  c.negate_a = true;
  check_case(c);
}

// 2^127 of A times 2^-127 of B is 1, whatever each does alone; NaN scales make NaN of zeros too.
void check_extreme_scales() {
  for (const uint32_t code : {254u, 255u}) {
    Case c = kinds[0];
    c.accumulate = false;
    Bench bench(c);
    Memory& m = bench.memory[0];
    for (uint32_t lane = 0; lane < 128; ++lane)
      for (uint32_t i = 0; i < 4; ++i) {
        m.cell(lane, sfa_column + i) = code;
        m.cell(lane, sfb_column + i) = 0;
      }
    CHECK_EQ(bench.run(bench.operands()), "");
    Case plain = c;
    plain.kind = MmaKind::f8f6f4;
    plain.block = 0;
    Bench reference(plain);
    for (uint32_t row = 0; row < c.m; ++row)
      for (uint32_t col = 0; col < c.n; ++col)
        if (code == 254)
          CHECK_EQ(bench.actual(row, col), reference.expected(row, col), row, col);
        else
          CHECK(std::isnan(bench.actual(row, col)), row, col);
  }
}

void check_missing_copies() {
  for (uint32_t column : {sfa_column, sfb_column})
    for (uint32_t quarter = 0; quarter < 4; ++quarter) {
      Bench bench(kinds[0]);
      bench.memory[0].cell(quarter * 32 + 9, column + 1) ^= 1;
      CHECK_ERROR(bench.run(bench.operands()), column == sfa_column ? "of A for row 41" : "of B for row 41");
      bench.memory[0].cell(quarter * 32 + 9, column + 1) ^= 1 | 1 << 8;  // a byte that this instruction does not read
      CHECK_EQ(bench.run(bench.operands()), "");
    }
}

// K = 96: three scale factors, rows of 48 bytes, the second K block across two buffers.
void check_k96() {
  Case c = kinds[1];
  c.target = Target::sm_103a;
  Bench bench(c);
  Memory& m = bench.memory[0];
  const uint32_t buffers[2] = {1024, 32768};
  for (uint32_t i = 0; i < 65536; ++i) m.smem[i] = 0x22;  // every element is 1
  for (uint32_t row = 0; row < 128; ++row)                // but elements 64 .. 95 of the rows, from byte 32 on: 2
    for (uint32_t byte = 32; byte < 48; ++byte)
      m.smem[buffers[1] + cute_swizzle(3, 4, 3, row * 128 + byte - 32)] = 0x44;
  const uint64_t descriptor = uint64_t{buffers[0] + 96} >> 4 | uint64_t{buffers[1]} >> 4 << 16 |
                              uint64_t{1024} >> 4 << 32 | uint64_t{1} << 46 | uint64_t{1} << 52 | uint64_t{2} << 61;
  for (uint32_t lane = 0; lane < 128; ++lane)
    for (uint32_t i = 0; i < 4; ++i) {
      m.cell(lane, sfa_column + i) = 127 | 128 << 8 | 129 << 16 | 0xffu << 24;  // 1, 2, 4
      m.cell(lane, sfb_column + i) = 127 | 127 << 8 | 128 << 16 | 0xffu << 24;  // 1, 1, 2
    }
  UmmaOperands op = bench.operands();
  op.accumulate = false;
  op.instruction_descriptor |= 1u << 31;
  op.a = op.b_descriptor = descriptor;
  op.scale_vector = 2;  // .block32
  CHECK_EQ(bench.run(op), "");
  CHECK_EQ(bench.actual(3, 5), 32.0 + 32 * 2 + 32 * 4 * 8);
  op.target = Target::sm_100a;
  CHECK_ERROR(bench.run(op), "K = 96 needs sm_103a");
}

// The factors of K = 96 may go on in the next group of columns. All elements are 1; factor i of the tile (row r of A)
// is 2^((i + r) % 4), of B 2^(i % 3).
void check_k96_factors(const Case& c, uint32_t n, uint32_t id) {
  const uint32_t factors = 96 / c.block, step_a = 4, step_b = n > 128 ? 8 : 4;
  Case with_n = c;
  with_n.n = n;
  with_n.target = Target::sm_103a;
  Bench bench(with_n);
  Memory& m = bench.memory[0];
  std::fill(m.smem.begin(), m.smem.end(), 0x22);
  for (uint32_t row = 0; row < std::max(n, 128u); ++row)
    for (uint32_t i = 0; i < 12; ++i)
      for (uint32_t quarter = 0; quarter < 4; ++quarter) {
        const uint32_t lane = quarter * 32 + row % 32, shift = i % 4 * 8;
        const auto put = [&](uint32_t column, uint32_t code) {
          uint32_t& cell = m.cell(lane, column);
          cell = (cell & ~(0xffu << shift)) | code << shift;
        };
        if (row < 128) put(sfa_column + i / 4 * step_a + row / 32, 127 + (i + row) % 4);
        if (row < n) put(sfb_column + i / 4 * step_b + row / 32, 127 + i % 3);
      }
  UmmaOperands op = bench.operands();
  op.accumulate = false;
  op.instruction_descriptor |= 1u << 31 | id << 4 | id << 29;
  CHECK_EQ(bench.run(op), "", "id", id);
  for (uint32_t row = 0; row < 128; ++row) {
    double want = 0;
    for (uint32_t i = id; i < id + factors; ++i)
      want += c.block * std::ldexp(1.0, static_cast<int>((i + row) % 4 + i % 3));
    CHECK_EQ(bench.actual(row, 7), want, "row", row, "id", id, "block", c.block);
    CHECK_EQ(bench.actual(row, n - 1), want, "row", row, "id", id, "block", c.block);
  }
}

void check_k96_scale_ids() {
  for (uint32_t n : {64u, 128u, 256u}) {
    for (uint32_t id : {0u, 1u, 2u, 3u}) check_k96_factors(of(MmaKind::mxf4, 32, NumberFormat::ue8m0), n, id);
    for (uint32_t id : {0u, 2u}) check_k96_factors(of(MmaKind::mxf4nvf4, 16, NumberFormat::ue8m0), n, id);
  }
}

}  // namespace

int main() {
  check_shapes();
  check_scale_ids();
  check_mixed_formats();
  check_extreme_scales();
  check_missing_copies();
  check_k96();
  check_k96_scale_ids();
  return check::result();
}
