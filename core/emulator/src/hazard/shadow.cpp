// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"

namespace opdeck::emu {

Conflict::Why Shadow::against_write(const ShadowCell& cell, const Actor& actor) const {
  const Site& site = cell.write.site;
  if (site.has(Site::kMbarrier) && !actor.site.has(Site::kMbarrier)) return Conflict::Why::mbarrier;
  if (site.has(Site::kStrong) && actor.site.has(Site::kStrong)) return Conflict::Why::none;
  if (!actor.is_after(cell.write.epoch)) return Conflict::Why::unordered;
  if (actor.async_proxy && agents_[cell.write.epoch.agent()].is_generic() && !actor.knows->fenced.covers(cell.write.epoch))
    return Conflict::Why::unfenced;
  return Conflict::Why::none;
}

Conflict Shadow::read(size_t first, size_t count, const Actor& actor) {
  Epoch passed;  // neighbours mostly have the same writer: it is looked at once
  for (size_t i = first; i < first + count; ++i) {
    ShadowCell& cell = cells_[i];
    if (cell.write.epoch.empty()) return {Conflict::Why::uninitialized, i, {}, true};
    if (cell.write.epoch != passed || cell.write.site.has(Site::kMbarrier | Site::kStrong)) {
      const Conflict::Why why = against_write(cell, actor);
      if (why != Conflict::Why::none) return {why, i, cell.write, true};
      if (!cell.write.site.has(Site::kStrong)) passed = cell.write.epoch;
    }
    if (cell.read.epoch != actor.now) add_read(cell, actor);
    else if (!actor.site.has(Site::kStrong)) cell.read.site = actor.site;
  }
  return {};
}

Conflict Shadow::write(size_t first, size_t count, const Actor& actor) {
  Epoch passed_write, passed_read;
  for (size_t i = first; i < first + count; ++i) {
    ShadowCell& cell = cells_[i];
    const Touch& write = cell.write;
    if (!write.epoch.empty() && (write.epoch != passed_write || write.site.has(Site::kMbarrier | Site::kStrong))) {
      const Conflict::Why why = against_write(cell, actor);
      if (why != Conflict::Why::none) return {why, i, write, true};
      if (!write.site.has(Site::kStrong)) passed_write = write.epoch;
    }
    if (!cell.read.epoch.empty()) {
      if (cell.read.epoch != passed_read || cell.read.site.has(Site::kStrong)) {
        if (const Touch* read = racing_read(cell, actor)) return {Conflict::Why::unordered, i, *read, false};
        if (!cell.read.site.has(Site::kStrong)) passed_read = cell.read.epoch;
      }
      reads_.drop(cell.read);
    }
    cell.write = {actor.now, actor.site};
  }
  return {};
}

Conflict Shadow::unfenced_read(size_t first, size_t count, const Actor& actor) const {
  for (size_t i = first; i < first + count; ++i) {
    const Touch* read = reads_.find(cells_[i].read, [&](const Touch& touch) {
      return agents_[touch.epoch.agent()].is_generic() && !actor.knows->fenced.covers(touch.epoch);
    });
    if (read) return {Conflict::Why::unfenced, i, *read, false};
  }
  return {};
}

void Shadow::add_read(ShadowCell& cell, const Actor& actor) {
  reads_.add(cell.read, {actor.now, actor.site}, [&](const Touch& earlier) { return actor.is_after(earlier.epoch); });
}

const Touch* Shadow::racing_read(const ShadowCell& cell, const Actor& actor) const {
  return reads_.find(cell.read, [&](const Touch& read) {
    return !(read.site.has(Site::kStrong) && actor.site.has(Site::kStrong)) && !actor.is_after(read.epoch);
  });
}

void Shadow::forget(size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) {
    reads_.drop(cells_[i].read);
    cells_[i].write = Touch();
  }
}

}  // namespace opdeck::emu
