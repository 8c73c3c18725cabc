// SPDX-License-Identifier: Apache-2.0
// Decodes matrix operands from shared memory into the panels of floats of mma_gemm.h.
// Called by umma.cpp and wgmma.cpp.
#pragma once

#include <cstdint>

#include "numbers.h"
#include "outcome.h"
#include "smem_desc.h"

namespace opdeck::emu {

// How elements stand in shared memory. Elements of fewer than 8 bits are packed two a byte where k_elems > k_bytes
// (kind::mxf4, mxf4nvf4), else 16 of them fill a 16-byte slot: packed at its start, then padding (f8f6f4, mxf8f6f4).
struct SmemOperand {
  SmemDescriptor descriptor;
  Major major = Major::k;
  NumberFormat format = NumberFormat::f16;
  uint32_t k_elems = 0;
  uint32_t k_bytes = 0;  // of one row
  bool negate = false;
};

// panel[k * stride + (row - first_row)] for rows [first_row, first_row + num_rows); first_row is a multiple of 16.
void load_k_lines(const SmemOperand& operand, const SharedView& smem, uint32_t first_row, uint32_t num_rows,
                  float* panel, uint32_t stride);
// panel[row * stride + k] for rows [0, num_rows).
void load_row_lines(const SmemOperand& operand, const SharedView& smem, uint32_t num_rows, float* panel,
                    uint32_t stride);

}  // namespace opdeck::emu
