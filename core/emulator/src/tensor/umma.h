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
  uint32_t scale_vector = 0;        // .scale_vec::NX or .block16/.block32: scale factors a row an instruction of K 64 (K 32
                                    // for mxf8f6f4); 0: the kind's default
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

struct UmmaPlan {
  UmmaOperands operands;
  InstructionDescriptor shape;
  SmemDescriptor a_smem, b_smem;  // a_smem only where A is in shared memory
  uint32_t a_rows_per_cta = 0, b_rows_per_cta = 0;
  uint32_t scale_block_elems = 0;  // K elements under one scale factor; 0 for the unscaled kinds
  uint32_t d_columns = 0;          // TMEM columns of D, from d_address on
  uint32_t a_columns = 0;          // TMEM columns of A, where A is in TMEM
  uint32_t sfa_columns = 0, sfb_columns = 0;

  uint64_t num_macs() const { return uint64_t{1} * shape.m_rows * shape.n_cols * shape.k_elems; }
};

// Decodes and checks everything: kind and shape against the target, descriptors against smem_bytes (of each CTA),
// TMEM ranges against 512 columns.
Expected<UmmaPlan> plan_umma(const UmmaOperands& operands, uint32_t smem_bytes);

// Runs a plan on num_ctas CTAs. The only errors left are in data: scale factors whose four copies (one per 32 lanes)
// differ.
Error execute_umma(const UmmaPlan& plan, const UmmaCta* ctas);

// The TMEM lane of row `row` of D inside its CTA, and the CTA; column_half is 1 for the columns of the upper half of N
// that M = 128 of a pair keeps in lanes 64 .. 127.
struct DRow {
  uint32_t cta_idx, lane;
};
DRow d_row(const UmmaPlan& plan, uint32_t row, uint32_t column);

// visit(smem_offset) for each 16 aligned bytes that A (B) occupies in every CTA of the group: for hazard checks.
template <class Visitor>
void for_each_operand_piece(const SmemDescriptor& descriptor, Major major, uint32_t num_rows, uint32_t k_bytes,
                            uint32_t elem_bytes, Visitor&& visit) {
  const uint32_t num_lines = major == Major::k ? num_rows : k_bytes / elem_bytes;
  const uint32_t line_bytes = major == Major::k ? k_bytes : num_rows * elem_bytes;
  for (uint32_t line = 0; line < num_lines; ++line)
    for (uint32_t byte = 0; byte < line_bytes; byte += 16) visit(operand_address(descriptor, major, line, byte) & ~15u);
}

}  // namespace opdeck::emu
