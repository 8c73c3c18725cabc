// SPDX-License-Identifier: Apache-2.0
// Shadow memory: for each granule of a memory who wrote it last and who has read it since. Shared and tensor
// memory; global.h is that of global memory. Used by detector.h.
// Limits: the last reads that are not ordered among themselves are all kept, so nothing is forgotten.
#pragma once

#include <cstddef>
#include <vector>

#include "read_sets.h"

namespace opdeck::emu {

struct Conflict {
  enum class Why : uint8_t { none, unordered, equal_values, unfenced, uninitialized, mbarrier };
  Why why = Why::none;
  size_t cell_idx = 0;
  Touch other;
  bool other_writes = false;
  explicit operator bool() const { return why != Why::none; }
};

class Shadow {
 public:
  Shadow(const AgentTable& agents, size_t num_cells) : agents_(agents), cells_(num_cells) {}

  Conflict read(size_t first, size_t count, const Actor& actor);
  Conflict write(size_t first, size_t count, const Actor& actor);
  // A generic read that no proxy fence known to the actor came after.
  Conflict unfenced_read(size_t first, size_t count, const Actor& actor) const;
  // Memory that starts a new life: nothing is known of it, reading it is an error.
  void forget(size_t first, size_t count);
  ShadowCell& cell(size_t i) { return cells_[i]; }
  size_t size() const { return cells_.size(); }

 private:
  Conflict::Why against_write(const ShadowCell& cell, const Actor& actor) const;
  void add_read(ShadowCell& cell, const Actor& actor);
  const Touch* racing_read(const ShadowCell& cell, const Actor& actor) const;

  const AgentTable& agents_;
  std::vector<ShadowCell> cells_;
  ReadSets<Touch> reads_;
};

}  // namespace opdeck::emu
