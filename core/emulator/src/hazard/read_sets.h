// SPDX-License-Identifier: Apache-2.0
// The reads of a granule of memory since its last write that are not ordered among themselves: a later write must come
// after each of them. A granule has none, one, which it holds itself, or the number of a set. Granules with the same reads
// share a set, so a box that many CTAs read costs one set for each of them, whatever its size. Used by shadow.cpp and
// global.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "agent.h"

namespace opdeck::emu {

// Read: Touch, or GlobalTouch (global.h).
template <class Read>
class ReadSets {
 public:
  // Adds a read to a granule's. is_after(earlier): it comes after that one, which is then left out.
  template <class IsAfter>
  void add(Read& reads, const Read& read, IsAfter&& is_after) {
    const auto replaces = [&](const Read& earlier) {  // a strong read does not race with a strong write
      return is_after(earlier) && (!read.site.has(Site::kStrong) || earlier.site.has(Site::kStrong));
    };
    if (reads.epoch.empty() || (!reads.is_set() && replaces(reads))) {
      reads = read;
    } else if (reads == last_from_ && read == last_read_) {  // mostly: its neighbour had the same
      move(reads, last_to_);
    } else {
      const Read from = reads;
      const Read to = extended(from, read, replaces);
      move(reads, to);
      last_from_ = from;
      last_read_ = read;
      last_to_ = to;
    }
  }
  // The first of a granule's reads that matches; NULL where none does.
  template <class Matches>
  const Read* find(const Read& reads, Matches&& matches) const {
    if (reads.epoch.empty()) return nullptr;
    if (!reads.is_set()) return matches(reads) ? &reads : nullptr;
    for (const Read& read : sets_[reads.set_idx()].reads)
      if (matches(read)) return &read;
    return nullptr;
  }
  void drop(Read& reads) { move(reads, Read()); }

 private:
  struct Set {
    std::vector<Read> reads;
    uint32_t num_granules = 0;
  };

  template <class Replaces>
  Read extended(const Read& from, const Read& read, Replaces&& replaces) {
    std::vector<Read> reads;
    for (const Read& earlier : from.is_set() ? sets_[from.set_idx()].reads : std::vector<Read>{from}) {
      if (replaces(earlier)) continue;
      if (earlier.is_of_moment(read)) return from;  // a weak one, which says more
      reads.push_back(earlier);
    }
    if (reads.empty()) return read;
    reads.push_back(read);
    if (free_sets_.empty()) {
      free_sets_.push_back(static_cast<uint32_t>(sets_.size()));
      sets_.emplace_back();
    }
    const Read to = Read::of_set(free_sets_.back());
    free_sets_.pop_back();
    sets_[to.set_idx()].reads = std::move(reads);
    return to;
  }

  void move(Read& reads, const Read to) {
    if (to.is_set()) ++sets_[to.set_idx()].num_granules;
    const Read from = std::exchange(reads, to);
    if (!from.is_set() || --sets_[from.set_idx()].num_granules != 0) return;
    free_sets_.push_back(from.set_idx());
    if (from == last_from_ || from == last_to_) last_from_ = last_to_ = Read();
  }

  std::vector<Set> sets_;
  std::vector<uint32_t> free_sets_;
  Read last_from_, last_read_, last_to_;
};

}  // namespace opdeck::emu
