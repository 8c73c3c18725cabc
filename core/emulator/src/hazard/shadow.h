// SPDX-License-Identifier: Apache-2.0
// Shadow memory: for each granule of a memory who wrote it last and who has read it since. One rule for shared, tensor and
// global memory. Used by detector.cpp and global.cpp.
// Limits: the last reads that are not ordered among themselves are all kept, so nothing is forgotten.
#pragma once

#include <cstddef>
#include <vector>

#include "agent.h"

namespace opdeck::emu {

struct Conflict {
  enum class Why : uint8_t { none, unordered, unfenced, uninitialized, mbarrier };
  Why why = Why::none;
  size_t cell_idx = 0;
  Epoch other;
  Site other_site;
  bool other_writes = false;
  explicit operator bool() const { return why != Why::none; }
};

class Shadow {
 public:
  Shadow(const AgentTable& agents, size_t num_cells) : agents_(agents), cells_(num_cells) {}

  Conflict read(size_t first, size_t count, const Actor& actor);
  Conflict write(size_t first, size_t count, const Actor& actor);
  // Memory that starts a new life: nothing is known of it, reading it is an error.
  void forget(size_t first, size_t count);
  ShadowCell& cell(size_t i) { return cells_[i]; }
  size_t size() const { return cells_.size(); }

 private:
  struct Read {
    Epoch epoch;
    Site site;
  };
  Conflict::Why against_write(const ShadowCell& cell, const Actor& actor) const;
  void add_read(ShadowCell& cell, const Actor& actor);
  Conflict against_reads(const ShadowCell& cell, const Actor& actor) const;
  void drop_reads(ShadowCell& cell);

  const AgentTable& agents_;
  std::vector<ShadowCell> cells_;
  std::vector<std::vector<Read>> read_sets_;
  std::vector<uint32_t> free_read_sets_;
};

}  // namespace opdeck::emu
