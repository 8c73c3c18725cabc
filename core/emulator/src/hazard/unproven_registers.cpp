// SPDX-License-Identifier: Apache-2.0
#include "unproven_registers.h"

#include "../isa/assigned_registers.h"
#include "../machine/error.h"
#include "detector.h"

namespace opdeck::emu {
namespace {

// A followed guard may be undefined, so the lanes that it names mean nothing until it has been looked at: such an
// operation's own guard is always true, and it is applied here.
bool apply_guard(Warp& warp, const RegisterFollower& follower) {
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->use_registers(warp, follower.guards, warp.lanes);
  warp.mask = warp.lanes & (warp.predicate(follower.guard_row) ^ follower.guard_flip);
  return warp.mask != 0;
}

Flow follow_and_execute(Warp& warp, const Op& op) {
  const Program& program = warp.launch.program;
  const RegisterFollower& follower = program.followers[program.follower_of[warp.pc]];
  if (!follower.guards.empty() && !apply_guard(warp, follower)) return Flow::next;
  ClusterHazards* const hazards = hazards_of(warp);
  if (hazards == nullptr) return follower.execute(warp, op);
  const uint32_t lanes = warp.mask;
  hazards->use_registers(warp, follower.used, lanes);
  const Flow flow = follower.execute(warp, op);
  if (flow == Flow::next) hazards->write_registers(warp, follower.written, follower.copied, lanes);
  return flow;
}

// The places of followed registers in the list that a warp keeps.
class Places {
 public:
  Places(Program& program, const ptx::Kernel& kernel, const std::vector<bool>& followed)
      : places_(kernel.registers.size(), kNone) {
    for (uint32_t reg = 0; reg < followed.size(); ++reg) {
      if (!followed[reg]) continue;
      places_[reg] = static_cast<uint32_t>(program.followed_registers.size());
      program.followed_registers.push_back(kernel.registers[reg].name);
    }
  }
  // Of those that are followed.
  std::vector<uint32_t> of(const std::vector<uint32_t>& registers) const {
    std::vector<uint32_t> result;
    for (const uint32_t reg : registers)
      if (places_[reg] != kNone) result.push_back(places_[reg]);
    return result;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> places_;
};

}  // namespace

void ClusterHazards::use_registers(Warp& warp, const std::vector<uint32_t>& registers, uint32_t lanes) const {
  const std::vector<uint32_t>& written = warps_[warp.cta.rank * num_warps_ + warp.warp_idx].written_registers;
  for (const uint32_t place : registers)
    if (const uint32_t missing = lanes & ~written[place]; missing != 0)
      fail("uninitialized-register",
           "lanes " + hex(missing) + " read " + launch_.program.followed_registers[place] + " and have not written it");
}

void ClusterHazards::use_accumulators(Warp& warp) const {
  const Program& program = launch_.program;
  if (program.follower_of.empty() || program.follower_of[warp.pc] == Program::kNoFollower) return;
  use_registers(warp, program.followers[program.follower_of[warp.pc]].accumulators, warp.mask);
}

void ClusterHazards::write_registers(Warp& warp, const std::vector<uint32_t>& registers,
                                     const std::vector<uint32_t>& copied, uint32_t lanes) {
  std::vector<uint32_t>& written = state(warp).written_registers;
  uint32_t defined = lanes;
  for (const uint32_t place : copied) defined &= written[place];
  for (const uint32_t place : registers) written[place] = (written[place] & ~lanes) | defined;
}

void mark_unproven_registers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses) {
  const UnprovenRegisters unproven = find_unproven_registers(kernel, uses);
  const Places places(program, kernel, unproven.followed);
  if (program.followed_registers.empty()) return;
  program.follower_of.assign(program.ops.size(), Program::kNoFollower);
  std::vector<UnprovenUse> by_instruction(kernel.instructions.size());
  for (const UnprovenUse& use : unproven.uses) by_instruction[use.instruction] = use;
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    const ptx::Instruction& instruction = kernel.instructions[i];
    Op& op = program.ops[i];
    RegisterFollower follower{op.execute, op.guard, op.guard_flip, {}, {}, {}, {}, {}};
    for (const uint32_t reg : by_instruction[i].used) {
      const bool is_guard = instruction.has_guard && reg == instruction.guard_reg;
      for (const uint32_t place : places.of({reg})) (is_guard ? follower.guards : follower.used).push_back(place);
    }
    follower.written = places.of(uses[i].writes);
    follower.accumulators = places.of(by_instruction[i].accumulators);
    follower.copied = places.of(by_instruction[i].copied);
    if (follower.guards.empty() && follower.used.empty() && follower.written.empty()) continue;
    if (!follower.guards.empty()) {
      op.guard = program.always_row;
      op.guard_flip = 0;
    }
    op.execute = &follow_and_execute;
    program.follower_of[i] = static_cast<uint32_t>(program.followers.size());
    program.followers.push_back(std::move(follower));
  }
}

}  // namespace opdeck::emu
