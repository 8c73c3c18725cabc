// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"

#include "../machine/error.h"

namespace opdeck::emu {

Conflict::Why Shadow::against_write(const ShadowCell& cell, const Actor& actor) const {
  if (cell.write_site.has(Site::kMbarrier) && !actor.site.has(Site::kMbarrier)) return Conflict::Why::mbarrier;
  if (cell.write_site.has(Site::kStrong) && actor.site.has(Site::kStrong)) return Conflict::Why::none;
  if (!actor.is_after(cell.write)) return Conflict::Why::unordered;
  if (actor.async_proxy && agents_[cell.write.agent()].is_generic() && !actor.knows->fenced.covers(cell.write))
    return Conflict::Why::unfenced;
  return Conflict::Why::none;
}

Conflict Shadow::read(size_t first, size_t count, const Actor& actor) {
  Epoch passed;  // neighbours mostly have the same writer: it is looked at once
  for (size_t i = first; i < first + count; ++i) {
    ShadowCell& cell = cells_[i];
    if (cell.write.empty()) return {Conflict::Why::uninitialized, i, {}, {}, true};
    if (cell.write != passed || cell.write_site.has(Site::kMbarrier | Site::kStrong)) {
      const Conflict::Why why = against_write(cell, actor);
      if (why != Conflict::Why::none) return {why, i, cell.write, cell.write_site, true};
      if (!cell.write_site.has(Site::kStrong)) passed = cell.write;
    }
    if (cell.read != actor.now) add_read(cell, actor);
    else if (!actor.site.has(Site::kStrong)) cell.read_site = actor.site;
  }
  return {};
}

Conflict Shadow::write(size_t first, size_t count, const Actor& actor) {
  Epoch passed_write, passed_read;
  for (size_t i = first; i < first + count; ++i) {
    ShadowCell& cell = cells_[i];
    if (!cell.write.empty() && (cell.write != passed_write || cell.write_site.has(Site::kMbarrier | Site::kStrong))) {
      const Conflict::Why why = against_write(cell, actor);
      if (why != Conflict::Why::none) return {why, i, cell.write, cell.write_site, true};
      if (!cell.write_site.has(Site::kStrong)) passed_write = cell.write;
    }
    if (!cell.read.empty()) {
      if (cell.read != passed_read || cell.read_site.has(Site::kStrong)) {
        if (Conflict conflict = against_reads(cell, actor)) {
          conflict.cell_idx = i;
          return conflict;
        }
        if (!cell.read_site.has(Site::kStrong)) passed_read = cell.read;
      }
      drop_reads(cell);
    }
    cell.write = actor.now;
    cell.write_site = actor.site;
  }
  return {};
}

void Shadow::add_read(ShadowCell& cell, const Actor& actor) {
  if (cell.read.empty() || (cell.read.agent() != Epoch::kReadSet && actor.is_after(cell.read))) {
    cell.read = actor.now;
    cell.read_site = actor.site;
    return;
  }
  if (cell.read.agent() != Epoch::kReadSet) {
    if (free_read_sets_.empty()) {
      if (read_sets_.size() > Epoch::kMaxTime)
        throw EmulatorError(Fault::failed, "hazard checks: too many unordered reads of one memory");
      free_read_sets_.push_back(static_cast<uint32_t>(read_sets_.size()));
      read_sets_.emplace_back();
    }
    const uint32_t set_idx = free_read_sets_.back();
    free_read_sets_.pop_back();
    read_sets_[set_idx].assign(1, {cell.read, cell.read_site});
    cell.read = Epoch(Epoch::kReadSet, set_idx);
  }
  std::vector<Read>& reads = read_sets_[cell.read.time()];
  std::erase_if(reads, [&](const Read& read) { return read.epoch == actor.now || actor.is_after(read.epoch); });
  reads.push_back({actor.now, actor.site});
  cell.read_site = actor.site;
}

Conflict Shadow::against_reads(const ShadowCell& cell, const Actor& actor) const {
  const auto race = [&](Epoch epoch, Site site) {
    return !(site.has(Site::kStrong) && actor.site.has(Site::kStrong)) && !actor.is_after(epoch);
  };
  if (cell.read.agent() != Epoch::kReadSet) {
    if (!race(cell.read, cell.read_site)) return {};
    return {Conflict::Why::unordered, 0, cell.read, cell.read_site, false};
  }
  for (const Read& read : read_sets_[cell.read.time()])
    if (race(read.epoch, read.site)) return {Conflict::Why::unordered, 0, read.epoch, read.site, false};
  return {};
}

void Shadow::drop_reads(ShadowCell& cell) {
  if (cell.read.agent() == Epoch::kReadSet) free_read_sets_.push_back(cell.read.time());
  cell.read = Epoch();
}

void Shadow::forget(size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) {
    drop_reads(cells_[i]);
    cells_[i] = ShadowCell();
  }
}

}  // namespace opdeck::emu
