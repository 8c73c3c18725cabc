// SPDX-License-Identifier: Apache-2.0
#include "profile.h"

#include "../isa/pipes.h"
#include "../machine/cta.h"

namespace opdeck::emu {
namespace {

Flow count_and_execute(Warp& warp, const Op& op) {
  OpTally& tally = warp.tally->ops[warp.pc];  // a jump changes the counter
  const Flow flow = warp.launch.grid.profile->execute_of(warp.pc)(warp, op);
  if (warp.mask == 0) return flow;  // hazard checks see to guards themselves (hazard/unproven_registers.cpp)
  ++(flow == Flow::blocked ? tally.blocked : tally.completed);
  return flow;
}

bool is_empty(const OpTally& tally) { return tally.completed == 0 && tally.blocked == 0; }

void set_counts(opdeck_emu_profile_row& row, const OpTally& tally) {
  row.completed = tally.completed;
  row.blocked = tally.blocked;
  row.false_polls = tally.false_polls;
  row.macs = tally.macs;
  row.global_read_bytes = tally.global_read_bytes;
  row.global_write_bytes = tally.global_write_bytes;
  row.shared_read_bytes = tally.shared_read_bytes;
  row.shared_write_bytes = tally.shared_write_bytes;
  row.remote_shared_bytes = tally.remote_shared_bytes;
  row.shared_wavefronts = tally.shared_wavefronts;
  row.extra_wavefronts = tally.extra_wavefronts;
  row.tmem_read_bytes = tally.tmem_read_bytes;
  row.tmem_write_bytes = tally.tmem_write_bytes;
}

const char* pipe_text(const std::string& opcode) {
  const Pipe pipe = find_pipe(opcode);
  return pipe == Pipe::count ? "unknown" : pipe_name(pipe);
}

}  // namespace

LaunchProfile::LaunchProfile(const Program& program) : program_(program) {
  for (Op& op : program_.ops) {
    executes_.push_back(op.execute);
    op.execute = &count_and_execute;
  }
}

std::unique_ptr<WarpTally> LaunchProfile::new_tally() const {
  auto tally = std::make_unique<WarpTally>();
  tally->ops.resize(program_.ops.size());
  return tally;
}

void LaunchProfile::add(uint32_t warp_idx, const WarpTally& tally) {
  const std::lock_guard lock(mutex_);
  if (by_warp_.size() <= warp_idx) by_warp_.resize(warp_idx + 1);
  WarpTally& sum = by_warp_[warp_idx];
  sum.ops.resize(tally.ops.size());
  for (size_t i = 0; i < tally.ops.size(); ++i) sum.ops[i].add(tally.ops[i]);
  sum.passed += tally.passed;
}

void LaunchProfile::append_to(ProfileRows& rows, uint32_t launch_idx) const {
  const auto kept = [&](const std::string& text) { return rows.texts.insert(text).first->c_str(); };
  for (uint32_t warp_idx = 0; warp_idx < by_warp_.size(); ++warp_idx) {
    opdeck_emu_profile_row row{};
    row.kernel = kept(program_.name);
    row.launch_idx = launch_idx;
    row.warp_idx = warp_idx;
    OpTally skipped;
    skipped.completed = by_warp_[warp_idx].passed;
    for (uint32_t pc = 0; pc < by_warp_[warp_idx].ops.size(); ++pc) {
      const OpTally& tally = by_warp_[warp_idx].ops[pc];
      if (is_empty(tally)) continue;
      skipped.completed -= tally.completed;
      row.opcode = kept(program_.places[pc].text);
      row.pipe = pipe_text(program_.places[pc].text);
      row.op_idx = pc;
      row.ptx_line = program_.places[pc].ptx_line;
      set_counts(row, tally);
      rows.rows.push_back(row);
    }
    row.opcode = "";
    row.pipe = "skipped";
    row.op_idx = static_cast<uint32_t>(program_.ops.size());
    row.ptx_line = 0;
    set_counts(row, skipped);
    if (skipped.completed != 0) rows.rows.push_back(row);
  }
}

}  // namespace opdeck::emu
