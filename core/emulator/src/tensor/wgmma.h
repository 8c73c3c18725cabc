// SPDX-License-Identifier: Apache-2.0
// wgmma.mma_async of sm_90a: m64nNk{8,16,32}, A from registers or shared memory, D in registers.
// Called by src/isa: plan_wgmma at issue, execute_wgmma when the schedule completes it. Source: PTX ISA,
// "wgmma.mma_async" and "Register fragments and shared memory matrix layouts".
// Limits: dense only. How sums are formed and rounded is given in aligned_gemm.h.
#pragma once

#include <cstdint>

#include "numbers.h"
#include "outcome.h"
#include "smem_desc.h"
#include "umma.h"

namespace opdeck::emu {

struct WgmmaOperands {
  NumberFormat a_format = NumberFormat::f16, b_format = NumberFormat::f16;
  Accumulator accumulator = Accumulator::f32;
  uint32_t n_cols = 0;
  bool scale_d = true;                         // false: D is not read
  bool negate_a = false, negate_b = false;     // imm-scale -1
  bool saturate = false;                       // .satfinite of s32
  Major a_major = Major::k, b_major = Major::k;  // imm-trans 1 = MN-major
  bool a_in_registers = false;
  uint64_t a_descriptor = 0, b_descriptor = 0;
};

struct WgmmaPlan {
  WgmmaOperands operands;
  SmemDescriptor a_smem, b_smem;
  uint32_t k_elems = 0;
  uint32_t num_d_registers = 0;  // a thread: n/2 for f32 and s32, n/4 for f16
  uint32_t num_a_registers = 0;  // a thread: 4, where A is in registers

  uint64_t num_macs() const { return uint64_t{64} * operands.n_cols * k_elems; }
};

Expected<WgmmaPlan> plan_wgmma(const WgmmaOperands& operands, uint32_t smem_bytes);

// a_registers (NULL where A is in shared memory) and d_registers are tables of
// [warp_in_group * num_x_registers + register] -> 32 consecutive words, one a lane.
void execute_wgmma(const WgmmaPlan& plan, const SharedView& smem, const uint32_t* const* a_registers,
                   uint32_t* const* d_registers);

struct MatrixCoord {
  uint32_t row, col;
};

// D (f32, s32): register r of thread t (0 .. 127) holds element (row, col). f16: register r holds (row, col) in its low
// and (row, col + 1) in its high half.
constexpr MatrixCoord wgmma_d_coord(uint32_t thread_idx, uint32_t register_idx) {
  const uint32_t lane = thread_idx % 32;
  return {thread_idx / 32 * 16 + lane / 4 + register_idx / 2 % 2 * 8,
          register_idx / 4 * 8 + lane % 4 * 2 + register_idx % 2};
}
constexpr MatrixCoord wgmma_d_f16_coord(uint32_t thread_idx, uint32_t register_idx) {
  const uint32_t lane = thread_idx % 32;
  return {thread_idx / 32 * 16 + lane / 4 + register_idx % 2 * 8, register_idx / 2 * 8 + lane % 4 * 2};
}
// A: the first element in the low bits of register r (0 .. 3); a register holds 4 / elem_bytes neighbours along K.
constexpr MatrixCoord wgmma_a_coord(uint32_t thread_idx, uint32_t register_idx, uint32_t elem_bytes) {
  const uint32_t lane = thread_idx % 32, per_register = 4 / elem_bytes;
  return {thread_idx / 32 * 16 + lane / 4 + register_idx % 2 * 8, (lane % 4 + register_idx / 2 * 4) * per_register};
}

}  // namespace opdeck::emu
