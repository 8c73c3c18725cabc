// SPDX-License-Identifier: Apache-2.0
// What the asynchronous instructions share: submitting work that reports its place, and signals at completion.
// Used by bulk_copy.cpp, tensor_copy.cpp, umma.cpp.
#pragma once

#include <functional>
#include <string>

#include "../hazard/detector.h"
#include "../machine/bulk_groups.h"
#include "memory_access.h"

namespace opdeck::emu {

// Queues `work`; an error in it names the instruction that issued it.
void submit_async(Warp& warp, AsyncQueue::Stream stream, std::function<void()> work);

// Multiples that bulk copies need.
void require_multiple(const char* what, uint64_t value, uint64_t of);

// Counts a copy of shared memory into a bulk group: `source` reads (phase one), `write` then writes what was read.
// Either may be delayed; the group counts what is outstanding.
void submit_group_copy(Warp& warp, GroupQueue& queue, std::function<void()> read_source, std::function<void()> write);

// What a load passes on to the mbarrier of each CTA that it signals; empty without hazard checks.
using LoadSignals = std::array<Signal, Site::kMaxRanks>;

// complete_tx of a bulk copy.
void complete_tx(Cluster& cluster, uint32_t mbarrier, uint32_t num_bytes, const Signal& signal);

}  // namespace opdeck::emu
