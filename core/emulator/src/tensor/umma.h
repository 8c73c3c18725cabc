// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma: one instruction, from its operands to tensor memory.
// Called by src/isa: plan_umma when the instruction issues (so an error is reported at its line), execute_umma when the
// schedule completes it (so operands are read late). Source: PTX ISA, "tcgen05.mma", "Instruction descriptor",
// "Data path layout organization", "Scale factor layouts".
// Limits: dense only; .ws and .sp and .ashift and zero-column masks are refused in src/isa by name.
// The order of accumulation is given in mma_gemm.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "numbers.h"
#include "outcome.h"
#include "smem_desc.h"

namespace opdeck::emu {

enum class MmaKind : uint8_t { f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4, mxf4nvf4 };
const char* mma_kind_name(MmaKind kind);
constexpr bool is_block_scaled(MmaKind kind) { return kind >= MmaKind::mxf8f6f4; }

enum class Accumulator : uint8_t { f16, f32, s32 };

// The 32-bit instruction descriptor, decoded.
struct InstructionDescriptor {
  NumberFormat a_format = NumberFormat::f16, b_format = NumberFormat::f16;
  Accumulator accumulator = Accumulator::f32;
  bool negate_a = false, negate_b = false;
  bool saturate = false;  // i8 only
  Major a_major = Major::k, b_major = Major::k;
  uint32_t m_rows = 0, n_cols = 0, k_elems = 0;
  uint32_t sfa_id = 0, sfb_id = 0;                    // byte in each 32-bit scale-factor cell
  NumberFormat scale_format = NumberFormat::ue8m0;    // or ue4m3
};
Expected<InstructionDescriptor> decode_instruction_descriptor(MmaKind kind, uint32_t bits, Target target);

// The operands of one tcgen05.mma, as the issuing thread gives them.
struct UmmaOperands {
  MmaKind kind = MmaKind::f16;
  Target target = Target::sm_100a;
  uint32_t num_ctas = 1;            // .cta_group
  uint32_t scale_vector = 0;        // N of .scale_vec::NX, the scale factors a row; .block32 is 1 (mxf8f6f4) or 2
                                    // (mxf4, mxf4nvf4), .block16 is 4; 0: not written, the kind's default
  uint32_t instruction_descriptor = 0;
  uint32_t d_address = 0;           // TMEM, the same in both CTAs
  bool a_in_tmem = false;
  uint64_t a = 0;                   // a shared-memory descriptor, or a TMEM address
  uint64_t b_descriptor = 0;
  uint32_t sfa_address = 0, sfb_address = 0;  // TMEM; block-scaled kinds only
  bool accumulate = false;          // enable-input-d
  uint32_t scale_input_d_log2 = 0;  // D is divided by 2^this before the addition (f16, tf32)
  // disable-output-lane: a set bit keeps that TMEM lane of D as it is. [4 * cta + lane / 32]
  std::array<uint32_t, 8> disabled_lanes{};
};

// What one CTA gives: of cta_group::2, [0] is the even CTA of the pair.
struct UmmaCta {
  SharedView smem;
  TmemView tmem;
};

// Rows of D that are contiguous in TMEM lanes and share one range of N: what the data path does as a unit.
struct UmmaTile {
  uint32_t cta_idx;
  uint32_t first_row;   // of D, A and SFA, in this CTA
  uint32_t num_rows;    // a multiple of 16
  uint32_t first_lane;  // in TMEM, D's base lane included
  uint32_t first_col;   // of N; TMEM column d_address + (n - first_col)
};

struct UmmaPlan {
  UmmaOperands operands;
  InstructionDescriptor shape;
  SmemDescriptor a_smem, b_smem;      // a_smem only where A is in shared memory
  uint32_t a_rows_per_cta = 0;        // rows of A (and of D) that each CTA has
  uint32_t b_rows_per_cta = 0;        // columns of N that each CTA's shared memory has
  uint32_t k_bytes = 0;               // of one row of A or B: 32, or 48 for K = 96
  uint32_t scale_block_elems = 0;     // K elements under one scale factor; 0 for the unscaled kinds
  std::vector<UmmaTile> tiles;        // all of D
  uint32_t tile_cols = 0;             // N, or N / 2 where the halves of N go to different lanes
  // TMEM columns touched, from the operand's address on; 0 where the operand is not in TMEM.
  uint32_t d_columns = 0, a_columns = 0, sfa_columns = 0, sfb_columns = 0;

  uint32_t factors_per_row() const { return shape.k_elems / scale_block_elems; }
  // Scale factors of row i (of M or N), four a 32-bit cell: in column i / 32 of a group of columns; the next four along
  // K are in the next group. Groups hold whole 128 rows, as CuTe lays them out.
  static constexpr uint32_t scale_group_columns(uint32_t num_rows) { return (num_rows + 127) / 128 * 4; }

  uint64_t num_macs() const { return uint64_t{1} * shape.m_rows * shape.n_cols * shape.k_elems; }
};

// Decodes and checks everything: kind and shape against the target, descriptors against smem_bytes (of each CTA),
// TMEM ranges against 512 columns.
Expected<UmmaPlan> plan_umma(const UmmaOperands& operands, uint32_t smem_bytes);

// Runs a plan on num_ctas CTAs. The only errors left are in data: scale factors whose copies (one for each 32 lanes)
// differ.
Error execute_umma(const UmmaPlan& plan, const UmmaCta* ctas);

// visit(smem_offset) for each 16 aligned bytes of shared memory that A (B) occupies, the same in every CTA of the
// group: for hazard checks. A only where it is in shared memory.
template <class Visitor>
void for_each_a_piece(const UmmaPlan& plan, Visitor&& visit) {
  const Major major = plan.shape.a_major;
  for_each_operand_piece(plan.a_smem, major,
                         operand_extent(major, plan.a_rows_per_cta, plan.k_bytes, plan.shape.k_elems), visit);
}
template <class Visitor>
void for_each_b_piece(const UmmaPlan& plan, Visitor&& visit) {
  const Major major = plan.shape.b_major;
  for_each_operand_piece(plan.b_smem, major,
                         operand_extent(major, plan.b_rows_per_cta, plan.k_bytes, plan.shape.k_elems), visit);
}

}  // namespace opdeck::emu
