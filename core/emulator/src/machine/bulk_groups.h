// SPDX-License-Identifier: Apache-2.0
// The bulk async-groups of a warp's lanes. Used by cp.async, cp.async.bulk and their commit_group and wait_group.
// Source: PTX ISA, "Data Movement and Conversion Instructions: Bulk copy", "async-group".
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "warp.h"

namespace opdeck::emu {

struct BulkGroup {
  uint32_t pending_reads = 0;   // copies whose source may still be read
  uint32_t pending_writes = 0;  // copies whose result is not written yet
};

// What of a group a wait is for.
enum class GroupPhase : uint8_t { source_read, complete };

class GroupQueue {
 public:
  // The group that the next copy joins.
  std::shared_ptr<BulkGroup> open() {
    if (!open_) open_ = std::make_shared<BulkGroup>();
    return open_;
  }
  void commit() {
    committed_.push_back(open());
    open_.reset();
  }
  // Whether all but the newest `num_allowed` committed groups have reached the phase; forgets finished ones.
  bool done(uint32_t num_allowed, GroupPhase phase) {
    while (!committed_.empty() && committed_.front()->pending_writes == 0 && committed_.front()->pending_reads == 0)
      committed_.pop_front();
    const size_t num_waited = committed_.size() > num_allowed ? committed_.size() - num_allowed : 0;
    for (size_t i = 0; i < num_waited; ++i) {
      const BulkGroup& group = *committed_[i];
      if (group.pending_reads != 0 || (phase == GroupPhase::complete && group.pending_writes != 0)) return false;
    }
    return true;
  }

 private:
  std::shared_ptr<BulkGroup> open_;
  std::deque<std::shared_ptr<BulkGroup>> committed_;
};

// The cp.async of a lane between two cp.async.mbarrier.arrive.
struct CopyBatch {
  uint32_t pending = 0;           // copies, and one for the batch before
  std::function<void()> on_done;  // of a batch that has its arrival
  void finish_one() {
    if (--pending == 0 && on_done) on_done();
  }
};

struct BulkGroups {
  std::array<GroupQueue, kWarpLanes> bulk;                     // cp.async.bulk
  std::array<GroupQueue, kWarpLanes> per_thread;               // cp.async
  std::array<std::shared_ptr<CopyBatch>, kWarpLanes> batches;  // the open ones of cp.async

  const std::shared_ptr<CopyBatch>& open_batch(uint32_t lane) {
    if (!batches[lane]) batches[lane] = std::make_shared<CopyBatch>();
    return batches[lane];
  }

  static BulkGroups& of(Warp& warp) {
    if (!warp.bulk_groups) warp.bulk_groups = std::make_unique<BulkGroups>();
    return *warp.bulk_groups;
  }
};

}  // namespace opdeck::emu
