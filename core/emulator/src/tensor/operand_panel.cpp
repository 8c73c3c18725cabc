// SPDX-License-Identifier: Apache-2.0
// Operands from shared memory to panels of floats; see operand_panel.h.
#include "operand_panel.h"

#include <algorithm>

#include "scratch.h"

namespace opdeck::emu {
namespace {

// A rectangle of an operand in its own lines: rows under Major::k, k under Major::mn.
struct LineRange {
  uint32_t first_line, num_lines;
  uint32_t first_byte, line_bytes, line_elems;
};

void decode_codes(const SmemOperand& operand, const uint8_t* codes, size_t num_elems, float* values) {
  constexpr size_t slot_elems = 16, slot_bytes = 16;
  if (format_traits(operand.format).total_bits >= 8)
    decode_bulk(codes, num_elems, operand.format, values);
  else if (operand.k_elems > operand.k_bytes)
    decode_packed(codes, num_elems, operand.format, values);
  else
    for (size_t i = 0; i < num_elems; i += slot_elems)
      decode_packed(codes + i / slot_elems * slot_bytes, slot_elems, operand.format, values + i);
  if (operand.negate)
    for (size_t i = 0; i < num_elems; ++i) values[i] = -values[i];
}

// values[line * line_elems + elem].
void decode_lines(const SmemOperand& operand, const SharedView& smem, const LineRange& range, float* values) {
  const size_t num_bytes = size_t{range.num_lines} * range.line_bytes;
  const Scratch<uint8_t> codes = make_scratch<uint8_t>(num_bytes);
  uint8_t* out = codes.get();
  for (uint32_t line = 0; line < range.num_lines; ++line)
    for (uint32_t byte = 0; byte < range.line_bytes; byte += 16) {
      const uint32_t piece_bytes = std::min(16u, range.line_bytes - byte);
      const uint32_t address =
          operand_address(operand.descriptor, operand.major, range.first_line + line, range.first_byte + byte);
      copy_piece(out, smem.bytes + address, piece_bytes);
      out += piece_bytes;
    }
  decode_codes(operand, codes.get(), size_t{range.num_lines} * range.line_elems, values);
}

LineRange range_of_rows(const SmemOperand& operand, uint32_t first_row, uint32_t num_rows) {
  if (operand.major == Major::k) return {first_row, num_rows, 0, operand.k_bytes, operand.k_elems};
  const uint32_t elem_bytes = operand.k_bytes / operand.k_elems;
  return {0, operand.k_elems, first_row * elem_bytes, num_rows * elem_bytes, num_rows};
}

struct Matrix {
  const float* values;
  uint32_t num_lines, line_elems;
};

void copy_lines(const Matrix& m, float* panel, uint32_t stride) {
  for (uint32_t line = 0; line < m.num_lines; ++line)
    std::copy_n(m.values + line * m.line_elems, m.line_elems, panel + line * stride);
}

// In 8 x 8 blocks, so that both sides stay in cache lines already touched.
void transpose_lines(const Matrix& m, float* panel, uint32_t stride) {
  constexpr uint32_t block = 8;
  for (uint32_t line0 = 0; line0 < m.num_lines; line0 += block)
    for (uint32_t elem = 0; elem < m.line_elems; ++elem)
      for (uint32_t line = line0; line < std::min(line0 + block, m.num_lines); ++line)
        panel[elem * stride + line] = m.values[line * m.line_elems + elem];
}

// The panel's own lines, `stride` apart, are those of the operand where its elements are contiguous along `along`.
void load_panel(const SmemOperand& operand, const SharedView& smem, const LineRange& range, Major along, float* panel,
                uint32_t stride) {
  if (operand.major == along && stride == range.line_elems) return decode_lines(operand, smem, range, panel);
  const Scratch<float> values = make_scratch<float>(size_t{range.num_lines} * range.line_elems);
  decode_lines(operand, smem, range, values.get());
  const Matrix lines{values.get(), range.num_lines, range.line_elems};
  operand.major == along ? copy_lines(lines, panel, stride) : transpose_lines(lines, panel, stride);
}

}  // namespace

void load_k_lines(const SmemOperand& operand, const SharedView& smem, uint32_t first_row, uint32_t num_rows,
                  float* panel, uint32_t stride) {
  load_panel(operand, smem, range_of_rows(operand, first_row, num_rows), Major::mn, panel, stride);
}

void load_row_lines(const SmemOperand& operand, const SharedView& smem, uint32_t num_rows, float* panel,
                    uint32_t stride) {
  load_panel(operand, smem, range_of_rows(operand, 0, num_rows), Major::k, panel, stride);
}

}  // namespace opdeck::emu
