// SPDX-License-Identifier: Apache-2.0
// Warp-level matrix instructions: ldmatrix, stmatrix, movmatrix, mma.sync.
// Source: PTX ISA, "Warp Level Matrix Instructions". Fragments and arithmetic: tensor/warp_matrix.h.
// Limits: ldmatrix and stmatrix of m8n8 .b16; mma.sync m16n8 of f16, bf16, tf32, e4m3, e5m2, s8, u8.
#include <cstring>

#include "../counters/count.h"
#include "../tensor/warp_matrix.h"
#include "lanes.h"
#include "memory_access.h"

namespace opdeck::emu {
namespace {

struct MatrixDetail {
  AddressOperand address;
  MemorySpace space = MemorySpace::shared_cta;
  Transpose transpose = Transpose::no;
  std::vector<uint32_t> rows;
};

uint64_t row_address(Warp& warp, const MatrixDetail& detail, uint32_t lane) {
  const uint64_t base = detail.address.bits == 32 ? warp.row<uint32_t>(detail.address.row)[lane]
                                                  : warp.row<uint64_t>(detail.address.row)[lane];
  return base + static_cast<uint64_t>(detail.address.offset);
}

// Eight rows of 16 bytes a matrix: they conflict as eight lanes do that access 16 bytes each.
void count_rows(Warp& warp, const MatrixDetail& detail, Access access) {
  OpTally* const tally = tally_of(warp);
  if (tally == nullptr) return;
  const uint32_t num_rows = static_cast<uint32_t>(detail.rows.size()) * 8;
  LaneAddresses addresses{};
  for (uint32_t i = 0; i < num_rows; ++i) addresses[i] = row_address(warp, detail, matrix_row_lane(i / 8, i % 8));
  count_lanes(warp, *tally, {detail.space, 16, access, kAllLanes >> (kWarpLanes - num_rows)}, addresses);
}

uint8_t* row_pointer(Warp& warp, const MatrixDetail& detail, uint32_t lane, Access access) {
  const uint64_t address = row_address(warp, detail, lane);
  check_alignment(address, 16);
  return memory_pointer(warp, lane, {detail.space, address, 16, access});
}

Flow load_matrices(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const auto& detail = *static_cast<const MatrixDetail*>(op.detail);
  count_rows(warp, detail, Access::read);
  std::vector<uint16_t> elems(detail.rows.size() * 64);
  auto* const rows = reinterpret_cast<uint16_t (*)[8]>(elems.data());
  for (uint32_t m = 0; m < detail.rows.size(); ++m)
    for (uint32_t r = 0; r < 8; ++r)
      std::memcpy(rows[m * 8 + r], row_pointer(warp, detail, matrix_row_lane(m, r), Access::read), 16);
  for (uint32_t m = 0; m < detail.rows.size(); ++m)
    load_matrix(rows + m * 8, detail.transpose, warp.row<uint32_t>(detail.rows[m]));
  return Flow::next;
}

Flow store_matrices(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const auto& detail = *static_cast<const MatrixDetail*>(op.detail);
  count_rows(warp, detail, Access::write);
  for (uint32_t m = 0; m < detail.rows.size(); ++m) {
    uint16_t rows[8][8];
    store_matrix(warp.row<uint32_t>(detail.rows[m]), detail.transpose, rows);
    for (uint32_t r = 0; r < 8; ++r)
      std::memcpy(row_pointer(warp, detail, matrix_row_lane(m, r), Access::write), rows[r], 16);
  }
  return Flow::next;
}

// Modifiers of ldmatrix and stmatrix.
size_t take_matrix_modifiers(Decoding& d, MatrixDetail& detail) {
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
  d.take_one_of({"m8n8"}, "shape");
  const size_t num_matrices = size_t{1} << d.take_one_of({"x1", "x2", "x4"}, "number of matrices");
  if (d.take("trans")) detail.transpose = Transpose::yes;
  detail.space = take_space(d);
  if (detail.space != MemorySpace::shared_cta && detail.space != MemorySpace::generic)
    d.unsupported("this state space");
  d.take_type_of({Type::b16});
  d.require_operands(2);
  return num_matrices;
}
void decode_ldmatrix(Decoding& d) {
  MatrixDetail detail;
  const size_t num_matrices = take_matrix_modifiers(d, detail);
  detail.rows = d.destination_list(d.operand(0), 32);
  detail.address = d.address(1);
  if (detail.rows.size() != num_matrices) d.malformed("the vector operand has a wrong length");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &load_matrices;
}
void decode_stmatrix(Decoding& d) {
  MatrixDetail detail;
  const size_t num_matrices = take_matrix_modifiers(d, detail);
  detail.address = d.address(size_t{0});
  detail.rows = d.source_list(d.operand(1), 32);
  if (detail.rows.size() != num_matrices) d.malformed("the vector operand has a wrong length");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &store_matrices;
}

Flow transpose_matrix(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  uint16_t rows[8][8];
  store_matrix(warp.row<uint32_t>(op.a), Transpose::no, rows);
  load_matrix(rows, Transpose::yes, warp.row<uint32_t>(op.dst));
  return Flow::next;
}
void decode_movmatrix(Decoding& d) {
  for (const char* modifier : {"sync", "aligned", "m8n8", "trans"}) d.take_one_of({modifier}, "modifier");
  d.take_type_of({Type::b16});
  d.require_operands(2);
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, 32);
  d.op.execute = &transpose_matrix;
}

struct MmaDetail {
  WarpMma mma;
  std::vector<uint32_t> d_rows, a_rows, b_rows, c_rows;
};

Flow multiply(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const auto& detail = *static_cast<const MmaDetail*>(op.detail);
  const auto pointers = [&](const std::vector<uint32_t>& rows) {
    std::vector<const uint32_t*> table;
    for (const uint32_t row : rows) table.push_back(warp.row<uint32_t>(row));
    return table;
  };
  // D may share registers with A and B: results go through a copy.
  std::vector<uint32_t> results(detail.d_rows.size() * kWarpLanes);
  std::vector<uint32_t*> d_table;
  for (size_t i = 0; i < detail.d_rows.size(); ++i) d_table.push_back(results.data() + i * kWarpLanes);
  execute_warp_mma(detail.mma, pointers(detail.a_rows).data(), pointers(detail.b_rows).data(),
                   pointers(detail.c_rows).data(), d_table.data());
  for (size_t i = 0; i < detail.d_rows.size(); ++i)
    std::memcpy(warp.row<uint32_t>(detail.d_rows[i]), d_table[i], kWarpLanes * sizeof(uint32_t));
  const uint64_t num_macs = uint64_t{16} * 8 * detail.mma.k_elems;
  warp.launch.counters.mma_macs += num_macs;
  if (OpTally* tally = tally_of(warp)) tally->macs += num_macs;
  return Flow::next;
}

NumberFormat take_operand_format(Decoding& d) {
  constexpr NumberFormat kFormats[] = {NumberFormat::f16,  NumberFormat::bf16, NumberFormat::tf32, NumberFormat::e4m3,
                                       NumberFormat::e5m2, NumberFormat::s8,   NumberFormat::u8};
  return kFormats[d.take_one_of({"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"}, "operand type")];
}

void decode_mma(Decoding& d) {
  MmaDetail detail;
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
  constexpr uint32_t kK[] = {4, 8, 16, 32};
  detail.mma.k_elems = kK[d.take_one_of({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"}, "shape")];
  d.take_one_of({"row"}, "layout of A");
  d.take_one_of({"col"}, "layout of B");
  d.take("kind::f8f6f4");
  detail.mma.saturate = d.take("satfinite");
  constexpr Accumulator kAccumulators[] = {Accumulator::f16, Accumulator::f32, Accumulator::s32};
  const size_t accumulator = d.take_one_of({"f16", "f32", "s32"}, "type of D");
  detail.mma.accumulator = kAccumulators[accumulator];
  detail.mma.a_format = take_operand_format(d);
  detail.mma.b_format = take_operand_format(d);
  if (d.take_one_of({"f16", "f32", "s32"}, "type of C") != accumulator) d.unsupported("different types of C and D");
  const Error error = check_warp_mma(detail.mma);
  if (!error.empty()) d.unsupported(error);
  d.require_operands(4);
  detail.d_rows = d.destination_list(d.operand(0), 32);
  detail.a_rows = d.source_list(d.operand(1), 32);
  detail.b_rows = d.source_list(d.operand(2), 32);
  detail.c_rows = d.source_list(d.operand(3), 32);
  if (detail.d_rows.size() != warp_mma_num_d_registers(detail.mma) || detail.c_rows.size() != detail.d_rows.size() ||
      detail.a_rows.size() != warp_mma_num_a_registers(detail.mma) ||
      detail.b_rows.size() != warp_mma_num_b_registers(detail.mma))
    d.malformed("a vector operand has a wrong length");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &multiply;
}

}  // namespace

void add_matrix_instructions(InstructionTable& table) {
  table["ldmatrix"] = {decode_ldmatrix, manual::kWarpMatrix};
  table["stmatrix"] = {decode_stmatrix, manual::kWarpMatrix};
  table["movmatrix"] = {decode_movmatrix, manual::kWarpMatrix};
  table["mma"] = {decode_mma, manual::kWarpMatrix};
}

}  // namespace opdeck::emu
