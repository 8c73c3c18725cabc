// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async; see wgmma.h.
#include "wgmma.h"

#include <algorithm>
#include <array>
#include <cstring>

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

// The words of one register in the 32 lanes of a warp, by columns: lane 4 * row + i has word `row` of column i. Not inlined,
// so that compilers see a transposition by itself and vectorise it.
constexpr uint32_t fragment_columns = 4, fragment_rows = 8, fragment_column_step = 2 * num_rows;
using Fragment = std::array<std::array<uint32_t, fragment_rows>, fragment_columns>;

[[gnu::noinline]] Fragment fragment_of(const uint32_t* words) {
  Fragment f;
  for (uint32_t i = 0; i < fragment_columns; ++i)
    for (uint32_t row = 0; row < fragment_rows; ++row) f[i][row] = words[row * fragment_columns + i];
  return f;
}
[[gnu::noinline]] void store_fragment(const Fragment& f, uint32_t* words) {
  for (uint32_t row = 0; row < fragment_rows; ++row)
    for (uint32_t i = 0; i < fragment_columns; ++i) words[row * fragment_columns + i] = f[i][row];
}

// The codes of A, code[k * num_rows + row], from the registers.
template <class Code>
void gather_a_codes(const WgmmaPlan& plan, const uint32_t* const* registers, Code* codes) {
  constexpr uint32_t elem_bytes = sizeof(Code), per_register = 4 / elem_bytes;
  for (uint32_t warp = 0; warp < num_warps; ++warp)
    for (uint32_t reg = 0; reg < plan.num_a_registers; ++reg) {
      const Fragment f = fragment_of(registers[warp * plan.num_a_registers + reg]);
      const MatrixCoord at = wgmma_a_coord(warp * warp_lanes, reg, elem_bytes);
      for (uint32_t i = 0; i < fragment_columns; ++i)
        for (uint32_t e = 0; e < per_register; ++e) {
          Code* const column = codes + (at.col + i * per_register + e) * num_rows + at.row;
          for (uint32_t row = 0; row < fragment_rows; ++row)
            column[row] = static_cast<Code>(f[i][row] >> (e * elem_bytes * 8));
        }
    }
}

// panel[k * num_rows + row].
void load_register_a(const WgmmaPlan& plan, const uint32_t* const* registers, float* panel) {
  const NumberFormat format = plan.operands.a_format;
  const size_t num_elems = size_t{num_rows} * plan.k_elems;
  const Scratch<uint32_t> codes = make_scratch<uint32_t>(num_elems);
  uint8_t* const bytes = reinterpret_cast<uint8_t*>(codes.get());
  switch (container_bytes(format)) {
    case 1: gather_a_codes(plan, registers, bytes); break;
    case 2: gather_a_codes(plan, registers, reinterpret_cast<uint16_t*>(bytes)); break;
    default: gather_a_codes(plan, registers, codes.get());
  }
  decode_bulk(bytes, num_elems, format, panel);
  for (size_t i = 0; plan.operands.negate_a && i < num_elems; ++i) panel[i] = -panel[i];
}

// Calls visit(words, index) for each register of D: index is that of its first word in the sums, col * num_rows + row,
// and column i of the fragment stands fragment_column_step * i behind it. Under f16 a word holds the elements at its
// index and num_rows behind.
template <class Visit>
void for_each_d_register(const WgmmaPlan& plan, uint32_t* const* registers, Visit&& visit) {
  const bool halves = plan.operands.accumulator == Accumulator::f16;
  for (uint32_t warp = 0; warp < num_warps; ++warp)
    for (uint32_t reg = 0; reg < plan.num_d_registers; ++reg) {
      const uint32_t thread = warp * warp_lanes;
      const MatrixCoord at = halves ? wgmma_d_f16_coord(thread, reg) : wgmma_d_coord(thread, reg);
      visit(registers[warp * plan.num_d_registers + reg], at.col * num_rows + at.row);
    }
}

void run_s32(const WgmmaPlan& plan, const GemmOperands& panels, uint32_t* const* d_registers) {
  const Scratch<int32_t> sums = make_scratch<int32_t>(size_t{num_rows} * plan.operands.n_cols);
  gemm_integers(panels, num_rows, plan.operands.n_cols, sums.get());
  const Overflow overflow = plan.operands.saturate ? Overflow::saturate : Overflow::wrap;
  for_each_d_register(plan, d_registers, [&](uint32_t* words, uint32_t index) {
    Fragment f = fragment_of(words);
    for (uint32_t i = 0; i < fragment_columns; ++i)
      for (uint32_t row = 0; row < fragment_rows; ++row)
        f[i][row] = add_s32(plan.operands.scale_d ? f[i][row] : 0, sums[index + i * fragment_column_step + row], overflow);
    store_fragment(f, words);
  });
}

// D = A B + D as the tensor core adds; sums[col * num_rows + row].
void accumulate(const WgmmaPlan& plan, const GemmOperands& panels, float* sums) {
  const WgmmaOperands& op = plan.operands;
  gemm_accumulate_aligned(panels, num_rows, op.n_cols, sums, num_rows,
                          aligned_sum(op.a_format, op.b_format, op.accumulator));
}

void run_f32(const WgmmaPlan& plan, const GemmOperands& panels, uint32_t* const* d_registers, float* sums) {
  if (plan.operands.scale_d)
    for_each_d_register(plan, d_registers, [sums](const uint32_t* words, uint32_t index) {
      const Fragment f = fragment_of(words);
      for (uint32_t i = 0; i < fragment_columns; ++i)
        std::memcpy(sums + index + i * fragment_column_step, f[i].data(), sizeof f[i]);
    });
  accumulate(plan, panels, sums);
  for_each_d_register(plan, d_registers, [sums](uint32_t* words, uint32_t index) {
    Fragment f;
    for (uint32_t i = 0; i < fragment_columns; ++i)
      std::memcpy(f[i].data(), sums + index + i * fragment_column_step, sizeof f[i]);
    store_fragment(f, words);
  });
}

void run_f16(const WgmmaPlan& plan, const GemmOperands& panels, uint32_t* const* d_registers, float* sums) {
  if (plan.operands.scale_d)
    for_each_d_register(plan, d_registers, [sums](const uint32_t* words, uint32_t index) {
      const Fragment f = fragment_of(words);
      for (uint32_t i = 0; i < fragment_columns; ++i)
        for (uint32_t row = 0; row < fragment_rows; ++row) {
          float* const pair = sums + index + i * fragment_column_step + row;
          pair[0] = decode_f16(static_cast<uint16_t>(f[i][row]));
          pair[num_rows] = decode_f16(static_cast<uint16_t>(f[i][row] >> 16));
        }
    });
  accumulate(plan, panels, sums);
  for_each_d_register(plan, d_registers, [sums](uint32_t* words, uint32_t index) {
    Fragment f;
    for (uint32_t i = 0; i < fragment_columns; ++i)
      for (uint32_t row = 0; row < fragment_rows; ++row) {
        const float* const pair = sums + index + i * fragment_column_step + row;
        f[i][row] = encode_f16_rn(pair[0]) | static_cast<uint32_t>(encode_f16_rn(pair[num_rows])) << 16;
      }
    store_fragment(f, words);
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
