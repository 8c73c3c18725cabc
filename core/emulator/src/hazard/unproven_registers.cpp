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
  if (flow == Flow::next) hazards->write_registers(warp, follower.written, lanes);
  return flow;
}

// The places of followed bytes in the list that a warp keeps.
class Places {
 public:
  Places(Program& program, const ptx::Kernel& kernel, const RegisterBytes& bytes, const std::vector<bool>& followed)
      : places_(bytes.count(), FollowedWrite::kDefined) {
    for (uint32_t reg = 0; reg < kernel.registers.size(); ++reg)
      for (uint32_t byte = bytes.first(reg); byte < bytes.end(reg); ++byte) {
        if (!followed[byte]) continue;
        places_[byte] = static_cast<uint32_t>(program.followed_bytes.size());
        program.followed_bytes.push_back(kernel.registers[reg].name);
      }
  }
  uint32_t of(uint32_t byte) const { return byte == ByteFlow::kDefined ? FollowedWrite::kDefined : places_[byte]; }
  // Of those that are followed. A source that is not is known to be written.
  std::vector<FollowedWrite> of(const std::vector<ByteFlow::Write>& writes) const {
    std::vector<FollowedWrite> result;
    for (const ByteFlow::Write& write : writes) {
      if (of(write.byte) == FollowedWrite::kDefined) continue;
      result.push_back({of(write.byte), {of(write.sources[0]), of(write.sources[1])}});
    }
    return result;
  }

 private:
  std::vector<uint32_t> places_;
};

}  // namespace

void ClusterHazards::use_registers(Warp& warp, const std::vector<uint32_t>& bytes, uint32_t lanes) const {
  const std::vector<uint32_t>& written = warps_[warp.cta.rank * num_warps_ + warp.warp_idx].written_bytes;
  for (const uint32_t place : bytes)
    if (const uint32_t missing = lanes & ~written[place]; missing != 0)
      fail("uninitialized-register", "lanes " + hex(missing) + " read " + launch_.program.followed_bytes[place] +
                                         " and have not written it, or not all that is read");
}

void ClusterHazards::use_accumulators(Warp& warp) const {
  const Program& program = launch_.program;
  if (program.follower_of.empty() || program.follower_of[warp.pc] == Program::kNoFollower) return;
  use_registers(warp, program.followers[program.follower_of[warp.pc]].accumulators, warp.mask);
}

void ClusterHazards::write_registers(Warp& warp, const std::vector<FollowedWrite>& writes, uint32_t lanes) {
  std::vector<uint32_t>& written = state(warp).written_bytes;
  std::vector<uint32_t> defined(writes.size(), lanes);  // before the first changes: what is written may be read too
  for (size_t w = 0; w < writes.size(); ++w)
    for (const uint32_t source : writes[w].sources)
      if (source != FollowedWrite::kDefined) defined[w] &= written[source];
  for (size_t w = 0; w < writes.size(); ++w)
    written[writes[w].byte] = (written[writes[w].byte] & ~lanes) | defined[w];
}

void mark_unproven_registers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses) {
  const RegisterBytes bytes(kernel);
  std::vector<ByteFlow> flows;
  for (size_t i = 0; i < kernel.instructions.size(); ++i)
    flows.push_back(find_byte_flow(bytes, kernel.instructions[i], uses[i]));
  const UnprovenBytes unproven = find_unproven_bytes(kernel, bytes, uses, flows);
  const Places places(program, kernel, bytes, unproven.followed);
  if (program.followed_bytes.empty()) return;
  program.follower_of.assign(program.ops.size(), Program::kNoFollower);
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    const ptx::Instruction& instruction = kernel.instructions[i];
    Op& op = program.ops[i];
    RegisterFollower follower{op.execute, op.guard, op.guard_flip, {}, {}, {}, {}};
    const uint32_t guard = instruction.has_guard ? bytes.first(instruction.guard_reg) : ByteFlow::kDefined;
    for (const uint32_t byte : unproven.uses[i].used)
      (byte == guard ? follower.guards : follower.used).push_back(places.of(byte));
    for (const uint32_t byte : unproven.uses[i].accumulators) follower.accumulators.push_back(places.of(byte));
    follower.written = places.of(flows[i].writes);
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
