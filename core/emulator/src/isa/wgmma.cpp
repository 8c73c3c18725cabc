// SPDX-License-Identifier: Apache-2.0
// wgmma of sm_90a: mma_async, fence, commit_group, wait_group. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions". The arithmetic and the fragments: tensor/wgmma.h.
// The four warps of a warpgroup meet at a wgmma.mma_async, which is issued when the last arrives. It reads and writes its
// registers and shared memory when the schedule completes it, at the latest at the wait_group that retires its group.
// Limits: .sp and the b1 forms are not supported.
#include "../tensor/wgmma.h"

#include <bit>

#include "../counters/count.h"
#include "../hazard/detector.h"
#include "async_copy.h"
#include "lanes.h"
#include "memory_access.h"

namespace opdeck::emu {
namespace {

struct WgmmaDetail {
  WgmmaOperands operands;  // all but the descriptors and scale_d
  std::vector<uint32_t> d_rows, a_rows;
  uint32_t a_descriptor_row = 0, b_descriptor_row = 0;
  uint32_t scale_row = 0, scale_flip = 0;
};

bool adds_to_accumulators(Warp& warp, const WgmmaDetail& detail) {
  const uint32_t lanes = (warp.predicate(detail.scale_row) ^ detail.scale_flip) & warp.mask;
  if (lanes != 0 && lanes != warp.mask)
    throw EmulatorError(Fault::illegal_instruction, "the lanes give different scale-d: true in lanes " + hex(lanes));
  return lanes != 0;
}

// All operands of one warp; the four must agree.
WgmmaOperands read_operands(Warp& warp, const WgmmaDetail& detail) {
  WgmmaOperands operands = detail.operands;
  operands.scale_d = adds_to_accumulators(warp, detail);
  operands.b_descriptor = uniform<uint64_t>(warp, detail.b_descriptor_row, "descriptors of B");
  if (!operands.a_in_registers)
    operands.a_descriptor = uniform<uint64_t>(warp, detail.a_descriptor_row, "descriptors of A");
  return operands;
}

void check_agreement(const WgmmaOperands& mine, const Warp& me, const WgmmaOperands& theirs, const Warp& other) {
  const char* const what = mine.scale_d != theirs.scale_d             ? "scale-d"
                           : mine.a_descriptor != theirs.a_descriptor ? "descriptors of A"
                           : mine.b_descriptor != theirs.b_descriptor ? "descriptors of B"
                                                                      : nullptr;
  if (what != nullptr)
    throw EmulatorError(Fault::illegal_instruction, "warps " + std::to_string(me.warp_idx) + " and " +
                                                        std::to_string(other.warp_idx) +
                                                        " of a warpgroup give different " + what);
}

// A quarter to each warp. Bytes: the 64 rows of A, where they are in shared memory, and the columns of B.
void count_mma(OpTally& tally, const WgmmaPlan& plan) {
  constexpr uint64_t kRowBytes = 32;  // K elements of any type
  const uint64_t rows = plan.operands.n_cols + (plan.operands.a_in_registers ? 0 : 64);
  tally.macs += plan.num_macs() / 4;
  tally.shared_read_bytes += rows * kRowBytes / 4;
}

void issue(Warp& last, const WgmmaDetail& detail) {
  const uint32_t first_warp = last.warp_idx / 4 * 4;
  const WgmmaOperands operands = read_operands(last, detail);
  for (uint32_t w = first_warp; w < first_warp + 4; ++w) {
    Warp& other = last.cta.warps[w];
    check_agreement(operands, last, read_operands(other, detail), other);
  }
  Expected<WgmmaPlan> plan = plan_wgmma(operands, last.cta.shared_bytes());
  if (!plan.ok()) throw EmulatorError(Fault::illegal_instruction, plan.error);
  if (ClusterHazards* hazards = hazards_of(last)) hazards->multiply_warpgroup(last, plan.value);
  for (uint32_t w = 0; w < 4; ++w)
    if (OpTally* tally = tally_of(last.cta.warps[first_warp + w])) count_mma(*tally, plan.value);
  last.launch.counters.mma_macs += plan.value.num_macs();
  Cta& cta = last.cta;
  WarpgroupMeeting& meeting = cta.warpgroups[first_warp / 4];
  submit_async(last, &meeting, [&cta, &meeting, &detail, first_warp, plan = std::move(plan.value)] {
    std::vector<uint32_t*> d_registers;
    std::vector<const uint32_t*> a_registers;
    d_registers.reserve(4 * detail.d_rows.size());
    a_registers.reserve(4 * detail.a_rows.size());
    for (uint32_t w = 0; w < 4; ++w) {
      Warp& warp = cta.warps[first_warp + w];
      for (const uint32_t row : detail.d_rows) d_registers.push_back(warp.row<uint32_t>(row));
      for (const uint32_t row : detail.a_rows) a_registers.push_back(warp.row<uint32_t>(row));
    }
    execute_wgmma(plan, cta.shared_view(), a_registers.empty() ? nullptr : a_registers.data(), d_registers.data());
    ++meeting.num_completed;
    cta.launch.signal();
  });
}

Flow multiply(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  if (warp.warp_idx / 4 * 4 + 4 > warp.cta.warps.size() || warp.warp_idx / 4 >= warp.cta.warpgroups.size())
    throw EmulatorError(Fault::illegal_instruction, "the warp is in no complete warpgroup");
  WarpgroupMeeting& meeting = warp.cta.warpgroups[warp.warp_idx / 4];
  const auto& detail = *static_cast<const WgmmaDetail*>(op.detail);
  if (!warp.wgmma_arrived) {
    if (ClusterHazards* hazards = hazards_of(warp)) {
      hazards->check_wgmma_registers(warp);
      if (adds_to_accumulators(warp, detail)) hazards->use_accumulators(warp);
    }
    if (meeting.arrived_warps == 0) meeting.pc = warp.pc;
    if (meeting.pc != warp.pc)
      throw EmulatorError(Fault::illegal_instruction, "the warps of a warpgroup execute different wgmma instructions");
    warp.wgmma_ticket = meeting.generation;
    warp.wgmma_arrived = true;
    if (++meeting.arrived_warps == 4) {
      issue(warp, detail);
      meeting.arrived_warps = 0;
      ++meeting.generation;
      warp.launch.signal();
    }
  }
  if (meeting.generation == warp.wgmma_ticket) return warp.block(WaitKind::wgmma);
  warp.wgmma_arrived = false;
  return Flow::next;
}

void take_shape(Decoding& d, WgmmaDetail& detail, uint32_t& k_elems) {
  for (const uint32_t k : {8, 16, 32})
    for (uint32_t n = 8; n <= 256; n += 8)
      if (d.take("m64n" + std::to_string(n) + "k" + std::to_string(k))) {
        detail.operands.n_cols = n;
        k_elems = k;
        return;
      }
  d.unsupported("shape ." + std::string(d.next_modifier()));
}

NumberFormat take_operand_format(Decoding& d) {
  constexpr NumberFormat kFormats[] = {NumberFormat::f16,  NumberFormat::bf16, NumberFormat::tf32, NumberFormat::e4m3,
                                       NumberFormat::e5m2, NumberFormat::s8,   NumberFormat::u8};
  return kFormats[d.take_one_of({"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"}, "operand type")];
}

int64_t sign_immediate(Decoding& d, size_t i) {
  const int64_t value = d.immediate(i);
  if (value != 1 && value != -1) d.malformed("imm-scale must be 1 or -1");
  return value;
}
Major major_immediate(Decoding& d, size_t i) {
  const int64_t value = d.immediate(i);
  if (value != 0 && value != 1) d.malformed("imm-trans must be 0 or 1");
  return value == 1 ? Major::mn : Major::k;
}

void check_shape(Decoding& d, const WgmmaDetail& detail, uint32_t k_elems) {
  const bool is_16_bits =
      detail.operands.a_format == NumberFormat::f16 || detail.operands.a_format == NumberFormat::bf16;
  const uint32_t wanted = is_16_bits ? 16 : detail.operands.a_format == NumberFormat::tf32 ? 8 : 32;
  if (k_elems != wanted)
    d.malformed("K " + std::to_string(k_elems) + " with this operand type, " + std::to_string(wanted) + " wanted");
  const size_t num_d = detail.operands.n_cols / (detail.operands.accumulator == Accumulator::f16 ? 4 : 2);
  if (detail.d_rows.size() != num_d)
    d.malformed(std::to_string(detail.d_rows.size()) + " registers of D, " + std::to_string(num_d) + " wanted");
  if (detail.operands.a_in_registers && detail.a_rows.size() != 4) d.malformed("four registers of A are wanted");
}

void decode_mma(Decoding& d) {
  d.require_target({Target::sm_90a});
  WgmmaDetail detail;
  WgmmaOperands& operands = detail.operands;
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
  uint32_t k_elems = 0;
  take_shape(d, detail, k_elems);
  constexpr Accumulator kAccumulators[] = {Accumulator::f16, Accumulator::f32, Accumulator::s32};
  operands.accumulator = kAccumulators[d.take_one_of({"f16", "f32", "s32"}, "accumulator type")];
  operands.a_format = take_operand_format(d);
  operands.b_format = take_operand_format(d);
  const bool integer = operands.accumulator == Accumulator::s32;
  operands.saturate = d.take("satfinite");
  if (operands.saturate && !integer) d.unsupported(".satfinite of floating point");
  const bool is_16_bits = operands.a_format == NumberFormat::f16 || operands.a_format == NumberFormat::bf16;
  operands.a_in_registers = d.operand(1).kind == ptx::Operand::Kind::vector;
  detail.d_rows = d.accumulator_list(d.operand(0), 32);
  if (operands.a_in_registers)
    detail.a_rows = d.source_list(d.operand(1), 32);
  else
    detail.a_descriptor_row = d.source(1, 64);
  detail.b_descriptor_row = d.source(2, 64);
  ptx::Operand scale = d.operand(3);
  detail.scale_flip = scale.negated ? 0xffffffff : 0;
  scale.negated = false;
  detail.scale_row = d.source(scale, 1);
  const size_t num_transposes = !is_16_bits ? 0 : operands.a_in_registers ? 1 : 2;
  d.require_operands(integer ? 4 : 6 + num_transposes);
  if (!integer) {
    operands.negate_a = sign_immediate(d, 4) < 0;
    operands.negate_b = sign_immediate(d, 5) < 0;
    if (num_transposes == 2) operands.a_major = major_immediate(d, 6);
    if (num_transposes != 0) operands.b_major = major_immediate(d, 5 + num_transposes);
  }
  check_shape(d, detail, k_elems);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &multiply;
}

Flow fence(Warp& warp, const Op&) {
  if (!warp.aligned()) return Flow::blocked;
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->fence_wgmma(warp);
  return Flow::next;
}
Flow commit_group(Warp& warp, const Op&) {
  if (!warp.aligned()) return Flow::blocked;
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->commit_wgmma(warp);
  warp.wgmma_groups.push_back(warp.cta.warpgroups[warp.warp_idx / 4].generation);
  return Flow::next;
}
Flow wait_group(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const size_t num_allowed = static_cast<size_t>(op.immediate);
  std::deque<uint64_t>& groups = warp.wgmma_groups;
  if (groups.size() > num_allowed &&
      warp.cta.warpgroups[warp.warp_idx / 4].num_completed < groups[groups.size() - num_allowed - 1])
    return warp.block(WaitKind::wgmma_group);
  while (groups.size() > num_allowed) groups.pop_front();
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->wait_wgmma(warp, static_cast<uint32_t>(op.immediate));
  return Flow::next;
}

template <size_t num_operands, Execute execute>
void decode_group(Decoding& d) {
  d.require_target({Target::sm_90a});
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
  d.require_operands(num_operands);
  if (num_operands == 1) d.op.immediate = d.immediate(0);
  if (d.op.immediate < 0 || d.op.immediate > 7) d.malformed("the group count is not in 0 .. 7");
  d.op.execute = execute;
}

}  // namespace

void add_wgmma_instructions(InstructionTable& table) {
  table["wgmma.mma_async"] = {decode_mma, manual::kWarpgroupMatrix};
  table["wgmma.fence"] = {decode_group<0, fence>, manual::kWarpgroupMatrix};
  table["wgmma.commit_group"] = {decode_group<0, commit_group>, manual::kWarpgroupMatrix};
  table["wgmma.wait_group"] = {decode_group<1, wait_group>, manual::kWarpgroupMatrix};
}

}  // namespace opdeck::emu
