// SPDX-License-Identifier: Apache-2.0
// Runs one cluster: its warps by turns, asynchronous work as the schedule says. Used by grid.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cta.h"

namespace opdeck::emu {

enum class Turn : uint8_t {
  finished,
  ran,   // long enough: another cluster may have its turn
  stuck  // all its warps wait, and nothing that they wait for is under way in this cluster
};

class ClusterRun {
 public:
  ClusterRun(Launch& launch, uint64_t cluster_number);
  Turn run_turn();
  // What every warp waits for.
  std::string waiting_report();

 private:
  void add_to_profile();
  bool run_round();
  uint64_t slice_instructions();
  void shuffle();
  uint64_t run_slice(Warp& warp, uint64_t budget);
  bool grant_failures();
  bool let_groups_run_ahead();
  std::string place(const Warp& warp) const;
  std::string waiting_text(const Warp& warp);

  Launch& launch_;
  Cluster cluster_;
  std::vector<Warp*> warps_;
  uint64_t ahead_epoch_ = 0;
};

}  // namespace opdeck::emu
