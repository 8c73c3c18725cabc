// SPDX-License-Identifier: Apache-2.0
// The counters of a launch. It runs a copy of the program whose operations count themselves, so a launch without
// counters pays nothing for them. Made by driver.cpp; warps are added as their clusters finish.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "../machine/program.h"
#include "opdeck_emu.h"
#include "tally.h"

namespace opdeck::emu {

// The rows of a session, and the texts that they point to.
struct ProfileRows {
  std::vector<opdeck_emu_profile_row> rows;
  std::unordered_set<std::string> texts;
};

class LaunchProfile {
 public:
  explicit LaunchProfile(const Program& program);

  const Program& program() const { return program_; }
  Execute execute_of(uint32_t pc) const { return executes_[pc]; }
  std::unique_ptr<WarpTally> new_tally() const;
  // From any thread.
  void add(uint32_t warp_idx, const WarpTally& tally);
  void append_to(ProfileRows& rows, uint32_t launch_idx) const;

 private:
  Program program_;
  std::vector<Execute> executes_;  // the program's own, by op
  std::mutex mutex_;
  std::vector<WarpTally> by_warp_;  // by index in the CTA, summed over CTAs
};

}  // namespace opdeck::emu
