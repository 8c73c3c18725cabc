// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma: decoding of the instruction descriptor and all checks that need no data; see umma.h.
#include <algorithm>
#include <optional>

#include "message.h"
#include "umma.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t bits(uint32_t word, uint32_t low, uint32_t num_bits) {
  return word >> low & ((1u << num_bits) - 1);
}

std::string describe(MmaKind kind, const char* field, uint32_t got, const char* want) {
  return message("tcgen05.mma.kind::", mma_kind_name(kind), ": ", field, " is ", got, ", want ", want);
}

// The operand format that the three bits mean under a kind, if any.
std::optional<NumberFormat> operand_format(MmaKind kind, uint32_t code) {
  switch (kind) {
    case MmaKind::f16:
      if (code == 0) return NumberFormat::f16;
      if (code == 1) return NumberFormat::bf16;
      return {};
    case MmaKind::tf32:
      if (code == 2) return NumberFormat::tf32;
      return {};
    case MmaKind::i8:
      if (code == 0) return NumberFormat::u8;
      if (code == 1) return NumberFormat::s8;
      return {};
    case MmaKind::f8f6f4:
    case MmaKind::mxf8f6f4:
      if (code == 0) return NumberFormat::e4m3;
      if (code == 1) return NumberFormat::e5m2;
      if (code == 3) return NumberFormat::e2m3;
      if (code == 4) return NumberFormat::e3m2;
      if (code == 5) return NumberFormat::e2m1;
      return {};
    case MmaKind::mxf4:
    case MmaKind::mxf4nvf4:
      if (code == 1) return NumberFormat::e2m1;
      return {};
  }
  return {};
}

Error decode_accumulator(MmaKind kind, uint32_t code, Accumulator& accumulator) {
  if (kind == MmaKind::i8) {
    if (code != 2) return describe(kind, "the type of D", code, "2 (s32)");
    accumulator = Accumulator::s32;
    return {};
  }
  const bool half_allowed = kind == MmaKind::f16 || kind == MmaKind::f8f6f4;
  if (code == 0 && half_allowed) {
    accumulator = Accumulator::f16;
    return {};
  }
  if (code != 1) return describe(kind, "the type of D", code, half_allowed ? "0 (f16) or 1 (f32)" : "1 (f32)");
  accumulator = Accumulator::f32;
  return {};
}

bool is_packed_fp4(MmaKind kind) { return kind == MmaKind::mxf4 || kind == MmaKind::mxf4nvf4; }

uint32_t k_elems_of(MmaKind kind, bool large_k) {
  if (is_packed_fp4(kind)) return large_k ? 96 : 64;
  switch (kind) {
    case MmaKind::f16: return 16;
    case MmaKind::tf32: return 8;
    default: return 32;
  }
}

// The fields that the block-scaled kinds have in place of others.
Error decode_scale_fields(MmaKind kind, uint32_t word, Target target, InstructionDescriptor& d) {
  d.sfb_id = bits(word, 4, 2);
  d.sfa_id = bits(word, 29, 2);
  d.scale_format = bits(word, 23, 1) ? NumberFormat::ue8m0 : NumberFormat::ue4m3;
  if (kind != MmaKind::mxf4nvf4 && d.scale_format != NumberFormat::ue8m0)
    return describe(kind, "the scale-factor type", 0, "1 (ue8m0)");
  const bool large_k = bits(word, 31, 1) != 0;
  if (large_k && !is_packed_fp4(kind)) return describe(kind, "the K-size bit", 1, "0 (K = 96 is for 4-bit kinds)");
  if (large_k && target != Target::sm_103a) return describe(kind, "the K-size bit", 1, "0 (K = 96 needs sm_103a)");
  d.k_elems = k_elems_of(kind, large_k);
  return {};
}

Error check_reserved(MmaKind kind, uint32_t word) {
  if (bits(word, 0, 3) != 0)
    return describe(kind, "instruction-descriptor bits [2:0]", bits(word, 0, 3), "0 (sparsity is not supported)");
  if (bits(word, 6, 1)) return describe(kind, "instruction-descriptor bit 6", 1, "0");
  if (is_block_scaled(kind)) {
    if (bits(word, 3, 1)) return describe(kind, "instruction-descriptor bit 3", 1, "0");
    return {};
  }
  if (bits(word, 3, 1) && kind != MmaKind::i8) return describe(kind, "the saturate bit", 1, "0 (it is for i8)");
  if (bits(word, 23, 1)) return describe(kind, "instruction-descriptor bit 23", 1, "0");
  if (bits(word, 29, 1)) return describe(kind, "instruction-descriptor bit 29", 1, "0");
  if (bits(word, 30, 2)) return describe(kind, "the maximum shift", bits(word, 30, 2), "0 (it is for .ws)");
  return {};
}

Error check_modifiers(MmaKind kind, const InstructionDescriptor& d) {
  if (kind == MmaKind::i8 && (d.negate_a || d.negate_b)) return describe(kind, "a negate bit", 1, "0");
  const auto check_major = [kind](Major major, NumberFormat format) -> Error {
    if (major == Major::k) return {};
    if (is_packed_fp4(kind)) return describe(kind, "a transpose bit", 1, "0 (4-bit operands are K-major)");
    const bool padded = format == NumberFormat::e2m3 || format == NumberFormat::e3m2 || format == NumberFormat::e2m1;
    return padded ? describe(kind, "a transpose bit", 1, "0 for 6- and 4-bit operands") : Error{};
  };
  if (Error e = check_major(d.a_major, d.a_format); !e.empty()) return e;
  return check_major(d.b_major, d.b_format);
}

// What N is a multiple of. Source: PTX ISA, "Matrix Shape"; CuTe DSL's own checks, which let N be 8 beside M 128, as
// NVIDIA's mixed-input attention uses it, where older releases of the manual ask for 16.
uint32_t n_step(const UmmaOperands& op, const InstructionDescriptor& d) {
  if (op.kind == MmaKind::i8) return op.num_ctas == 2 ? 32 : (d.n_cols > 32 ? 16 : 8);
  const bool wide_cores = d.b_major == Major::mn && container_bytes(d.b_format) == 1;
  return 8 * op.num_ctas * (wide_cores ? 2 : 1);
}

Error check_shape(const UmmaOperands& op, const InstructionDescriptor& d) {
  const uint32_t m = d.m_rows, n = d.n_cols;
  if (op.num_ctas != 1 && op.num_ctas != 2) return describe(op.kind, "cta_group", op.num_ctas, "1 or 2");
  if (op.num_ctas == 2 && m != 128 && m != 256) return describe(op.kind, "M under cta_group::2", m, "128 or 256");
  if (op.num_ctas == 1) {
    if (is_block_scaled(op.kind) && m != 128) return describe(op.kind, "M under cta_group::1", m, "128");
    if (m != 64 && m != 128) return describe(op.kind, "M under cta_group::1", m, "64 or 128");
  }
  const uint32_t step = n_step(op, d);
  if (n == 0 || n > 256 || n % step != 0)
    return message("tcgen05.mma.kind::", mma_kind_name(op.kind), ": N is ", n, " for M ", m, " and cta_group ",
                   op.num_ctas, ", want a multiple of ", step, " up to 256");
  return {};
}

// Scale factors a row, checked against the kind and K.
Expected<uint32_t> scale_block_elems(const UmmaOperands& op, const InstructionDescriptor& d) {
  using Result = Expected<uint32_t>;
  if (!is_block_scaled(op.kind)) {
    if (op.scale_vector != 0) return Result::failure(describe(op.kind, "scale_vec", op.scale_vector, "none"));
    return 0u;
  }
  const bool is_nvf4 = op.kind == MmaKind::mxf4nvf4;
  if (is_nvf4 && op.scale_vector == 0) return Result::failure(describe(op.kind, "scale_vec", 0, "2 or 4"));
  const uint32_t block32_factors = d.k_elems / 32;
  uint32_t factors = op.scale_vector == 0 ? block32_factors : op.scale_vector;
  if (d.k_elems == 96 && factors < 6) factors = factors == 4 ? 6 : 3;  // .block16 and .block32 of K = 96
  const bool is_block16 = factors == 2 * block32_factors;
  if (factors != block32_factors && !(is_nvf4 && is_block16))
    return Result::failure(describe(op.kind, "scale_vec", op.scale_vector,
                                    is_nvf4 ? "blocks of 16 or 32 along K" : "blocks of 32 along K"));
  if (!is_block16 && d.scale_format == NumberFormat::ue4m3)
    return Result::failure(describe(op.kind, "the scale-factor type", 0, "1 (ue8m0) for blocks of 32 along K"));
  return d.k_elems / factors;
}

// A row's factors fill the bytes of a 32-bit cell from the id on; only those of K = 96 may go on in the next cell.
Error check_scale_id(MmaKind kind, const char* field, uint32_t id, const UmmaPlan& plan) {
  const uint32_t factors = plan.factors_per_row();
  if (plan.shape.k_elems != 96 && id + factors > 4)
    return describe(kind, field, id, "one from which the row's factors fit in four bytes");
  if (factors % 2 == 0 && id % 2 != 0) return describe(kind, field, id, "0 or 2 for an even number of factors a row");
  return {};
}

Error check_columns(const char* operand, uint32_t address, uint32_t num_columns) {
  if (tmem_column(address) + num_columns <= TmemView::num_columns) return {};
  return message("tcgen05.mma: ", operand, " at TMEM address ", Hex{address}, " takes ", num_columns,
                 " columns and passes column 511");
}

uint32_t scale_columns(const UmmaPlan& plan, uint32_t id, uint32_t num_rows) {
  const uint32_t last_group = (id + plan.factors_per_row() - 1) / 4;
  return last_group * UmmaPlan::scale_group_columns(num_rows) + (num_rows + 31) / 32;
}

void lay_out_tiles(UmmaPlan& plan) {
  const uint32_t base_lane = tmem_lane(plan.operands.d_address);
  const uint32_t n = plan.shape.n_cols;
  plan.tile_cols = n;
  for (uint32_t cta = 0; cta < plan.operands.num_ctas; ++cta) {
    if (plan.a_rows_per_cta == 128) {
      plan.tiles.push_back({cta, 0, 128, base_lane, 0});
    } else if (plan.operands.num_ctas == 2) {
      // 64 rows a CTA: the upper half of N goes to lanes 64 .. 127.
      plan.tile_cols = n / 2;
      plan.tiles.push_back({cta, 0, 64, base_lane, 0});
      plan.tiles.push_back({cta, 0, 64, base_lane + 64, n / 2});
    } else {
      // M = 64: 16 rows in each quarter of the lanes.
      for (uint32_t quarter = 0; quarter < 4; ++quarter)
        plan.tiles.push_back({cta, quarter * 16, 16, base_lane + quarter * 32, 0});
    }
  }
}

Error check_tmem(UmmaPlan& plan) {
  const UmmaOperands& op = plan.operands;
  const bool sparse_lanes = op.num_ctas == 1 && plan.shape.m_rows == 64;
  const uint32_t lane = tmem_lane(op.d_address);
  if (lane != 0 && !(sparse_lanes && lane == 16))
    return message("tcgen05.mma: D starts at TMEM lane ", lane, ", want 0", sparse_lanes ? " or 16" : "");
  plan.d_columns = plan.tile_cols;
  if (Error e = check_columns("D", op.d_address, plan.d_columns); !e.empty()) return e;
  if (op.a_in_tmem) {
    const uint32_t a_address = static_cast<uint32_t>(op.a);
    plan.a_columns = plan.k_bytes / 4;
    if (tmem_lane(a_address) != lane)
      return message("tcgen05.mma: A starts at TMEM lane ", tmem_lane(a_address), ", want D's, ", lane);
    if (Error e = check_columns("A", a_address, plan.a_columns); !e.empty()) return e;
  }
  if (plan.scale_block_elems == 0) return {};
  plan.sfa_columns = scale_columns(plan, plan.shape.sfa_id, plan.a_rows_per_cta);
  plan.sfb_columns = scale_columns(plan, plan.shape.sfb_id, plan.tile_cols);
  const uint32_t sfa = op.sfa_address & 0x3fffffff, sfb = op.sfb_address & 0x3fffffff;
  if (tmem_lane(sfa) != 0 || tmem_lane(sfb) != 0)
    return message("tcgen05.mma: scale factors at TMEM addresses ", Hex{sfa}, " and ", Hex{sfb}, ", want lane 0");
  if (Error e = check_columns("scale factors of A", sfa, plan.sfa_columns); !e.empty()) return e;
  return check_columns("scale factors of B", sfb, plan.sfb_columns);
}

Error plan_smem(UmmaPlan& plan, uint32_t smem_bytes) {
  const UmmaOperands& op = plan.operands;
  const InstructionDescriptor& d = plan.shape;
  const auto decode_one = [&](uint64_t word, Major major, uint32_t num_rows, SmemDescriptor& out) -> Error {
    Expected<SmemDescriptor> decoded = decode_tcgen05_descriptor(word, op.target);
    if (!decoded.ok()) return decoded.error;
    out = decoded.value;
    return check_operand(out, major, operand_extent(major, num_rows, plan.k_bytes, d.k_elems), smem_bytes);
  };
  if (!op.a_in_tmem)
    if (Error e = decode_one(op.a, d.a_major, plan.a_rows_per_cta, plan.a_smem); !e.empty()) return "A: " + e;
  if (Error e = decode_one(op.b_descriptor, d.b_major, plan.b_rows_per_cta, plan.b_smem); !e.empty()) return "B: " + e;
  return {};
}

}  // namespace

const char* mma_kind_name(MmaKind kind) {
  constexpr const char* names[] = {"f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"};
  return names[static_cast<uint32_t>(kind)];
}

Expected<InstructionDescriptor> decode_instruction_descriptor(MmaKind kind, uint32_t word, Target target) {
  using Result = Expected<InstructionDescriptor>;
  if (target == Target::sm_90a) return Result::failure("tcgen05.mma: sm_90a has no tcgen05, want sm_100a or sm_103a");
  if (kind == MmaKind::i8 && target == Target::sm_103a)
    return Result::failure("tcgen05.mma.kind::i8: sm_103a has no integer kind, want sm_100a");
  if (Error e = check_reserved(kind, word); !e.empty()) return Result::failure(e);
  InstructionDescriptor d;
  const auto a_format = operand_format(kind, bits(word, 7, 3));
  const auto b_format = operand_format(kind, bits(word, 10, 3));
  if (!a_format) return Result::failure(describe(kind, "the type of A", bits(word, 7, 3), "one of this kind"));
  if (!b_format) return Result::failure(describe(kind, "the type of B", bits(word, 10, 3), "one of this kind"));
  d.a_format = *a_format;
  d.b_format = *b_format;
  if (kind == MmaKind::f16 && d.a_format != d.b_format)
    return Result::failure(describe(kind, "the type of B", bits(word, 10, 3), "that of A"));
  d.negate_a = bits(word, 13, 1) != 0;
  d.negate_b = bits(word, 14, 1) != 0;
  d.a_major = bits(word, 15, 1) ? Major::mn : Major::k;
  d.b_major = bits(word, 16, 1) ? Major::mn : Major::k;
  d.n_cols = bits(word, 17, 6) << 3;
  d.m_rows = bits(word, 24, 5) << 4;
  d.k_elems = k_elems_of(kind, false);
  if (is_block_scaled(kind)) {
    if (Error e = decode_scale_fields(kind, word, target, d); !e.empty()) return Result::failure(e);
  } else {
    d.saturate = bits(word, 3, 1) != 0;
    if (Error e = decode_accumulator(kind, bits(word, 4, 2), d.accumulator); !e.empty()) return Result::failure(e);
    if (d.accumulator == Accumulator::f16 && d.a_format == NumberFormat::bf16)
      return Result::failure(describe(kind, "the type of D", 0, "1 (f32) for bf16 operands"));
  }
  if (Error e = check_modifiers(kind, d); !e.empty()) return Result::failure(e);
  return d;
}

Expected<UmmaPlan> plan_umma(const UmmaOperands& op, uint32_t smem_bytes) {
  using Result = Expected<UmmaPlan>;
  Expected<InstructionDescriptor> shape = decode_instruction_descriptor(op.kind, op.instruction_descriptor, op.target);
  if (!shape.ok()) return Result::failure(shape.error);
  UmmaPlan plan;
  plan.operands = op;
  plan.shape = shape.value;
  if (Error e = check_shape(op, plan.shape); !e.empty()) return Result::failure(e);
  if (op.scale_input_d_log2 > 15)
    return Result::failure(describe(op.kind, "scale-input-d", op.scale_input_d_log2, "0 .. 15"));
  if (op.scale_input_d_log2 && op.kind != MmaKind::f16 && op.kind != MmaKind::tf32)
    return Result::failure(describe(op.kind, "scale-input-d", op.scale_input_d_log2, "none (it is for f16 and tf32)"));
  if (op.a_in_tmem && plan.shape.a_major == Major::mn)
    return Result::failure(describe(op.kind, "the transpose bit of A", 1, "0 where A is in TMEM"));
  if (op.a_in_tmem && format_traits(plan.shape.a_format).total_bits < 8)
    return Result::failure(message("tcgen05.mma.kind::", mma_kind_name(op.kind), ": A in TMEM as ",
                                   format_name(plan.shape.a_format), " is not supported, want 8 bits or more"));

  plan.a_rows_per_cta = plan.shape.m_rows / op.num_ctas;
  plan.b_rows_per_cta = plan.shape.n_cols / op.num_ctas;
  plan.k_bytes = plan.shape.k_elems == 96 ? 48 : 32;
  Expected<uint32_t> block = scale_block_elems(op, plan.shape);
  if (!block.ok()) return Result::failure(block.error);
  plan.scale_block_elems = block.value;
  if (plan.scale_block_elems) {
    const InstructionDescriptor& d = plan.shape;
    if (Error e = check_scale_id(op.kind, "the scale-factor id of A", d.sfa_id, plan); !e.empty())
      return Result::failure(e);
    if (Error e = check_scale_id(op.kind, "the scale-factor id of B", d.sfb_id, plan); !e.empty())
      return Result::failure(e);
  }
  lay_out_tiles(plan);
  if (Error e = check_tmem(plan); !e.empty()) return Result::failure(e);
  if (Error e = plan_smem(plan, smem_bytes); !e.empty()) return Result::failure(e);
  return plan;
}

}  // namespace opdeck::emu
