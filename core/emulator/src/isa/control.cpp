// SPDX-License-Identifier: Apache-2.0
// Control flow and instructions that only steer the chip: bra, brx.idx, ret, exit, trap, nanosleep, setmaxnreg,
// griddepcontrol, fences. Source: PTX ISA, "Control Flow Instructions", "Miscellaneous Instructions",
// "Parallel Synchronization and Communication Instructions: membar, fence".
// Fences order what is in order already (one warp runs at a time); launches are serial, so griddepcontrol waits for
// nothing. Hazard checks see all of these.
#include <bit>

#include "../hazard/detector.h"
#include "../machine/cta.h"
#include "decode.h"
#include "lanes.h"

namespace opdeck::emu {
namespace {

Flow nothing(Warp&, const Op&) { return Flow::next; }

// op.a is the target; the guard chooses the lanes.
Flow branch(Warp& warp, const Op& op) { return warp.branch(warp.mask, op.a); }
void decode_bra(Decoding& d) {
  d.take("uni");
  d.require_operands(1);
  d.op.a = d.label(0);
  d.op.execute = &branch;
}

// brx.idx: lanes with the lowest index go first; the others come back to the instruction for their own target.
Flow branch_indexed(Warp& warp, const Op& op) {
  const auto& targets = *static_cast<const std::vector<uint32_t>*>(op.detail);
  const uint32_t* const index = warp.row<uint32_t>(op.a);
  const uint32_t chosen = index[std::countr_zero(warp.mask)];
  if (chosen >= targets.size())
    throw EmulatorError(Fault::illegal_instruction, "brx.idx index " + std::to_string(chosen) + " of " +
                                                        std::to_string(targets.size()) + " targets");
  uint32_t taken = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) { taken |= static_cast<uint32_t>(index[lane] == chosen) << lane; });
  const uint32_t others = warp.lanes & ~taken;
  if (others != 0) warp.parked.push_back({warp.pc, others});
  warp.lanes = taken;
  warp.pc = targets[chosen];
  return Flow::jump;
}
void decode_brx(Decoding& d) {
  d.take("uni");
  d.require_operands(2);
  if (d.instruction.has_guard) d.unsupported("a guard");
  d.op.a = d.source(0, 32);
  std::vector<uint32_t> targets;
  for (const ptx::Operand& item : d.operand(1).items) {
    if (item.kind != ptx::Operand::Kind::label) d.malformed("'" + item.name + "' is not a label");
    targets.push_back(static_cast<uint32_t>(item.value));
  }
  if (targets.empty()) d.malformed("the second operand is no .branchtargets table");
  d.op.detail = d.keep(std::move(targets));
  d.op.execute = &branch_indexed;
}

void decode_exit(Decoding& d) {
  d.take("uni");
  d.require_operands(0);
  d.op.execute = +[](Warp&, const Op&) { return Flow::exited; };
}

void decode_trap(Decoding& d) {
  d.require_operands(0);
  d.op.execute = +[](Warp&, const Op&) -> Flow { throw EmulatorError(Fault::illegal_instruction, "trap"); };
}

void decode_nanosleep(Decoding& d) {
  d.take_type_of({Type::u32});
  d.require_operands(1);
  d.op.a = d.source(0, 32);
  d.op.execute = &nothing;
}

void decode_pmevent(Decoding& d) {
  d.take("mask");
  d.op.execute = &nothing;
}

// The register counts of a CTA's warps after setmaxnreg must fit the register file (Cta::check_register_counts). That all
// warps of a warpgroup run the same one is asked for by the hazard detector.
Flow set_max_registers(Warp& warp, const Op& op) {
  if (!warp.aligned()) return Flow::blocked;
  warp.max_registers = static_cast<uint32_t>(op.immediate);
  return Flow::next;
}
void decode_setmaxnreg(Decoding& d) {
  d.take_one_of({"inc", "dec"}, "direction");
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
  d.take_type_of({Type::u32});
  d.require_operands(1);
  d.op.immediate = d.immediate(0);
  if (d.op.immediate < 24 || d.op.immediate > 256 || d.op.immediate % 8 != 0)
    d.malformed("the register count must be a multiple of 8 in 24 .. 256");
  d.op.execute = &set_max_registers;
}

void decode_griddepcontrol(Decoding& d) {
  d.take_one_of({"launch_dependents", "wait"}, "action");
  d.require_operands(0);
  d.op.execute = &nothing;
}

template <void (ClusterHazards::*tell)(Warp&)>
Flow fence(Warp& warp, const Op&) {
  if (ClusterHazards* hazards = hazards_of(warp)) (hazards->*tell)(warp);
  return Flow::next;
}
constexpr Execute fence_async_proxy = &fence<&ClusterHazards::fence_async_proxy>;
constexpr Execute fence_memory = &fence<&ClusterHazards::fence_memory>;

void decode_membar(Decoding& d) {
  d.op.execute = &nothing;
  if (!d.take("proxy")) {
    d.context.program.clusters_communicate |= d.take_one_of({"cta", "gl", "sys", "gpu"}, "level") != 0;
    d.op.execute = fence_memory;
  } else if (d.take_one_of({"alias", "async", "async.global"}, "proxy") == 1) {
    d.op.execute = fence_async_proxy;
  }
}

// fence.proxy.tensormap::generic makes a map written by the kernel visible. Maps are read when they are used, so only the
// hazard checks see it.
Flow acquire_tensor_map(Warp& warp, const Op& op) {
  ClusterHazards* const hazards = hazards_of(warp);
  if (hazards == nullptr) return Flow::next;
  const uint64_t* const base = warp.row<uint64_t>(op.a);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    hazards->acquire_tensor_map(warp, base[lane] + static_cast<uint64_t>(op.immediate));
  });
  return Flow::next;
}
void decode_tensor_map_fence(Decoding& d) {
  const bool acquires = d.take_one_of({"acquire", "release"}, "ordering") == 0;
  d.context.program.clusters_communicate |= d.take_one_of({"cta", "cluster", "gpu", "sys"}, "scope") >= 2;
  d.op.execute = &fence<&ClusterHazards::release_tensor_maps>;
  d.require_operands(acquires ? 2 : 0);
  if (!acquires) return;
  const AddressOperand address = d.address(size_t{0});
  if (address.bits != 64) d.malformed("a generic address needs 64 bits");
  if (d.immediate(1) != 128) d.malformed("size " + std::to_string(d.immediate(1)) + ", 128 wanted");
  d.op.a = address.row;
  d.op.immediate = address.offset;
  d.op.execute = &acquire_tensor_map;
}

void decode_proxy_fence(Decoding& d) {
  if (d.take("alias")) return;
  if (d.take("async")) {
    if (!d.take("global")) d.op.execute = fence_async_proxy;
    d.take("shared::cta") || d.take("shared::cluster");
    return;
  }
  if (d.take("tensormap::generic")) return decode_tensor_map_fence(d);
  if (d.take("async::generic")) {
    d.take_one_of({"acquire", "release"}, "ordering");
    d.take("sync_restrict::shared::cluster") || d.take("sync_restrict::shared::cta");
    d.context.program.clusters_communicate |= d.take_one_of({"cta", "cluster", "gpu", "sys"}, "scope") >= 2;
    return;
  }
  d.unsupported("proxy ." + std::string(d.next_modifier()));
}
void decode_fence(Decoding& d) {
  d.op.execute = &nothing;
  if (d.take("proxy")) return decode_proxy_fence(d);
  if (d.take("mbarrier_init")) {
    d.take_one_of({"release"}, "ordering");
    d.take_one_of({"cluster"}, "scope");
    d.op.execute = &fence<&ClusterHazards::fence_mbarrier_init>;
    return;
  }
  d.op.execute = fence_memory;
  d.take("sc") || d.take("acq_rel") || d.take("acquire") || d.take("release");
  d.take("sync_restrict::shared::cluster") || d.take("sync_restrict::shared::cta");
  d.context.program.clusters_communicate |= d.take_one_of({"cta", "cluster", "gpu", "sys"}, "scope") >= 2;
}

}  // namespace

void add_control_instructions(InstructionTable& table) {
  table["bra"] = {decode_bra, manual::kControlFlow};
  table["brx.idx"] = {decode_brx, manual::kControlFlow};
  table["ret"] = {decode_exit, manual::kControlFlow};
  table["exit"] = {decode_exit, manual::kControlFlow};
  table["trap"] = {decode_trap, manual::kMiscellaneous};
  table["brkpt"] = {decode_trap, manual::kMiscellaneous};
  table["pmevent"] = {decode_pmevent, manual::kMiscellaneous};
  table["nanosleep"] = {decode_nanosleep, manual::kMiscellaneous};
  table["setmaxnreg"] = {decode_setmaxnreg, manual::kMiscellaneous};
  table["griddepcontrol"] = {decode_griddepcontrol,
                             manual::kSynchronization};
  table["membar"] = {decode_membar, manual::kSynchronization};
  table["fence"] = {decode_fence, manual::kSynchronization};
}

}  // namespace opdeck::emu
