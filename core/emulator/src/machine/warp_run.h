// SPDX-License-Identifier: Apache-2.0
// Runs one warp by slices, and recognises that it only polls. Used by scheduler.cpp.
//
// A warp polls when it comes back to a state that it had before (groups of lanes, program counters, registers), and all
// that it executed in between was repeatable (isa/effects.h): it changed nothing, so it goes round until somebody else
// changes what it reads. To the scheduler it waits. From then on a slice is one round, which shows whether it still does.
// Limits: a round of more than 2048 instructions is not found, nor one that counts or reads a clock.
#pragma once

#include <cstdint>
#include <vector>

#include "warp.h"

namespace opdeck::emu {

class WarpRun {
 public:
  explicit WarpRun(Warp& warp) : warp_(&warp) {}
  Warp& warp() { return *warp_; }
  const Warp& warp() const { return *warp_; }
  // Runs at most `budget` instructions, or as many as it takes to find out; returns how many completed.
  uint64_t run(uint64_t budget);
  bool polls() const { return period_ != 0; }
  // The instructions with which it looks for a change, by their op indices.
  std::vector<uint32_t> polling_ops();

 private:
  struct State {
    uint32_t pc = 0, lanes = 0;
    std::vector<LaneGroup> parked;
    std::vector<uint8_t> registers;
  };
  uint64_t find_period();
  uint64_t go_round();
  bool step(uint64_t& completed);
  LaneGroup next_group() const;
  bool next_is_repeatable() const;
  void keep_state();
  bool is_as_kept() const;

  static constexpr uint64_t kFirstPatience = 1024;
  Warp* warp_;
  uint64_t busy_instructions_ = 0;       // since it last blocked
  uint64_t patience_ = kFirstPatience;   // how many of these before it is looked at; more each time in vain
  uint64_t period_ = 0;                  // instructions of a round; 0 while it is not known to poll
  State kept_;
};

}  // namespace opdeck::emu
