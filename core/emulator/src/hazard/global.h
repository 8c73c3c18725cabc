// SPDX-License-Identifier: Apache-2.0
// Shadow of global memory over one launch: the last write of each granule and the reads since (read_sets.h), and the flags
// (atomics, volatile, relaxed, acquire, release) through which CTAs synchronise. Owned by machine/launch.h; used by
// global_access.cpp.
// Within a cluster, accesses are ordered by its agents' clocks. A cluster as a whole is ordered after another when it
// acquired a flag that the other one had released. Every strong read acquires and every strong write releases.
// Limits: accesses after the release of a flag count as released with it.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "read_sets.h"

namespace opdeck::emu {

class ClusterSet {
 public:
  bool has(uint32_t cluster) const { return cluster / 64 < words_.size() && (words_[cluster / 64] >> cluster % 64 & 1) != 0; }
  void add(uint32_t cluster) {
    if (cluster / 64 >= words_.size()) words_.resize(cluster / 64 + 1, 0);
    words_[cluster / 64] |= uint64_t{1} << cluster % 64;
  }
  void join(const ClusterSet& other) {
    if (other.words_.size() > words_.size()) words_.resize(other.words_.size(), 0);
    for (size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  }

 private:
  std::vector<uint64_t> words_;
};

// An access of global memory. Agents and times are those of its cluster.
struct GlobalTouch {
  Epoch epoch;
  Site site;
  uint32_t cluster = 0;     // of a set of reads, its number
  uint32_t elem_bytes = 0;  // of a store by threads; 0: another access

  static GlobalTouch of_set(uint32_t set_idx) { return {Epoch(Epoch::kReadSet, 0), {}, set_idx, 0}; }
  bool is_set() const { return epoch.agent() == Epoch::kReadSet; }
  uint32_t set_idx() const { return cluster; }
  bool is_of_moment(const GlobalTouch& other) const { return epoch == other.epoch && cluster == other.cluster; }
  bool operator==(const GlobalTouch&) const = default;
};

struct GlobalCell {
  GlobalTouch write, read;
};

// What an access covers. stored: what a store by threads will write there, in elements of elem_bytes; NULL: another access.
struct GlobalRange {
  uint64_t address = 0, num_bytes = 0;
  const uint8_t* stored = nullptr;
  uint32_t elem_bytes = 0;
};

// What a flag passes on: all that the last cluster to release it knew, and the clusters ordered before.
struct GlobalFlag {
  static constexpr uint32_t kNobody = UINT32_MAX;
  uint32_t cluster = kNobody;
  Knowledge knows;
  ClusterSet clusters;
};

class GlobalHazards {
 public:
  explicit GlobalHazards(uint32_t granule_bytes) : granule_bytes_(granule_bytes) {}

  uint32_t add_cluster(std::array<uint32_t, 3> first_cta) {
    first_ctas_.push_back(first_cta);
    return static_cast<uint32_t>(first_ctas_.size() - 1);
  }
  const std::array<uint32_t, 3>& first_cta(uint32_t cluster) const { return first_ctas_[cluster]; }
  GlobalFlag& flag(uint64_t address) { return flags_[address / 4]; }
  ReadSets<GlobalTouch>& reads() { return reads_; }
  // Of what a cluster's agents have done, that which they have released to the tensormap proxy.
  VectorClock& released_maps(uint32_t cluster) { return released_maps_[cluster]; }
  uint32_t granule_bytes() const { return granule_bytes_; }

  // visit(cell, address) for each granule of the range.
  template <class Visit>
  void for_each_cell(const GlobalRange& range, Visit&& visit) {
    const uint64_t end = (range.address + range.num_bytes - 1) / granule_bytes_ + 1;
    for (uint64_t i = range.address / granule_bytes_; i < end; ++i)
      visit(page(i / kPageCells)[i % kPageCells], i * granule_bytes_);
  }

 private:
  static constexpr uint64_t kPageCells = 1024;
  using Page = std::array<GlobalCell, kPageCells>;
  Page& page(uint64_t idx) {
    if (idx == last_idx_ && last_ != nullptr) return *last_;
    std::unique_ptr<Page>& found = pages_[idx];
    if (!found) found = std::make_unique<Page>();
    last_idx_ = idx;
    last_ = found.get();
    return *last_;
  }

  uint32_t granule_bytes_;
  std::vector<std::array<uint32_t, 3>> first_ctas_;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages_;
  std::unordered_map<uint64_t, GlobalFlag> flags_;
  ReadSets<GlobalTouch> reads_;
  std::unordered_map<uint32_t, VectorClock> released_maps_;  // by cluster
  uint64_t last_idx_ = 0;
  Page* last_ = nullptr;
};

}  // namespace opdeck::emu
