// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma: what must be refused, and with which words; and what a plan says that it touches.
#include <set>

#include "umma.h"
#include "umma_case.h"

using namespace umma_test;

namespace {

constexpr uint32_t smem_bytes = 200 * 1024;

Case f16_case() { return {}; }
Case scaled_case(MmaKind kind, uint32_t block) {
  Case c;
  c.kind = kind;
  c.a_format = c.b_format = kind == MmaKind::mxf8f6f4 ? NumberFormat::e4m3 : NumberFormat::e2m1;
  c.block = block;
  return c;
}

template <class Change>
Error error_of(const Case& c, Change change) {
  UmmaOperands op = Bench(c).operands();
  change(op);
  return plan_umma(op, smem_bytes).error;
}
Error error_of(const Case& c) {
  return error_of(c, [](UmmaOperands&) {});
}

void check_targets() {
  Case c = f16_case();
  c.target = Target::sm_90a;
  CHECK_ERROR(error_of(c), "sm_90a has no tcgen05");
  c.kind = MmaKind::i8;
  c.a_format = c.b_format = NumberFormat::s8;
  c.accumulator = Accumulator::s32;
  c.target = Target::sm_100a;
  CHECK_EQ(error_of(c), "");
  c.target = Target::sm_103a;
  CHECK_ERROR(error_of(c), "sm_103a has no integer kind");
}

void check_descriptor_fields() {
  using Op = UmmaOperands;
  const Case c = f16_case();
  const auto with_bits = [&c](uint32_t bits) {
    return error_of(c, [bits](Op& op) { op.instruction_descriptor ^= bits; });
  };
  CHECK_ERROR(with_bits(1 << 2), "sparsity");
  CHECK_ERROR(with_bits(1 << 3), "saturate");
  CHECK_ERROR(with_bits(1 << 6), "bit 6");
  CHECK_ERROR(with_bits(1 << 5), "type of D is 3");
  CHECK_ERROR(with_bits(2 << 7), "type of A is 2");
  CHECK_ERROR(with_bits(1 << 10), "want that of A");
  CHECK_ERROR(with_bits(1 << 23), "bit 23");
  CHECK_ERROR(with_bits(1 << 29), "bit 29");
  CHECK_ERROR(with_bits(1 << 30), "maximum shift");
  CHECK_ERROR(error_of(c, [](Op& op) { op.instruction_descriptor ^= 1 << 4 | 1 << 7 | 1 << 10; }), "bf16 operands");
  Case i8 = c;
  i8.kind = MmaKind::i8;
  i8.a_format = i8.b_format = NumberFormat::s8;
  i8.accumulator = Accumulator::s32;
  i8.negate_a = true;
  CHECK_ERROR(error_of(i8), "negate");
  Case fp4 = c;
  fp4.kind = MmaKind::f8f6f4;
  fp4.a_format = fp4.b_format = NumberFormat::e2m1;
  CHECK_EQ(error_of(fp4), "");
  CHECK_ERROR(error_of(fp4, [](Op& op) { op.instruction_descriptor ^= 1 << 15; }), "transpose bit is 1");
  CHECK_ERROR(error_of(fp4, [](Op& op) { op.a_in_tmem = true; op.a = a_column; }), "A in TMEM as e2m1");
}

void check_shapes() {
  Case c = f16_case();
  c.n = 24;
  CHECK_EQ(error_of(c), "");
  CHECK_ERROR(error_of(c, [](UmmaOperands& op) { op.instruction_descriptor &= ~(63u << 17); }), "N is 0");
  Case bytes = c;
  bytes.kind = MmaKind::f8f6f4;
  bytes.a_format = bytes.b_format = NumberFormat::e4m3;
  bytes.n = 24;
  CHECK_EQ(error_of(bytes), "");
  CHECK_ERROR(error_of(bytes, [](UmmaOperands& op) { op.instruction_descriptor |= 1 << 16; }), "want a multiple of 16");
  c.n = 24;
  c.m = 64;
  CHECK_EQ(error_of(c), "");
  c.n = 128;
  c.m = 256;
  CHECK_ERROR(error_of(c, [](UmmaOperands& op) { op.num_ctas = 1; }), "M under cta_group::1 is 256");
  c.m = 64;
  CHECK_ERROR(error_of(c, [](UmmaOperands& op) { op.num_ctas = 2; }), "M under cta_group::2 is 64");
  c = scaled_case(MmaKind::mxf8f6f4, 32);
  CHECK_ERROR(error_of(c, [](UmmaOperands& op) { op.instruction_descriptor ^= 4 << 24 | 8 << 24; }), "M under");
}

void check_scale_factors() {
  using Op = UmmaOperands;
  CHECK_ERROR(error_of(f16_case(), [](Op& op) { op.scale_vector = 1; }), "scale_vec is 1");
  const Case mxf8 = scaled_case(MmaKind::mxf8f6f4, 32), mxf4 = scaled_case(MmaKind::mxf4, 32);
  const Case nvf4 = scaled_case(MmaKind::mxf4nvf4, 16);
  CHECK_EQ(error_of(mxf8, [](Op& op) { op.scale_vector = 0; }), "");
  CHECK_EQ(error_of(mxf4, [](Op& op) { op.scale_vector = 0; }), "");
  CHECK_ERROR(error_of(nvf4, [](Op& op) { op.scale_vector = 0; }), "scale_vec is 0");
  CHECK_ERROR(error_of(mxf8, [](Op& op) { op.scale_vector = 2; }), "blocks of 32");
  CHECK_ERROR(error_of(mxf4, [](Op& op) { op.scale_vector = 4; }), "blocks of 32");
  CHECK_ERROR(error_of(mxf4, [](Op& op) { op.instruction_descriptor ^= 1 << 23; }), "scale-factor type");
  CHECK_ERROR(error_of(nvf4, [](Op& op) { op.instruction_descriptor ^= 1 << 23; op.scale_vector = 2; }),
              "blocks of 32");
  CHECK_ERROR(error_of(mxf4, [](Op& op) { op.instruction_descriptor |= 3 << 4; }), "scale-factor id of B is 3");
  CHECK_ERROR(error_of(mxf4, [](Op& op) { op.instruction_descriptor |= 1 << 29; }), "scale-factor id of A is 1");
  CHECK_ERROR(error_of(nvf4, [](Op& op) { op.instruction_descriptor |= 1 << 29; }), "scale-factor id of A is 1");
  CHECK_ERROR(error_of(mxf8, [](Op& op) { op.instruction_descriptor |= 1u << 31; }), "K-size bit is 1");
  CHECK_ERROR(error_of(mxf8, [](Op& op) { op.sfa_address = 510; }), "scale factors of A at TMEM");
  CHECK_ERROR(error_of(mxf8, [](Op& op) { op.sfb_address = 509; }), "scale factors of B at TMEM");
  CHECK_ERROR(error_of(mxf8, [](Op& op) { op.sfb_address |= 32 << 16; }), "want lane 0");
  CHECK_EQ(error_of(mxf8, [](Op& op) { op.sfb_address |= 3u << 30; }), "", "the id may ride in the address");
}

void check_memory_ranges() {
  using Op = UmmaOperands;
  const Case c = f16_case();
  CHECK_ERROR(error_of(c, [](Op& op) { op.d_address = 512 - 127; }), "D at TMEM address");
  CHECK_EQ(error_of(c, [](Op& op) { op.d_address = 512 - 128; }), "");
  CHECK_ERROR(error_of(c, [](Op& op) { op.d_address = 16 << 16; }), "D starts at TMEM lane 16");
  Case half = c;
  half.m = 64;
  CHECK_EQ(error_of(half, [](Op& op) { op.d_address = 16 << 16; }), "");
  CHECK_ERROR(error_of(half, [](Op& op) { op.d_address = 32 << 16; }), "lane 32, want 0 or 16");
  Case ts = c;
  ts.a_in_tmem = true;
  CHECK_ERROR(error_of(ts, [](Op& op) { op.a = 505; }), "A at TMEM address");
  CHECK_ERROR(error_of(ts, [](Op& op) { op.a = 16 << 16; }), "want D's");
  CHECK_ERROR(error_of(ts, [](Op& op) { op.instruction_descriptor |= 1 << 15; }), "where A is in TMEM");
  CHECK_ERROR(error_of(c, [](Op& op) { op.a = (op.a & ~0x3fffull) | 0x3fc0; }), "A: matrix descriptor");
  CHECK_ERROR(error_of(c, [](Op& op) { op.b_descriptor ^= uint64_t{1} << 46; }), "B: tcgen05 shared-memory descriptor");
  CHECK_ERROR(error_of(c, [](Op& op) { op.scale_input_d_log2 = 16; }), "scale-input-d is 16");
}

// The pieces that a plan reports are the ones that the tile's own layout has.
void check_footprint() {
  Case c = f16_case();
  c.a_mn = true;
  c.n = 64;
  const auto plan = plan_umma(Bench(c).operands(), smem_bytes);
  CHECK(plan.ok(), plan.error);
  const OperandTile a{c.a_swizzle, true, 128, 128, 2, 1024}, b{c.b_swizzle, false, 64, 128, 2, 65536};
  std::set<uint32_t> want_a, want_b, got_a, got_b;
  for (uint32_t k = 16; k < 32; ++k) {
    for (uint32_t row = 0; row < 128; ++row) want_a.insert(a.address(row, k) / 16 * 16);
    for (uint32_t row = 0; row < 64; ++row) want_b.insert(b.address(row, k) / 16 * 16);
  }
  for_each_a_piece(plan.value, [&](uint32_t address) { got_a.insert(address); });
  for_each_b_piece(plan.value, [&](uint32_t address) { got_b.insert(address); });
  CHECK(got_a == want_a);
  CHECK(got_b == want_b);
  CHECK_EQ(plan.value.d_columns, 64u);
  CHECK_EQ(plan.value.num_macs(), 128u * 64 * 16);
}

}  // namespace

int main() {
  check_targets();
  check_descriptor_fields();
  check_shapes();
  check_scale_factors();
  check_memory_ranges();
  check_footprint();
  return check::result();
}
