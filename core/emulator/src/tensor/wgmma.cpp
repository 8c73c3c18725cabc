// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async; see wgmma.h.
#include "wgmma.h"

#include <algorithm>
#include <array>

#include "aligned_gemm.h"
#include "message.h"
#include "mma_gemm.h"
#include "operand_panel.h"
#include "scratch.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t num_rows = 64, num_warps = 4, warp_lanes = 32, row_k_bytes = 32;

bool is_integer(NumberFormat format) { return format == NumberFormat::s8 || format == NumberFormat::u8; }
bool is_fp8(NumberFormat format) { return format == NumberFormat::e4m3 || format == NumberFormat::e5m2; }

Error check_formats(const WgmmaOperands& op) {
  const NumberFormat a = op.a_format, b = op.b_format;
  const bool same_half = a == b && (a == NumberFormat::f16 || a == NumberFormat::bf16 || a == NumberFormat::tf32);
  const bool bytes = (is_fp8(a) && is_fp8(b)) || (is_integer(a) && is_integer(b));
  if (!same_half && !bytes)
    return message("wgmma: operand types ", format_name(a), " and ", format_name(b),
                   ", want f16, bf16 or tf32 twice, or any two of e4m3, e5m2, or any two of s8, u8");
  if (is_integer(a) != (op.accumulator == Accumulator::s32))
    return message("wgmma: D of s32 goes with s8 and u8 operands, got ", format_name(a));
  if (op.accumulator == Accumulator::f16 && (a == NumberFormat::bf16 || a == NumberFormat::tf32))
    return message("wgmma: D of f16 goes with f16, e4m3 and e5m2 operands, got ", format_name(a));
  return {};
}

Error check_modifiers(const WgmmaOperands& op) {
  const bool can_transpose = container_bytes(op.a_format) == 2;
  if (!can_transpose && (op.a_major == Major::mn || op.b_major == Major::mn))
    return message("wgmma: a transpose of ", format_name(op.a_format), " operands, want f16 or bf16");
  if (op.a_in_registers && op.a_major == Major::mn) return "wgmma: a transpose of A in registers, want K-major";
  if (is_integer(op.a_format) && (op.negate_a || op.negate_b)) return "wgmma: imm-scale -1 of integer operands, want 1";
  if (op.saturate && op.accumulator != Accumulator::s32) return "wgmma: .satfinite without s32";
  return {};
}

Error check_n(const WgmmaOperands& op) {
  const uint32_t step = is_integer(op.a_format) && op.n_cols > 32 ? 16 : 8;
  if (op.n_cols >= 8 && op.n_cols <= 256 && op.n_cols % step == 0) return {};
  return message("wgmma: N is ", op.n_cols, ", want a multiple of ", step, " up to 256");
}

SmemOperand a_operand(const WgmmaPlan& p) {
  return {p.a_smem, p.operands.a_major, p.operands.a_format, p.k_elems, row_k_bytes, p.operands.negate_a};
}
SmemOperand b_operand(const WgmmaPlan& p) {
  return {p.b_smem, p.operands.b_major, p.operands.b_format, p.k_elems, row_k_bytes, p.operands.negate_b};
}

// panel[k * num_rows + row] from the fragments.
void load_register_a(const WgmmaPlan& plan, const uint32_t* const* registers, float* panel) {
  const NumberFormat format = plan.operands.a_format;
  const uint32_t elem_bytes = container_bytes(format);
  const float sign = plan.operands.negate_a ? -1.0f : 1.0f;
  for (uint32_t warp = 0; warp < num_warps; ++warp)
    for (uint32_t reg = 0; reg < plan.num_a_registers; ++reg)
      for (uint32_t lane = 0; lane < warp_lanes; ++lane) {
        const MatrixCoord at = wgmma_a_coord(warp * warp_lanes + lane, reg, elem_bytes);
        const uint32_t word = registers[warp * plan.num_a_registers + reg][lane];
        for (uint32_t e = 0; e < 4 / elem_bytes; ++e)
          panel[(at.col + e) * num_rows + at.row] = sign * decode(word >> (e * elem_bytes * 8), format);
      }
}

// Calls move(word, sums index) for each register word of D; the index is col * num_rows + row. Under f16 a word holds
// the elements at the index and at index + num_rows.
template <class Move>
void for_each_d_word(const WgmmaPlan& plan, uint32_t* const* registers, Move move) {
  const bool halves = plan.operands.accumulator == Accumulator::f16;
  const auto index_of = [halves](uint32_t thread, uint32_t reg) {
    const MatrixCoord at = halves ? wgmma_d_f16_coord(thread, reg) : wgmma_d_coord(thread, reg);
    return at.col * num_rows + at.row;
  };
  // An index is the sum of one of the thread and one of the register.
  for (uint32_t warp = 0; warp < num_warps; ++warp) {
    std::array<uint32_t, warp_lanes> of_lane;
    for (uint32_t lane = 0; lane < warp_lanes; ++lane) of_lane[lane] = index_of(warp * warp_lanes + lane, 0);
    for (uint32_t reg = 0; reg < plan.num_d_registers; ++reg) {
      uint32_t* words = registers[warp * plan.num_d_registers + reg];
      const uint32_t of_register = index_of(0, reg);
      for (uint32_t lane = 0; lane < warp_lanes; ++lane) move(words[lane], of_lane[lane] + of_register);
    }
  }
}

void run_s32(const WgmmaPlan& plan, const GemmOperands& panels, uint32_t* const* d_registers) {
  const Scratch<int32_t> sums = make_scratch<int32_t>(size_t{num_rows} * plan.operands.n_cols);
  gemm_integers(panels, num_rows, plan.operands.n_cols, sums.get());
  const Overflow overflow = plan.operands.saturate ? Overflow::saturate : Overflow::wrap;
  for_each_d_word(plan, d_registers, [&](uint32_t& word, uint32_t i) {
    word = add_s32(plan.operands.scale_d ? word : 0, sums[i], overflow);
  });
}

// D = A B + D as the tensor core adds; sums as in for_each_d_word.
void accumulate(const WgmmaPlan& plan, const GemmOperands& panels, float* sums) {
  const WgmmaOperands& op = plan.operands;
  gemm_accumulate_aligned(panels, num_rows, op.n_cols, sums, num_rows,
                          aligned_sum(op.a_format, op.b_format, op.accumulator));
}

void run_f32(const WgmmaPlan& plan, const GemmOperands& panels, uint32_t* const* d_registers, float* sums) {
  if (plan.operands.scale_d)
    for_each_d_word(plan, d_registers,
                    [sums](uint32_t& word, uint32_t i) { sums[i] = __builtin_bit_cast(float, word); });
  accumulate(plan, panels, sums);
  for_each_d_word(plan, d_registers,
                  [sums](uint32_t& word, uint32_t i) { word = __builtin_bit_cast(uint32_t, sums[i]); });
}

void run_f16(const WgmmaPlan& plan, const GemmOperands& panels, uint32_t* const* d_registers, float* sums) {
  if (plan.operands.scale_d)
    for_each_d_word(plan, d_registers, [sums](uint32_t& word, uint32_t i) {
      sums[i] = decode_f16(static_cast<uint16_t>(word));
      sums[i + num_rows] = decode_f16(static_cast<uint16_t>(word >> 16));
    });
  accumulate(plan, panels, sums);
  for_each_d_word(plan, d_registers, [sums](uint32_t& word, uint32_t i) {
    word = encode_f16_rn(sums[i]) | static_cast<uint32_t>(encode_f16_rn(sums[i + num_rows])) << 16;
  });
}

}  // namespace

Expected<WgmmaPlan> plan_wgmma(const WgmmaOperands& op, uint32_t smem_bytes) {
  using Result = Expected<WgmmaPlan>;
  for (const Error& e : {check_formats(op), check_modifiers(op), check_n(op)})
    if (!e.empty()) return Result::failure(e);
  WgmmaPlan plan;
  plan.operands = op;
  plan.k_elems = row_k_bytes / container_bytes(op.a_format);
  plan.num_a_registers = op.a_in_registers ? 4 : 0;
  plan.num_d_registers = op.accumulator == Accumulator::f16 ? op.n_cols / 4 : op.n_cols / 2;

  const auto decode_one = [&](uint64_t word, Major major, uint32_t rows, SmemDescriptor& out) -> Error {
    Expected<SmemDescriptor> decoded = decode_wgmma_descriptor(word);
    if (!decoded.ok()) return decoded.error;
    out = decoded.value;
    return check_operand(out, major, operand_extent(major, rows, row_k_bytes, plan.k_elems), smem_bytes);
  };
  if (!op.a_in_registers)
    if (Error e = decode_one(op.a_descriptor, op.a_major, num_rows, plan.a_smem); !e.empty())
      return Result::failure("wgmma: A: " + e);
  if (Error e = decode_one(op.b_descriptor, op.b_major, op.n_cols, plan.b_smem); !e.empty())
    return Result::failure("wgmma: B: " + e);
  return plan;
}

void execute_wgmma(const WgmmaPlan& plan, const SharedView& smem, const uint32_t* const* a_registers,
                   uint32_t* const* d_registers) {
  const uint32_t n_cols = plan.operands.n_cols, k_elems = plan.k_elems;
  const Scratch<float> a = make_scratch<float>(size_t{num_rows} * k_elems);
  const Scratch<float> b = make_scratch<float>(size_t{n_cols} * k_elems);
  if (plan.operands.a_in_registers)
    load_register_a(plan, a_registers, a.get());
  else
    load_k_lines(a_operand(plan), smem, 0, num_rows, a.get(), num_rows);
  load_row_lines(b_operand(plan), smem, n_cols, b.get(), k_elems);

  const GemmOperands panels{a.get(), num_rows, b.get(), k_elems, k_elems};
  if (plan.operands.accumulator == Accumulator::s32) return run_s32(plan, panels, d_registers);
  const Scratch<float> sums = make_scratch<float>(size_t{num_rows} * n_cols);
  if (!plan.operands.scale_d) std::fill_n(sums.get(), size_t{num_rows} * n_cols, 0.0f);
  if (plan.operands.accumulator == Accumulator::f32)
    run_f32(plan, panels, d_registers, sums.get());
  else
    run_f16(plan, panels, d_registers, sums.get());
}

}  // namespace opdeck::emu
