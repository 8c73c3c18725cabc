// SPDX-License-Identifier: Apache-2.0
// Runs one cluster: its warps by turns, asynchronous work as the schedule says. Used by grid.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cta.h"
#include "warp_run.h"

namespace opdeck::emu {

enum class Turn : uint8_t {
  finished,
  ran,   // long enough: another cluster may have its turn
  stuck  // nothing happened: all its warps wait or poll, and nothing is under way that they do it for
};

class ClusterRun {
 public:
  ClusterRun(Launch& launch, uint64_t cluster_number);
  Turn run_turn();
  // What every warp waits for or polls.
  std::string waiting_report();
  bool polls() const;

 private:
  void add_to_profile();
  bool run_round();
  uint64_t slice_instructions();
  void shuffle();
  bool run_slice(WarpRun& run, uint64_t budget);
  bool grant_failures();
  bool let_groups_run_ahead();
  std::string place(const Warp& warp) const;
  std::string mbarrier_text(const WaitState& wait);
  std::string parked_text(const Warp& warp) const;
  std::string waiting_text(WarpRun& run);
  std::string polling_text(WarpRun& run);

  Launch& launch_;
  Cluster cluster_;
  std::vector<WarpRun> warps_;  // that have not finished
  uint64_t ahead_epoch_ = 0;
};

}  // namespace opdeck::emu
