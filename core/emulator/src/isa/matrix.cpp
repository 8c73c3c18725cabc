// SPDX-License-Identifier: Apache-2.0
// Warp-level matrix instructions: ldmatrix, stmatrix, movmatrix, mma.sync.
// Source: PTX ISA, "Warp Level Matrix Instructions". Fragments and arithmetic: tensor/warp_matrix.h.
// Limits: mma.sync m16n8 of f16, bf16, tf32, e4m3, e5m2, s8, u8.
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
  MatrixShape shape = MatrixShape::m8n8;
  MatrixRow row = MatrixRow::b8x16;
  Transpose transpose = Transpose::no;  // of m8n8; other shapes have one form each
  std::vector<uint32_t> registers;

  uint32_t num_matrices() const { return static_cast<uint32_t>(registers.size()) / matrix_num_registers(shape); }
  uint32_t num_rows() const { return num_matrices() * matrix_num_rows(shape); }
};
const MatrixDetail& matrices_of(const Op& op) { return *static_cast<const MatrixDetail*>(op.detail); }

uint64_t row_address(Warp& warp, const MatrixDetail& detail, uint32_t lane) {
  const uint64_t base = detail.address.bits == 32 ? warp.row<uint32_t>(detail.address.row)[lane]
                                                  : warp.row<uint64_t>(detail.address.row)[lane];
  return base + static_cast<uint64_t>(detail.address.offset);
}

// Eight rows of 16 bytes: they conflict as eight lanes do that access 16 bytes each.
void count_rows(Warp& warp, const MatrixDetail& detail, Access access) {
  OpTally* const tally = tally_of(warp);
  if (tally == nullptr) return;
  const uint32_t num_rows = detail.num_rows();
  LaneAddresses addresses{};
  for (uint32_t lane = 0; lane < num_rows; ++lane) addresses[lane] = row_address(warp, detail, lane);
  count_lanes(warp, *tally, {detail.space, 16, access, kAllLanes >> (kWarpLanes - num_rows)}, addresses);
}

uint8_t* row_pointer(Warp& warp, const MatrixDetail& detail, uint32_t lane, Access access) {
  const uint64_t address = row_address(warp, detail, lane);
  check_alignment(address, 16);
  return memory_pointer(warp, lane, {detail.space, address, matrix_row_bytes(detail.row), access});
}

// The rows of 16 bytes of a matrix.
union MatrixRows {
  uint16_t halves[8][8];
  uint8_t bytes[16][16];
};

Flow load_matrices(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const MatrixDetail& detail = matrices_of(op);
  count_rows(warp, detail, Access::read);
  std::vector<MatrixRows> matrices(detail.num_matrices());  // all are read before a register changes
  for (uint32_t m = 0; m < matrices.size(); ++m)
    for (uint32_t r = 0; r < matrix_num_rows(detail.shape); ++r) {
      const uint8_t* const row = row_pointer(warp, detail, matrix_row_lane(detail.shape, m, r), Access::read);
      if (detail.row == MatrixRow::b8x16)
        std::memcpy(matrices[m].bytes[r], row, 16);
      else
        expand_matrix_row(detail.row, row, matrices[m].bytes[r]);
    }
  for (uint32_t m = 0; m < matrices.size(); ++m) {
    const auto registers = [&](uint32_t i) {
      return warp.row<uint32_t>(detail.registers[m * matrix_num_registers(detail.shape) + i]);
    };
    switch (detail.shape) {
      case MatrixShape::m8n8: load_matrix(matrices[m].halves, detail.transpose, registers(0)); break;
      case MatrixShape::m8n16: load_matrix_m8n16(matrices[m].bytes, registers(0)); break;
      default: load_matrix_m16n16(matrices[m].bytes, registers(0), registers(1)); break;
    }
  }
  return Flow::next;
}

Flow store_matrices(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const MatrixDetail& detail = matrices_of(op);
  count_rows(warp, detail, Access::write);
  for (uint32_t m = 0; m < detail.num_matrices(); ++m) {
    MatrixRows rows;
    const uint32_t* const registers = warp.row<uint32_t>(detail.registers[m]);
    if (detail.shape == MatrixShape::m8n8)
      store_matrix(registers, detail.transpose, rows.halves);
    else
      store_matrix_m16n8(registers, rows.bytes);
    for (uint32_t r = 0; r < 8; ++r)
      std::memcpy(row_pointer(warp, detail, matrix_row_lane(detail.shape, m, r), Access::write), rows.bytes[r], 16);
  }
  return Flow::next;
}

void take_alignment(Decoding& d) {
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
}
void take_matrix_space(Decoding& d, MatrixDetail& detail) {
  detail.space = take_space(d);
  if (detail.space != MemorySpace::shared_cta && detail.space != MemorySpace::generic)
    d.unsupported("this state space");
}
void set_matrices(Decoding& d, MatrixDetail detail, size_t num_matrices, Execute execute) {
  d.require_operands(2);
  if (detail.registers.size() != num_matrices * matrix_num_registers(detail.shape))
    d.malformed("the vector operand has a wrong length");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = execute;
}

void decode_ldmatrix(Decoding& d) {
  MatrixDetail detail;
  take_alignment(d);
  constexpr MatrixShape kShapes[] = {MatrixShape::m8n8, MatrixShape::m8n16, MatrixShape::m16n16};
  detail.shape = kShapes[d.take_one_of({"m8n8", "m8n16", "m16n16"}, "shape")];
  const bool is_large = detail.shape == MatrixShape::m16n16;
  const size_t num_matrices = size_t{1} << (is_large ? d.take_one_of({"x1", "x2"}, "number of matrices")
                                                     : d.take_one_of({"x1", "x2", "x4"}, "number of matrices"));
  if (is_large) d.take_one_of({"trans"}, "modifier");
  if (detail.shape == MatrixShape::m8n8 && d.take("trans")) detail.transpose = Transpose::yes;
  take_matrix_space(d, detail);
  if (detail.shape == MatrixShape::m8n8) {
    d.take_type_of({Type::b16});
  } else {
    d.require_target({Target::sm_100a, Target::sm_103a});
    if (!is_large || !d.take("b8")) {
      d.take_one_of({"b8x16"}, "type");
      constexpr MatrixRow kRows[] = {MatrixRow::b6x16_p32, MatrixRow::b4x16_p64};
      detail.row = kRows[d.take_one_of({"b6x16_p32", "b4x16_p64"}, "type in memory")];
    }
  }
  detail.registers = d.destination_list(d.operand(0), 32);
  detail.address = d.address(1);
  set_matrices(d, std::move(detail), num_matrices, &load_matrices);
}
void decode_stmatrix(Decoding& d) {
  MatrixDetail detail;
  take_alignment(d);
  constexpr MatrixShape kShapes[] = {MatrixShape::m8n8, MatrixShape::m16n8};
  detail.shape = kShapes[d.take_one_of({"m8n8", "m16n8"}, "shape")];
  const bool is_narrow = detail.shape == MatrixShape::m16n8;
  const size_t num_matrices = size_t{1} << d.take_one_of({"x1", "x2", "x4"}, "number of matrices");
  if (is_narrow)
    d.take_one_of({"trans"}, "modifier");
  else if (d.take("trans"))
    detail.transpose = Transpose::yes;
  take_matrix_space(d, detail);
  d.take_type_of({is_narrow ? Type::b8 : Type::b16});
  if (is_narrow) d.require_target({Target::sm_100a, Target::sm_103a});
  detail.address = d.address(size_t{0});
  detail.registers = d.source_list(d.operand(1), 32);
  set_matrices(d, std::move(detail), num_matrices, &store_matrices);
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
