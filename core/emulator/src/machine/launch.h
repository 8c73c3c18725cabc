// SPDX-License-Identifier: Apache-2.0
// One kernel launch: what all its warps share, and what the warps of one thread do. Run by grid.cpp.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../hazard/global.h"
#include "async.h"
#include "global_memory.h"
#include "opdeck_emu.h"
#include "program.h"

namespace opdeck::emu {

struct LaunchShape {
  static constexpr uint32_t kMaxThreads = 1024, kMaxClusterCtas = 16;  // of a CTA, of a cluster
  std::array<uint32_t, 3> grid{1, 1, 1}, block{1, 1, 1}, cluster{1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;

  uint32_t num_threads() const { return block[0] * block[1] * block[2]; }
  uint32_t num_warps() const { return (num_threads() + 31) / 32; }
  uint32_t ctas_per_cluster() const { return cluster[0] * cluster[1] * cluster[2]; }
};

struct LaunchCounters {
  uint64_t num_ctas = 0;
  uint64_t warp_instructions = 0;
  uint64_t mma_macs = 0;
  uint64_t tma_load_bytes = 0;
  uint64_t tma_store_bytes = 0;
  uint64_t hb_fingerprint = 0;

  void add(const LaunchCounters& other);
};

// Clusters that have not started. Taken by the threads of a grid, and by clusterlaunchcontrol.
class ClusterQueue {
 public:
  explicit ClusterQueue(uint64_t count) : count_(count) {}
  // The number of the next one; nothing when all have been taken.
  std::optional<uint64_t> take() {
    const uint64_t taken = next_.fetch_add(1, std::memory_order_relaxed);
    return taken < count_ ? std::optional(taken) : std::nullopt;
  }
  bool empty() const { return next_.load(std::memory_order_relaxed) >= count_; }
  uint64_t count() const { return count_; }

 private:
  std::atomic<uint64_t> next_ = 0;
  const uint64_t count_;
};

class LaunchProfile;

// One launch of a kernel. Made by src/driver.
struct Grid {
  Grid(const Program& kernel, const LaunchShape& launch_shape, GlobalMemory& global_memory,
       const opdeck_emu_options& launch_options);

  // Runs the kernel to its end; throws EmulatorError.
  void run();
  // The coordinates of a cluster among the clusters.
  std::array<uint32_t, 3> cluster_index(uint64_t cluster_number) const;

  const Program& program;
  const LaunchShape shape;
  GlobalMemory& memory;
  const opdeck_emu_options options;
  std::vector<uint8_t> parameters;
  // What a warp's register file starts as: undefined registers and the constants.
  const std::vector<uint8_t> register_image;
  LaunchCounters counters;                        // sums, once it has run
  std::unique_ptr<GlobalHazards> global_hazards;  // where the options ask for them
  LaunchProfile* profile = nullptr;               // where the options ask for counters
  ClusterQueue clusters;
  std::atomic<uint64_t> warp_instructions = 0;  // so far, for the watchdog
};

// What the warps of one cluster share that run in one thread, under one schedule. Clusters that may communicate through
// global memory share one Launch.
struct Launch {
  Launch(Grid& whole, uint64_t seed)
      : grid(whole),
        program(whole.program),
        shape(whole.shape),
        options(whole.options),
        parameters(whole.parameters),
        memory(whole.memory),
        async(static_cast<opdeck_emu_schedule>(whole.options.schedule), seed) {}

  // Something that a blocked warp may wait for has changed.
  void signal() { ++epoch; }

  Grid& grid;
  const Program& program;
  const LaunchShape& shape;
  const opdeck_emu_options& options;
  std::vector<uint8_t>& parameters;
  GlobalView memory;
  AsyncQueue async;
  LaunchCounters counters;
  uint64_t epoch = 1;
};

}  // namespace opdeck::emu
