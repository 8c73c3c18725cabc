// SPDX-License-Identifier: Apache-2.0
// CTAs and clusters: shared memory, tensor memory, barriers. All CTAs of a cluster are resident together.
// Made by scheduler.cpp; used by the instructions (src/isa) through the accessors here, which check every address.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../tensor/wgmma.h"
#include "address_space.h"
#include "launch.h"
#include "mbarrier.h"
#include "warp.h"

namespace opdeck::emu {

class Cluster;
class ClusterHazards;

struct NamedBarrier {
  uint32_t expected_threads = 0;  // of the generation in progress; 0 before the first arrival
  uint32_t arrived_threads = 0;
  uint64_t generation = 0;
  bool counts_live_threads = false;  // no thread count given: all threads that have not exited
};

// The rendezvous of the four warps of a warpgroup at one wgmma.mma_async.
struct WarpgroupMeeting {
  uint32_t pc = 0;
  uint32_t arrived_warps = 0;
  uint64_t generation = 0;     // how many wgmmas were issued
  uint64_t num_completed = 0;  // ... and have written their registers
};

// tcgen05.alloc: columns in blocks of 32.
class TmemAllocator {
 public:
  static constexpr uint32_t kBlockColumns = 32;
  static constexpr uint32_t kNumBlocks = TmemView::num_columns / kBlockColumns;
  // First column, or -1 when there is no room.
  int32_t allocate(uint32_t num_columns);
  bool release(uint32_t first_column, uint32_t num_columns);
  bool is_allocated(uint32_t first_column, uint32_t num_columns) const { return all(used_, first_column, num_columns); }
  // Now or earlier.
  bool was_allocated(uint32_t first_column, uint32_t num_columns) const {
    return all(ever_used_, first_column, num_columns);
  }
  uint32_t num_allocated_columns() const;
  bool permit_relinquished = false;

 private:
  using Blocks = std::array<bool, kNumBlocks>;
  static bool all(const Blocks& blocks, uint32_t first_column, uint32_t num_columns);

  std::array<uint32_t, kNumBlocks> length_blocks_{};  // at the first block of an allocation
  Blocks used_{}, ever_used_{};
};

class Cta {
 public:
  Cta(Cluster& cluster, uint32_t rank, std::array<uint32_t, 3> index);

  uint8_t* shared() { return shared_.data(); }
  uint32_t shared_bytes() const { return static_cast<uint32_t>(shared_.size()); }
  SharedView shared_view() const { return {shared_.data(), static_cast<uint32_t>(shared_.size())}; }
  TmemView tmem_view() { return {tmem_words()}; }
  // Stops a use of columns that were never allocated. Of columns that were given back it is a hazard: the data is there.
  void require_tmem(const std::string& who, uint32_t first_column, uint32_t num_columns) const;
  bool finished() const;
  uint32_t live_threads() const;
  uint32_t num_threads() const;
  // Counts a warp's arrival; true when it completes the barrier's generation.
  bool arrive_named_barrier(uint32_t barrier_idx, uint32_t num_threads, uint32_t expected_threads);
  void on_lanes_exit();

  Cluster& cluster;
  Launch& launch;
  const uint32_t rank;  // in the cluster
  const std::array<uint32_t, 3> index;
  std::vector<Warp> warps;
  std::array<NamedBarrier, 16> named_barriers;
  std::array<WarpgroupMeeting, 8> warpgroups;
  TmemAllocator tmem_allocator;
  std::vector<bool> has_mbarrier;  // by shared offset / 8: where one lives

 private:
  uint32_t* tmem_words();
  void check_clean_exit() const;
  void check_register_counts() const;
  std::vector<uint8_t> shared_;
  std::vector<uint32_t> tmem_;  // made at first use
};

class Cluster {
 public:
  Cluster(Launch& launch, std::array<uint32_t, 3> index);
  ~Cluster();

  uint32_t num_ctas() const { return static_cast<uint32_t>(ctas.size()); }
  bool finished() const;
  // The CTA that a shared address names and the host pointer of `num_bytes` there; throws when it is outside.
  uint8_t* shared_pointer(uint32_t address, uint32_t num_bytes);
  Cta& cta_of(uint32_t address);
  void on_lanes_exit();

  // mbarrier operations at a shared address. Each may complete a phase.
  uint64_t init_mbarrier(uint32_t address, uint32_t count);
  void invalidate_mbarrier(uint32_t address);
  Mbarrier read_mbarrier(uint32_t address);
  // Returns the state before (the token of mbarrier.arrive).
  uint64_t arrive_mbarrier(uint32_t address, uint32_t count, int32_t expect_bytes);
  void add_mbarrier_arrival(uint32_t address);               // one more is pending in this phase
  void expect_mbarrier_tx(uint32_t address, int32_t bytes);  // negative: complete_tx
  uint64_t arrive_drop_mbarrier(uint32_t address, uint32_t count, int32_t expect_bytes);

  // barrier.cluster
  void arrive_cluster_barrier(uint32_t num_threads);
  uint64_t cluster_generation = 0;

  Launch& launch;
  const std::array<uint32_t, 3> index;
  std::vector<std::unique_ptr<Cta>> ctas;
  std::unique_ptr<ClusterHazards> hazards;  // where the options ask for them

 private:
  uint8_t* mbarrier_pointer(uint32_t address, bool must_be_live);
  void update_mbarrier(uint8_t* pointer, Mbarrier barrier);
  void complete_cluster_barrier_if_done();
  uint32_t cluster_arrived_threads_ = 0;
};

}  // namespace opdeck::emu
