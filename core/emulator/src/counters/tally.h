// SPDX-License-Identifier: Apache-2.0
// What one warp's executions of one instruction amount to. Kept only where a launch asks for counters: each warp has
// its own, so that warps may run on different threads, and profile.h sums them.
#pragma once

#include <cstdint>
#include <vector>

namespace opdeck::emu {

struct OpTally {
  uint64_t completed = 0;
  uint64_t blocked = 0;      // tries that had to wait; they depend on the schedule
  uint64_t false_polls = 0;  // completed waits that said no
  uint64_t macs = 0;
  uint64_t global_read_bytes = 0, global_write_bytes = 0;
  uint64_t shared_read_bytes = 0, shared_write_bytes = 0;
  uint64_t remote_shared_bytes = 0;  // those of the two above that are another CTA's
  uint64_t shared_wavefronts = 0, extra_wavefronts = 0;
  uint64_t tmem_read_bytes = 0, tmem_write_bytes = 0;

  void add(const OpTally& other);
};

struct WarpTally {
  std::vector<OpTally> ops;  // by op of the program
  uint64_t passed = 0;       // instructions that the warp went past, those whose guard was false in all lanes included
};

}  // namespace opdeck::emu
