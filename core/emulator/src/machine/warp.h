// SPDX-License-Identifier: Apache-2.0
// A warp: 32 lanes, a register file of rows, and a program counter for each group of lanes.
//
// Lanes that diverge become groups with a program counter each. The group with the lowest counter runs until it meets
// another one (they merge) or passes it; a group that is blocked holds the others back, as the convergence barriers
// that ptxas inserts do, unless nothing else in the cluster can go on (then the others run ahead). So code that needs
// forward progress of single lanes works, and code that needs convergence says so: an operation that names other lanes
// (.sync with a member mask, .aligned) waits until they stand at the same place.
#pragma once

#include <array>
#include <deque>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../counters/tally.h"
#include "program.h"

namespace opdeck::emu {

class Cta;
struct Launch;
struct BulkGroups;

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

struct LaneGroup {
  uint32_t pc = 0;
  uint32_t lanes = 0;
  bool operator==(const LaneGroup&) const = default;
};

// Why an operation returned Flow::blocked.
enum class WaitKind : uint8_t {
  none,
  mbarrier,
  named_barrier,
  cluster_barrier,
  bulk_group,
  convergence,
  tensor_memory,
  wgmma,
  wgmma_group,
  try_again
};

struct WaitState {
  WaitKind kind = WaitKind::none;
  uint32_t pc = 0;
  uint64_t epoch = 0;    // of the launch when it blocked: nothing has changed while it is the same
  uint32_t address = 0;  // mbarrier: shared address; named barrier: its index
  uint32_t parity = 0;
  bool may_fail = false;  // a try_wait that has not failed since the last change: it may return false
  bool permit = false;    // ... and shall do so now
};

class Warp {
 public:
  Warp(Cta& cta, uint32_t warp_idx, uint32_t num_lanes);
  ~Warp();
  Warp(Warp&&) noexcept;

  template <class T>
  T* row(uint32_t offset) {
    return reinterpret_cast<T*>(registers.get() + offset);
  }
  uint32_t& predicate(uint32_t offset) { return *row<uint32_t>(offset); }

  // Runs at most `budget` instructions; returns how many completed.
  uint64_t run(uint64_t budget);
  bool finished() const { return lanes == 0 && parked.empty(); }
  uint32_t live_lanes() const { return existing_lanes & ~exited_lanes; }
  // Blocks (returns false) until all of `required` that have not exited stand at this operation. Throws when a guard
  // keeps one of them from executing it.
  bool converged(uint32_t required);
  // The same of all lanes, for .aligned operations. Throws when lanes exit instead of coming; those that had exited
  // before are missed by none but by aligned(), which all lanes of the warp must execute.
  bool aligned_but_exited();
  bool aligned();
  // A wait of this operation, to be told in the deadlock report.
  Flow block(WaitKind kind, uint32_t address = 0, uint32_t parity = 0, bool may_fail = false);
  // Sends the lanes in `taken` to `target`; the rest of the current group goes on.
  Flow branch(uint32_t taken, uint32_t target);
  // Whether this try_wait, whose phase is not complete, shall return false instead of blocking: because the scheduler
  // has nothing else to do, or by chance under the random schedule; once for each change of state, so that a loop
  // around it which can never end is recognised as a deadlock.
  bool try_wait_fails();
  uint8_t* local_memory(uint32_t lane);

  Cta& cta;
  Launch& launch;
  const uint32_t warp_idx;
  const uint32_t existing_lanes;
  std::unique_ptr<uint8_t[]> registers;
  uint32_t mask = 0;   // lanes that execute the current operation
  uint32_t lanes = 0;  // the current group
  uint32_t pc = 0;
  uint32_t exited_lanes = 0;
  std::vector<LaneGroup> parked;  // the other groups
  WaitState wait;
  bool run_ahead = false;      // groups behind a blocked one may go on
  uint32_t max_registers = 0;  // of the last setmaxnreg
  // Barriers at which this warp has arrived already and now waits.
  uint32_t pending_tmem_stores = 0;  // tcgen05.st that have not written yet
  uint64_t barrier_ticket = 0;
  bool barrier_arrived = false;
  uint64_t cluster_ticket = 0;
  bool cluster_arrived = false;
  uint64_t wgmma_ticket = 0;
  bool wgmma_arrived = false;
  std::deque<uint64_t> wgmma_groups;  // of each group not retired: how many wgmmas of the warpgroup were issued at its end
  std::unique_ptr<BulkGroups> bulk_groups;
  std::unique_ptr<WarpTally> tally;  // where the launch keeps counters

 private:
  void fill_special_rows();
  void after_control_flow();
  void switch_group();
  bool select_group(bool desperate);

  bool has_failed_here() const;

  // The .aligned operation at which lanes wait for the others, and those that had exited when the first came to it.
  uint32_t awaited_pc_ = UINT32_MAX, exited_before_wait_ = 0;
  std::vector<uint32_t> failed_pcs_;  // try_waits that have returned false in failed_epoch_
  uint64_t failed_epoch_ = 0;
  bool coming_to_blocked_ = false;  // a group above a blocked one was chosen to run
  uint32_t merge_pc_ = UINT32_MAX;  // the next higher counter of a parked group
  std::vector<uint8_t> local_;
};

// The register file that every warp of a kernel starts with, special registers left out.
std::vector<uint8_t> make_register_image(const Program& program);

}  // namespace opdeck::emu
