// SPDX-License-Identifier: Apache-2.0
// Tensor memory: tcgen05.alloc, dealloc, relinquish_alloc_permit, ld, ld.red, st, wait, fence, cp.
// Source: PTX ISA, "TensorCore 5th Generation Family Instructions". Shapes: tensor/tmem_layout.h.
// A load reads when it issues (a register read before wait::ld is a dependency that ptxas tracks); a store writes when
// the schedule completes it, at the latest at wait::st; a copy is in order with the MMAs of its CTA (pair).
// Limits: tcgen05.shift is not supported.
#include <algorithm>
#include <bit>
#include <cmath>

#include "../counters/count.h"
#include "../hazard/detector.h"
#include "../tensor/tmem_layout.h"
#include "async_copy.h"
#include "lanes.h"
#include "tensor_pipe.h"

namespace opdeck::emu {
namespace {

uint32_t first_lane(const Warp& warp) { return static_cast<uint32_t>(std::countr_zero(warp.mask)); }

void require_allocated(const Cta& cta, uint32_t address, uint32_t num_columns) {
  cta.require_tmem("", tmem_column(address), num_columns);
}

uint32_t allocation_columns(uint32_t num_columns) {
  if (num_columns >= 32 && num_columns <= TmemView::num_columns && std::has_single_bit(num_columns)) return num_columns;
  throw EmulatorError(Fault::illegal_instruction, "allocation of " + std::to_string(num_columns) +
                                                      " columns: a power of two in 32 .. 512 is wanted");
}

Flow allocate(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  TmemAllocator& allocator = warp.cta.tmem_allocator;
  if (allocator.permit_relinquished)
    throw EmulatorError(Fault::illegal_instruction, "tcgen05.alloc after tcgen05.relinquish_alloc_permit");
  const uint32_t lane = first_lane(warp);
  const uint32_t num_columns = uniform<uint32_t>(warp, op.b, "column counts");
  const int32_t column = allocator.allocate(allocation_columns(num_columns));
  if (column < 0) return warp.block(WaitKind::tensor_memory);
  const uint64_t address = lane_address(warp, op, lane, op.c == 32);
  check_alignment(address, 4);
  const uint64_t shared = op.c == 64 && space_of(address) == Space::shared ? address - kSharedWindow : address;
  *reinterpret_cast<uint32_t*>(memory_pointer(warp, lane, {MemorySpace::shared_cta, shared, 4, Access::write})) =
      static_cast<uint32_t>(column);
  if (ClusterHazards* hazards = hazards_of(warp))
    hazards->allocate_tmem(warp, static_cast<uint32_t>(column), num_columns);
  return Flow::next;
}

Flow deallocate(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const uint32_t address = uniform<uint32_t>(warp, op.a, "tensor memory addresses");
  const uint32_t num_columns = allocation_columns(uniform<uint32_t>(warp, op.b, "column counts"));
  if (tmem_lane(address) != 0 || !warp.cta.tmem_allocator.release(tmem_column(address), num_columns))
    throw EmulatorError(Fault::illegal_instruction, "no allocation of " + std::to_string(num_columns) +
                                                        " columns starts at tensor memory column " +
                                                        std::to_string(tmem_column(address)));
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->deallocate_tmem(warp, tmem_column(address), num_columns);
  warp.launch.signal();
  return Flow::next;
}

Flow relinquish(Warp& warp, const Op&) {
  if (!warp.aligned()) return Flow::blocked;
  warp.cta.tmem_allocator.permit_relinquished = true;
  return Flow::next;
}

void take_aligned(Decoding& d) {
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
}
void take_group(Decoding& d) { d.take_one_of({"cta_group::1", "cta_group::2"}, "group"); }

void decode_alloc(Decoding& d) {
  require_tcgen05(d);
  take_group(d);
  take_aligned(d);
  d.take("shared::cta");
  d.take_type_of({Type::b32});
  d.require_operands(2);
  const AddressOperand address = d.address(size_t{0});
  d.op.a = address.row;
  d.op.immediate = address.offset;
  d.op.c = address.bits;
  d.op.b = d.source(1, 32);
  d.op.execute = &allocate;
}
void decode_dealloc(Decoding& d) {
  require_tcgen05(d);
  take_group(d);
  take_aligned(d);
  d.take_type_of({Type::b32});
  d.require_operands(2);
  d.op.a = d.source(0, 32);
  d.op.b = d.source(1, 32);
  d.op.execute = &deallocate;
}
void decode_relinquish(Decoding& d) {
  require_tcgen05(d);
  take_group(d);
  take_aligned(d);
  d.require_operands(0);
  d.op.execute = &relinquish;
}

struct AccessDetail {
  TmemAccess access;
  AddressOperand address;
  std::vector<uint32_t> rows;
  uint64_t num_bytes() const { return uint64_t{4} * kWarpLanes * rows.size(); }
  bool reduces = false;
  bool max = false, abs = false, nan = false;
  uint32_t reduced_row = 0;
};

uint32_t checked_address(Warp& warp, const AccessDetail& detail) {
  const uint32_t address = shared_operand(warp, detail.address, first_lane(warp));
  for_each_lane(warp.mask, [&](uint32_t lane) {
    if (shared_operand(warp, detail.address, lane) != address)
      throw EmulatorError(Fault::illegal_instruction, "the lanes give different tensor memory addresses");
  });
  const Error error = check_tmem_access(detail.access, address, warp.warp_idx);
  if (!error.empty()) throw EmulatorError(Fault::illegal_address, error);
  for (const uint32_t column : tmem_first_columns(detail.access))
    warp.cta.require_tmem("", tmem_column(address) + column, tmem_num_columns(detail.access));
  return address;
}

// ld.red: the smallest or largest of a thread's loaded values.
void reduce_rows(Warp& warp, const AccessDetail& detail) {
  float* const dst = warp.row<float>(detail.reduced_row);
  for (uint32_t lane = 0; lane < kWarpLanes; ++lane) {
    float result = NAN;
    bool saw_nan = false;
    for (const uint32_t row : detail.rows) {
      const float v = detail.abs ? std::fabs(warp.row<float>(row)[lane]) : warp.row<float>(row)[lane];
      saw_nan |= v != v;
      if (v == v && (result != result || (detail.max ? v > result : v < result))) result = v;
    }
    if (result != result || (detail.nan && saw_nan)) result = std::bit_cast<float>(0x7fffffffu);
    dst[lane] = result;
  }
}

Flow load(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const auto& detail = *static_cast<const AccessDetail*>(op.detail);
  const uint32_t address = checked_address(warp, detail);
  std::vector<uint32_t*> registers;
  registers.reserve(detail.rows.size());
  for (const uint32_t row : detail.rows) registers.push_back(warp.row<uint32_t>(row));
  if (OpTally* tally = tally_of(warp)) tally->tmem_read_bytes += detail.num_bytes();
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->load_tmem(warp, detail.access, address);
  tmem_load(warp.cta.tmem_view(), detail.access, address, registers.data());
  if (detail.reduces) reduce_rows(warp, detail);
  return Flow::next;
}

Flow store(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  const auto& detail = *static_cast<const AccessDetail*>(op.detail);
  const uint32_t address = checked_address(warp, detail);
  const size_t num_registers = detail.rows.size();
  auto values = std::make_shared<std::vector<uint32_t>>(num_registers * kWarpLanes);
  for (size_t i = 0; i < num_registers; ++i)
    std::copy_n(warp.row<uint32_t>(detail.rows[i]), kWarpLanes, values->data() + i * kWarpLanes);
  if (OpTally* tally = tally_of(warp)) tally->tmem_write_bytes += detail.num_bytes();
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->store_tmem(warp, detail.access, address);
  ++warp.pending_tmem_stores;
  Launch& launch = warp.launch;
  submit_async(warp, &warp, [&warp, &launch, &detail, values, address, num_registers] {
    std::vector<const uint32_t*> registers;
    registers.reserve(num_registers);
    for (size_t i = 0; i < num_registers; ++i) registers.push_back(values->data() + i * kWarpLanes);
    tmem_store(warp.cta.tmem_view(), detail.access, address, registers.data());
    --warp.pending_tmem_stores;
    launch.signal();
  });
  return Flow::next;
}

TmemAccess take_access(Decoding& d) {
  TmemAccess access;
  access.shape = static_cast<TmemShape>(d.take_one_of({"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"}, "shape"));
  access.num_repeats = 1u << d.take_one_of({"x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"}, "repetition");
  return access;
}

void finish_access(Decoding& d, AccessDetail detail, Execute execute) {
  if (detail.rows.size() != tmem_num_registers(detail.access))
    d.malformed(std::to_string(detail.rows.size()) + " registers, " +
                std::to_string(tmem_num_registers(detail.access)) + " wanted");
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = execute;
}

void decode_ld(Decoding& d) {
  require_tcgen05(d);
  AccessDetail detail;
  detail.reduces = d.take("red");
  if (detail.reduces) d.require_target({Target::sm_103a});
  take_aligned(d);
  detail.access = take_access(d);
  if (detail.reduces) {
    detail.max = d.take_one_of({"min", "max"}, "operation") == 1;
    detail.abs = d.take("abs");
    detail.nan = d.take("NaN");
    d.take_type_of({Type::f32});
  } else {
    if (d.take("pack::16b")) detail.access.packing = TmemPacking::packed16;
    d.take_type_of({Type::b32});
  }
  const bool split = detail.access.shape == TmemShape::x16x32bx2;
  const size_t address_at = detail.reduces ? 2 : 1;
  d.require_operands(address_at + 1 + split);
  detail.rows = d.destination_list(d.operand(0), 32);
  if (detail.reduces) detail.reduced_row = d.destination(1, 32);
  detail.address = d.address(address_at);
  if (split) detail.access.half_split_offset = static_cast<uint32_t>(d.immediate(address_at + 1));
  finish_access(d, std::move(detail), &load);
}

void decode_st(Decoding& d) {
  require_tcgen05(d);
  AccessDetail detail;
  take_aligned(d);
  detail.access = take_access(d);
  if (d.take("unpack::16b")) detail.access.packing = TmemPacking::packed16;
  d.take_type_of({Type::b32});
  const bool split = detail.access.shape == TmemShape::x16x32bx2;
  d.require_operands(2u + split);
  detail.address = d.address(size_t{0});
  if (split) detail.access.half_split_offset = static_cast<uint32_t>(d.immediate(1));
  detail.rows = d.source_list(d.operand(1u + split), 32);
  finish_access(d, std::move(detail), &store);
}

Flow wait_loads(Warp& warp, const Op&) {
  if (!warp.aligned()) return Flow::blocked;
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->wait_tmem_loads(warp);
  return Flow::next;
}
void decode_wait_ld(Decoding& d) {
  require_tcgen05(d);
  take_aligned(d);
  d.require_operands(0);
  d.op.execute = &wait_loads;
}
Flow wait_stores(Warp& warp, const Op&) {
  if (!warp.aligned()) return Flow::blocked;
  if (warp.pending_tmem_stores != 0) return warp.block(WaitKind::tensor_memory);
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->wait_tmem_stores(warp);
  return Flow::next;
}
void decode_wait_st(Decoding& d) {
  require_tcgen05(d);
  take_aligned(d);
  d.require_operands(0);
  d.op.execute = &wait_stores;
}

template <void (ClusterHazards::*tell)(Warp&)>
Flow fence(Warp& warp, const Op&) {
  if (ClusterHazards* hazards = hazards_of(warp)) (hazards->*tell)(warp);
  return Flow::next;
}
template <void (ClusterHazards::*tell)(Warp&)>
void decode_fence(Decoding& d) {
  require_tcgen05(d);
  d.require_operands(0);
  d.op.execute = &fence<tell>;
}

struct CopyDetail {
  TmemCopy copy;
  AddressOperand address;
  uint32_t num_ctas = 1;
};

Flow copy_from_shared(Warp& warp, const Op& op) {
  const auto& detail = *static_cast<const CopyDetail*>(op.detail);
  const uint32_t lane = single_lane(warp);
  TmemCopy copy = detail.copy;
  copy.source_descriptor = warp.row<uint64_t>(op.b)[lane];
  copy.address = shared_operand(warp, detail.address, lane);
  const TensorPair pair = tensor_pair(warp, detail.num_ctas);
  for (uint32_t i = 0; i < detail.num_ctas; ++i) {
    const Error error = check_tmem_copy(copy, warp.launch.program.target, pair.ctas[i]->shared_bytes());
    if (!error.empty()) throw EmulatorError(Fault::illegal_instruction, error);
    require_allocated(*pair.ctas[i], copy.address, tmem_copy_extent(copy).num_columns);
  }
  if (OpTally* tally = tally_of(warp)) {
    const TmemCopyExtent extent = tmem_copy_extent(copy);
    tally->shared_read_bytes += uint64_t{detail.num_ctas} * extent.num_rows * extent.row_bytes;
    const uint32_t num_lanes = extent.num_rows < kWarpLanes ? extent.num_rows : TmemView::num_lanes;  // with multicast
    tally->tmem_write_bytes += uint64_t{4} * detail.num_ctas * extent.num_columns * num_lanes;
  }
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->copy_to_tmem(warp, pair.ctas, copy);
  Launch& launch = warp.launch;
  const uint32_t num_ctas = detail.num_ctas;
  submit_async(warp, pair.stream(), [pair, copy, num_ctas, &launch] {
    for (uint32_t i = 0; i < num_ctas; ++i)
      execute_tmem_copy(copy, pair.ctas[i]->shared_view(), pair.ctas[i]->tmem_view());
    launch.signal();
  });
  return Flow::next;
}

void decode_cp(Decoding& d) {
  require_tcgen05(d);
  CopyDetail detail;
  detail.num_ctas = take_cta_group(d);
  const size_t shape = d.take_one_of({"128x256b", "4x256b", "128x128b", "64x128b", "32x128b"}, "shape");
  detail.copy.shape = static_cast<TmemCopyShape>(shape);
  if (shape == 3)
    detail.copy.shape = d.take_one_of({"warpx2::02_13", "warpx2::01_23"}, "multicast") == 0
                            ? TmemCopyShape::x64x128b_warpx2_02_13
                            : TmemCopyShape::x64x128b_warpx2_01_23;
  if (shape == 4) {
    d.take_one_of({"warpx4"}, "multicast");
    detail.copy.shape = TmemCopyShape::x32x128b_warpx4;
  }
  if (d.take("b8x16"))
    detail.copy.decompression = d.take_one_of({"b6x16_p32", "b4x16_p64"}, "source format") == 0
                                    ? TmemDecompression::b6x16_p32
                                    : TmemDecompression::b4x16_p64;
  d.require_operands(2);
  detail.address = d.address(size_t{0});
  d.op.b = d.source(1, 64);
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &copy_from_shared;
}

}  // namespace

void add_tmem_instructions(InstructionTable& table) {
  table["tcgen05.alloc"] = {decode_alloc, manual::kTensorCore5};
  table["tcgen05.dealloc"] = {decode_dealloc, manual::kTensorCore5};
  table["tcgen05.relinquish_alloc_permit"] = {decode_relinquish, manual::kTensorCore5};
  table["tcgen05.ld"] = {decode_ld, manual::kTensorCore5};
  table["tcgen05.st"] = {decode_st, manual::kTensorCore5};
  table["tcgen05.wait::ld"] = {decode_wait_ld, manual::kTensorCore5};
  table["tcgen05.wait::st"] = {decode_wait_st, manual::kTensorCore5};
  table["tcgen05.fence::before_thread_sync"] = {decode_fence<&ClusterHazards::fence_before_thread_sync>,
                                                manual::kTensorCore5};
  table["tcgen05.fence::after_thread_sync"] = {decode_fence<&ClusterHazards::fence_after_thread_sync>,
                                               manual::kTensorCore5};
  table["tcgen05.cp"] = {decode_cp, manual::kTensorCore5};
}

}  // namespace opdeck::emu
