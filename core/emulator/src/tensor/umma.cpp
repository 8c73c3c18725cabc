// SPDX-License-Identifier: Apache-2.0
// tcgen05.mma: execution of a plan; see umma.h. Each tile of the plan is a small GEMM whose D is a run of lanes in each
// of the columns, which is what mma_gemm.h works on, so f32 accumulators are updated in place.
#include "umma.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "message.h"
#include "mma_gemm.h"
#include "operand_panel.h"
#include "scratch.h"

namespace opdeck::emu {
namespace {

// What one tile works on.
struct TileWork {
  const UmmaPlan& plan;
  const UmmaTile& tile;
  const UmmaCta& cta;
  GemmOperands panels;  // b starts at the tile's first column

  uint32_t* d_column(uint32_t col) const {
    return cta.tmem.column(tmem_column(plan.operands.d_address) + col) + tile.first_lane;
  }
};

template <class Code>
void extract_codes(const uint32_t* words, uint32_t num_words, uint32_t shift, uint8_t* codes) {
  for (uint32_t i = 0; i < num_words; ++i) {
    const Code code = static_cast<Code>(words[i] >> shift);
    std::memcpy(codes + i * sizeof code, &code, sizeof code);
  }
}

// A from tensor memory: rows of A are the lanes of D, elements packed along K in 32-bit columns.
void load_tmem_a(const UmmaPlan& plan, const UmmaTile& tile, const TmemView& tmem, float* panel) {
  const uint32_t elems_per_word = plan.shape.k_elems / plan.a_columns;
  const uint32_t elem_bits = 32 / elems_per_word;
  const uint32_t code_bytes = container_bytes(plan.shape.a_format);
  const auto extract = code_bytes == 1 ? extract_codes<uint8_t>
                                       : code_bytes == 2 ? extract_codes<uint16_t> : extract_codes<uint32_t>;
  const Scratch<uint8_t> codes = make_scratch<uint8_t>(size_t{tile.num_rows} * code_bytes);
  for (uint32_t column = 0; column < plan.a_columns; ++column) {
    const uint32_t* words = tmem.column(tmem_column(static_cast<uint32_t>(plan.operands.a)) + column) + tile.first_lane;
    for (uint32_t elem = 0; elem < elems_per_word; ++elem) {
      float* out = panel + (column * elems_per_word + elem) * tile.num_rows;
      extract(words, tile.num_rows, elem * elem_bits, codes.get());
      decode_bulk(codes.get(), tile.num_rows, plan.shape.a_format, out);
      for (uint32_t row = 0; plan.shape.negate_a && row < tile.num_rows; ++row) out[row] = -out[row];
    }
  }
}

SmemOperand a_operand(const UmmaPlan& p) {
  return {p.a_smem, p.shape.a_major, p.shape.a_format, p.shape.k_elems, p.k_bytes, p.shape.negate_a};
}
SmemOperand b_operand(const UmmaPlan& p) {
  return {p.b_smem, p.shape.b_major, p.shape.b_format, p.shape.k_elems, p.k_bytes, p.shape.negate_b};
}

// D as f32: 0, or what it was, divided by 2^scale_input_d_log2.
void run_f32(const TileWork& work) {
  const UmmaOperands& op = work.plan.operands;
  const uint32_t num_rows = work.tile.num_rows;
  for (uint32_t col = 0; col < work.plan.tile_cols; ++col) {
    uint32_t* d = work.d_column(col);
    if (!op.accumulate) {
      std::fill_n(d, num_rows, 0u);
    } else if (op.scale_input_d_log2 != 0) {
      const float factor = 1.0f / static_cast<float>(1u << op.scale_input_d_log2);
      for (uint32_t row = 0; row < num_rows; ++row)
        d[row] = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, d[row]) * factor);
    }
  }
  gemm_accumulate(work.panels, num_rows, work.plan.tile_cols, reinterpret_cast<float*>(work.d_column(0)),
                  TmemView::num_lanes);
}

// D as f16 in the low halves: added in f32, rounded once an instruction. The high halves become zero.
void run_f16(const TileWork& work) {
  const UmmaOperands& op = work.plan.operands;
  const uint32_t num_rows = work.tile.num_rows, num_cols = work.plan.tile_cols;
  const float factor = 1.0f / static_cast<float>(1u << op.scale_input_d_log2);
  const Scratch<float> sums = make_scratch<float>(size_t{num_rows} * num_cols);
  for (uint32_t col = 0; col < num_cols; ++col)
    for (uint32_t row = 0; row < num_rows; ++row)
      sums[col * num_rows + row] =
          op.accumulate ? decode_f16(static_cast<uint16_t>(work.d_column(col)[row])) * factor : 0.0f;
  gemm_accumulate(work.panels, num_rows, num_cols, sums.get(), num_rows);
  for (uint32_t col = 0; col < num_cols; ++col)
    for (uint32_t row = 0; row < num_rows; ++row) work.d_column(col)[row] = encode_f16_rn(sums[col * num_rows + row]);
}

void run_s32(const TileWork& work) {
  const uint32_t num_rows = work.tile.num_rows, num_cols = work.plan.tile_cols;
  const Scratch<int32_t> sums = make_scratch<int32_t>(size_t{num_rows} * num_cols);
  gemm_integers(work.panels, num_rows, num_cols, sums.get());
  const Overflow overflow = work.plan.shape.saturate ? Overflow::saturate : Overflow::wrap;
  for (uint32_t col = 0; col < num_cols; ++col)
    for (uint32_t row = 0; row < num_rows; ++row) {
      uint32_t& d = work.d_column(col)[row];
      d = add_s32(work.plan.operands.accumulate ? d : 0, sums[col * num_rows + row], overflow);
    }
}

// Where the scale factors of one operand lie, for one tile.
struct ScaleSource {
  const char* operand;
  uint32_t address;
  uint32_t first_id;        // byte of the cell that holds a row's first factor
  uint32_t num_rows;
  uint32_t first_quarter, num_quarters;  // the 32-lane quarters that must hold the same
};

// The 32-bit cell of a row in one group of columns, if all its copies agree in the bytes of `mask`. The hardware reads
// a copy in each quarter of the lanes; copies that differ are an error of the kernel.
Error read_scale_cell(const uint32_t* column, const ScaleSource& source, uint32_t row, uint32_t mask, uint32_t& cell) {
  const uint32_t first_lane = source.first_quarter * 32 + row % 32;
  cell = column[first_lane];
  for (uint32_t lane = first_lane + 32; lane < first_lane + 32 * source.num_quarters; lane += 32)
    if ((column[lane] ^ cell) & mask)
      return message("tcgen05.mma: the scale factors of ", source.operand, " for row ", row,
                     " differ between TMEM lanes ", first_lane, " (", Hex{cell}, ") and ", lane, " (",
                     Hex{column[lane]}, "); each quarter of the lanes must hold a copy");
  return {};
}

// factors[row * factors_per_row + f].
Error read_scales(const UmmaPlan& plan, const TmemView& tmem, const ScaleSource& source, std::vector<float>& factors) {
  const uint32_t per_row = plan.factors_per_row();
  factors.resize(size_t{source.num_rows} * per_row);
  for (uint32_t row = 0; row < source.num_rows; ++row)
    for (uint32_t f = 0; f < per_row; ++f) {
      const uint32_t group = (source.first_id + f) / 4, shift = (source.first_id + f) % 4 * 8;
      const uint32_t column = tmem_column(source.address) + group * UmmaPlan::scale_group_columns(source.num_rows);
      uint32_t cell = 0;
      if (Error e = read_scale_cell(tmem.column(column + row / 32), source, row, 0xffu << shift, cell); !e.empty())
        return e;
      factors[row * per_row + f] = decode(cell >> shift, plan.shape.scale_format);
    }
  return {};
}

// For each block of K: d = fl32(d + p * sfa * sfb), p the block's sum of products in f32. The product with both scale
// factors is formed in f64, so extreme factors neither overflow nor vanish on the way.
Error run_block_scaled(const TileWork& work) {
  const UmmaPlan& plan = work.plan;
  const uint32_t num_rows = work.tile.num_rows, num_cols = plan.tile_cols;
  const bool half_lanes = num_cols != plan.shape.n_cols;
  std::vector<float> sfa, sfb;
  const ScaleSource a_source{"A", plan.operands.sfa_address, plan.shape.sfa_id, num_rows, 0, 4};
  const ScaleSource b_source{"B", plan.operands.sfb_address, plan.shape.sfb_id, num_cols, work.tile.first_lane / 32,
                             half_lanes ? 2u : 4u};
  if (Error e = read_scales(plan, work.cta.tmem, a_source, sfa); !e.empty()) return e;
  if (Error e = read_scales(plan, work.cta.tmem, b_source, sfb); !e.empty()) return e;

  if (!plan.operands.accumulate)
    for (uint32_t col = 0; col < num_cols; ++col) std::fill_n(work.d_column(col), num_rows, 0u);
  const uint32_t per_row = plan.factors_per_row();
  const Scratch<float> sums = make_scratch<float>(size_t{num_rows} * num_cols);
  for (uint32_t f = 0; f < per_row; ++f) {
    GemmOperands block = work.panels;
    block.k_elems = plan.scale_block_elems;
    block.a += size_t{f} * plan.scale_block_elems * block.a_stride;
    block.b += size_t{f} * plan.scale_block_elems;
    std::fill_n(sums.get(), size_t{num_rows} * num_cols, 0.0f);
    gemm_accumulate(block, num_rows, num_cols, sums.get(), num_rows);
    for (uint32_t col = 0; col < num_cols; ++col) {
      uint32_t* d = work.d_column(col);
      const double b_scale = sfb[col * per_row + f];
      for (uint32_t row = 0; row < num_rows; ++row) {
        const double scale = b_scale * sfa[row * per_row + f];
        const double sum = __builtin_bit_cast(float, d[row]) + sums[col * num_rows + row] * scale;
        d[row] = __builtin_bit_cast(uint32_t, static_cast<float>(sum));
      }
    }
  }
  return {};
}

Error run_tile(const TileWork& work) {
  if (work.plan.scale_block_elems != 0) return run_block_scaled(work);
  switch (work.plan.shape.accumulator) {
    case Accumulator::f16: run_f16(work); break;
    case Accumulator::f32: run_f32(work); break;
    case Accumulator::s32: run_s32(work); break;
  }
  return {};
}

// Keeps what disabled lanes hold through the life of the object.
class LaneGuard {
 public:
  explicit LaneGuard(const TileWork& work) : work_(work) {
    for (uint32_t row = 0; row < work.tile.num_rows; ++row) {
      const uint32_t lane = work.tile.first_lane + row;
      if (work.plan.operands.disabled_lanes[4 * work.tile.cta_idx + lane / 32] >> lane % 32 & 1) rows_.push_back(row);
    }
    for (uint32_t row : rows_)
      for (uint32_t col = 0; col < work.plan.tile_cols; ++col) saved_.push_back(work.d_column(col)[row]);
  }
  ~LaneGuard() {
    size_t i = 0;
    for (uint32_t row : rows_)
      for (uint32_t col = 0; col < work_.plan.tile_cols; ++col) work_.d_column(col)[row] = saved_[i++];
  }
  LaneGuard(const LaneGuard&) = delete;
  LaneGuard& operator=(const LaneGuard&) = delete;

 private:
  const TileWork& work_;
  std::vector<uint32_t> rows_, saved_;
};

}  // namespace

Error execute_umma(const UmmaPlan& plan, const UmmaCta* ctas) {
  const uint32_t k_elems = plan.shape.k_elems;
  const Scratch<float> b = make_scratch<float>(size_t{plan.shape.n_cols} * k_elems);
  for (uint32_t cta = 0; cta < plan.operands.num_ctas; ++cta)
    load_row_lines(b_operand(plan), ctas[cta].smem, plan.b_rows_per_cta,
                   b.get() + size_t{cta} * plan.b_rows_per_cta * k_elems, k_elems);

  const Scratch<float> a = make_scratch<float>(size_t{plan.a_rows_per_cta} * k_elems);
  for (const UmmaTile& tile : plan.tiles) {
    const UmmaCta& cta = ctas[tile.cta_idx];
    if (plan.operands.a_in_tmem)
      load_tmem_a(plan, tile, cta.tmem, a.get());
    else
      load_k_lines(a_operand(plan), cta.smem, tile.first_row, tile.num_rows, a.get(), tile.num_rows);
    const float* tile_b = b.get() + size_t{tile.first_col} * k_elems;
    const GemmOperands panels{a.get(), tile.num_rows, tile_b, k_elems, k_elems};
    const TileWork work{plan, tile, cta, panels};
    const LaneGuard guard(work);
    if (Error e = run_tile(work); !e.empty()) return e;
  }
  return {};
}

}  // namespace opdeck::emu
