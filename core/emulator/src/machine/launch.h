// SPDX-License-Identifier: Apache-2.0
// One kernel launch: what all its warps share. Made by src/driver; run by scheduler.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "../hazard/global.h"
#include "async.h"
#include "global_memory.h"
#include "opdeck_emu.h"
#include "program.h"

namespace opdeck::emu {

struct LaunchShape {
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
};

// Clusters that have not started: clusterlaunchcontrol takes from here.
struct ClusterQueue {
  uint64_t next = 0, count = 0;
};

struct Launch {
  Launch(const Program& kernel, const LaunchShape& launch_shape, GlobalMemory& global_memory,
         const opdeck_emu_options& launch_options)
      : program(kernel),
        shape(launch_shape),
        memory(global_memory),
        options(launch_options),
        async(static_cast<opdeck_emu_schedule>(launch_options.schedule), launch_options.seed) {}

  // Runs the kernel to its end; throws EmulatorError.
  void run();
  // Something that a blocked warp may wait for has changed.
  void signal() { ++epoch; }

  const Program& program;
  const LaunchShape shape;
  GlobalMemory& memory;
  const opdeck_emu_options options;
  std::vector<uint8_t> parameters;
  // What a warp's register file starts as: undefined registers and the constants.
  std::vector<uint8_t> register_image;
  AsyncQueue async;
  LaunchCounters counters;
  std::unique_ptr<GlobalHazards> global_hazards;  // where the options ask for them
  ClusterQueue clusters;
  uint64_t epoch = 1;
};

}  // namespace opdeck::emu
