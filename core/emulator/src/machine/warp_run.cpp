// SPDX-License-Identifier: Apache-2.0
#include "warp_run.h"

#include <algorithm>
#include <cstring>

#include "../isa/effects.h"
#include "launch.h"

namespace opdeck::emu {
namespace {

// A search takes longer for each instruction than a run does, so it gets a small part of them, up to a limit.
constexpr uint64_t kSearchShare = 16, kMaxSearchInstructions = 4096;
constexpr uint64_t kPatienceGrowth = 4;

}  // namespace

uint64_t WarpRun::run(uint64_t budget) {
  if (polls()) return go_round();
  if (busy_instructions_ >= patience_) {
    busy_instructions_ = 0;
    return find_period();
  }
  const uint64_t completed = warp_->run(budget);
  busy_instructions_ = completed < budget ? 0 : busy_instructions_ + completed;
  return completed;
}

// Brent's search: the state is compared with an earlier one, which is replaced after 1, 2, 4, ... instructions.
uint64_t WarpRun::find_period() {
  const uint64_t limit = std::min(patience_ / kSearchShare, kMaxSearchInstructions);
  patience_ *= kPatienceGrowth;
  uint64_t completed = 0;
  for (uint64_t longest = 1; completed < limit; longest *= 2) {
    keep_state();
    for (uint64_t length = 1; length <= longest; ++length) {
      if (!step(completed)) return completed;
      if (!is_as_kept()) continue;
      period_ = length;
      patience_ = kFirstPatience;
      return completed;
    }
  }
  return completed;
}

uint64_t WarpRun::go_round() {
  uint64_t completed = 0;
  const uint64_t length = period_;
  period_ = 0;
  while (completed < length)
    if (!step(completed)) return completed;
  if (is_as_kept()) period_ = length;
  return completed;
}

// One instruction, counted in `completed`; false when it, or the one to come instead of it, changes something or waits.
bool WarpRun::step(uint64_t& completed) {
  if (warp_->finished() || !next_is_repeatable()) return false;
  const uint64_t epoch_before = warp_->launch.epoch, num_done = warp_->run(1);
  completed += num_done;
  return num_done == 1 && warp_->launch.epoch == epoch_before;
}

// The group that Warp::run takes.
LaneGroup WarpRun::next_group() const {
  LaneGroup next{warp_->pc, warp_->lanes};
  if (warp_->run_ahead) return next;
  for (const LaneGroup& group : warp_->parked)
    if (group.pc < next.pc || next.lanes == 0) next = group;
  for (const LaneGroup& group : warp_->parked)
    if (group.pc == next.pc) next.lanes |= group.lanes;
  return next;
}

bool WarpRun::next_is_repeatable() const {
  const LaneGroup next = next_group();
  const Program& program = warp_->launch.program;
  const Op& op = program.ops[next.pc];
  if ((next.lanes & (warp_->predicate(op.guard) ^ op.guard_flip)) == 0) return true;
  const Effect effect = program.effects[next.pc];
  return effect == Effect::none || (effect == Effect::may_wait && warp_->parked.empty());
}

void WarpRun::keep_state() {
  const uint8_t* const registers = warp_->registers.get();
  kept_.pc = warp_->pc;
  kept_.lanes = warp_->lanes;
  kept_.parked = warp_->parked;
  kept_.registers.assign(registers, registers + warp_->launch.program.register_file_bytes);
}

bool WarpRun::is_as_kept() const {
  return warp_->pc == kept_.pc && warp_->lanes == kept_.lanes &&
         warp_->parked == kept_.parked &&
         std::memcmp(warp_->registers.get(), kept_.registers.data(), kept_.registers.size()) == 0;
}

std::vector<uint32_t> WarpRun::polling_ops() {
  std::vector<uint32_t> found;
  uint64_t completed = 0;
  while (completed < period_) {
    const uint32_t op_idx = next_group().pc;
    if (!step(completed)) break;
    if (looks_at_memory(warp_->launch.program.places[op_idx].text)) found.push_back(op_idx);
  }
  return found;
}

}  // namespace opdeck::emu
