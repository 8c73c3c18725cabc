// SPDX-License-Identifier: Apache-2.0
#include "warp.h"

#include <algorithm>
#include <cstring>

#include "../counters/profile.h"
#include "bulk_groups.h"
#include "cta.h"
#include "error.h"

namespace opdeck::emu {
namespace {

uint64_t dimension_of(const std::array<uint32_t, 3>& extents, SpecialRegister reg, SpecialRegister first) {
  return extents[static_cast<size_t>(reg) - static_cast<size_t>(first)];
}

// Registers that are the same for all lanes of a warp.
uint64_t uniform_special(const Warp& warp, SpecialRegister reg, uint64_t offset) {
  using R = SpecialRegister;
  const Cta& cta = warp.cta;
  const LaunchShape& shape = warp.launch.shape;
  const auto num_clusters = [&](size_t i) { return shape.grid[i] / shape.cluster[i]; };
  if (reg >= R::ntid_x && reg <= R::ntid_z) return dimension_of(shape.block, reg, R::ntid_x);
  if (reg >= R::ctaid_x && reg <= R::ctaid_z) return dimension_of(cta.index, reg, R::ctaid_x);
  if (reg >= R::nctaid_x && reg <= R::nctaid_z) return dimension_of(shape.grid, reg, R::nctaid_x);
  if (reg >= R::clusterid_x && reg <= R::clusterid_z) return dimension_of(cta.cluster.index, reg, R::clusterid_x);
  if (reg >= R::nclusterid_x && reg <= R::nclusterid_z)
    return dimension_of({num_clusters(0), num_clusters(1), num_clusters(2)}, reg, R::nclusterid_x);
  if (reg >= R::cluster_nctaid_x && reg <= R::cluster_nctaid_z)
    return dimension_of(shape.cluster, reg, R::cluster_nctaid_x);
  if (reg >= R::cluster_ctaid_x && reg <= R::cluster_ctaid_z) {
    const size_t i = static_cast<size_t>(reg) - static_cast<size_t>(R::cluster_ctaid_x);
    return cta.index[i] % shape.cluster[i];
  }
  switch (reg) {
    case R::warpid: return warp.warp_idx;
    case R::nwarpid: return shape.num_warps();
    case R::cluster_ctarank: return cta.rank;
    case R::cluster_nctarank: return cta.cluster.num_ctas();
    case R::is_explicit_cluster: return cta.cluster.num_ctas() > 1;
    case R::dynamic_smem_size: return shape.dynamic_shared_bytes;
    case R::total_smem_size: return cta.shared_bytes();
    case R::shared_address: return shared_address(cta.rank, static_cast<uint32_t>(offset));
    case R::nsmid: return 132;
    default: return 0;  // smid, gridid: one of each
  }
}

uint64_t lane_special(const Warp& warp, SpecialRegister reg, uint32_t lane) {
  using R = SpecialRegister;
  const auto& block = warp.launch.shape.block;
  const uint32_t thread = warp.warp_idx * kWarpLanes + lane;
  switch (reg) {
    case R::tid_x: return thread % block[0];
    case R::tid_y: return thread / block[0] % block[1];
    case R::tid_z: return thread / block[0] / block[1];
    case R::laneid: return lane;
    case R::lanemask_eq: return 1u << lane;
    case R::lanemask_lt: return (1u << lane) - 1;
    case R::lanemask_le: return (2ull << lane) - 1;
    case R::lanemask_gt: return ~((2ull << lane) - 1) & 0xffffffff;
    case R::lanemask_ge: return ~((1ull << lane) - 1) & 0xffffffff;
    default: return 0;
  }
}

bool is_lane_special(SpecialRegister reg) {
  return reg <= SpecialRegister::tid_z || reg == SpecialRegister::laneid ||
         (reg >= SpecialRegister::lanemask_eq && reg <= SpecialRegister::lanemask_ge);
}

}  // namespace

Warp::Warp(Cta& owner, uint32_t index, uint32_t num_lanes)
    : cta(owner),
      launch(owner.launch),
      warp_idx(index),
      existing_lanes(num_lanes == kWarpLanes ? kAllLanes : (1u << num_lanes) - 1),
      registers(new uint8_t[launch.program.register_file_bytes]),
      lanes(existing_lanes) {
  std::memcpy(registers.get(), launch.grid.register_image.data(), launch.program.register_file_bytes);
  fill_special_rows();
  if (launch.grid.profile != nullptr) tally = launch.grid.profile->new_tally();
}

Warp::~Warp() = default;
Warp::Warp(Warp&&) noexcept = default;

void Warp::fill_special_rows() {
  for (const PresetRow& preset : launch.program.presets) {
    if (preset.kind != PresetRow::Kind::special) continue;
    const bool per_lane = is_lane_special(preset.special);
    const uint64_t uniform = per_lane ? 0 : uniform_special(*this, preset.special, preset.value);
    uint8_t* const entries = row<uint8_t>(preset.row);
    if (preset.elem_bytes == 0) *row<uint32_t>(preset.row) = uniform != 0 ? kAllLanes : 0;
    for (uint32_t lane = 0; lane < kWarpLanes && preset.elem_bytes != 0; ++lane) {
      const uint64_t value = per_lane ? lane_special(*this, preset.special, lane) : uniform;
      std::memcpy(entries + lane * preset.elem_bytes, &value, preset.elem_bytes);
    }
  }
}

std::vector<uint8_t> make_register_image(const Program& program) {
  constexpr uint8_t kUndefined = 0xa5;
  std::vector<uint8_t> image(program.register_file_bytes, kUndefined);
  for (const PresetRow& preset : program.presets) {
    if (preset.kind != PresetRow::Kind::constant) continue;
    uint8_t* const row = image.data() + preset.row;
    if (preset.elem_bytes == 0) std::memset(row, preset.value != 0 ? 0xff : 0, sizeof(uint32_t));
    for (uint32_t lane = 0; lane < kWarpLanes && preset.elem_bytes != 0; ++lane) {
      uint8_t* const entry = row + lane * preset.elem_bytes;
      std::memset(entry, 0, preset.elem_bytes);
      std::memcpy(entry, &preset.value, std::min<uint32_t>(preset.elem_bytes, sizeof preset.value));
    }
  }
  return image;
}

uint8_t* Warp::local_memory(uint32_t lane) {
  const uint32_t bytes = launch.program.local_bytes;
  if (local_.empty()) local_.assign(size_t{bytes} * kWarpLanes, 0xff);
  return local_.data() + size_t{lane} * bytes;
}

Flow Warp::block(WaitKind kind, uint32_t address, uint32_t parity, bool may_fail) {
  wait = WaitState{kind, pc, launch.epoch, address, parity, may_fail && !has_failed_here(), false};
  return Flow::blocked;
}

bool Warp::has_failed_here() const {
  return failed_epoch_ == launch.epoch && std::find(failed_pcs_.begin(), failed_pcs_.end(), pc) != failed_pcs_.end();
}

bool Warp::try_wait_fails() {
  const bool permitted = wait.permit && wait.pc == pc && wait.epoch == launch.epoch;
  if (!permitted && (!launch.async.random_schedule() || has_failed_here() || launch.async.draw(2) == 0)) return false;
  if (failed_epoch_ != launch.epoch) failed_pcs_.clear();
  failed_epoch_ = launch.epoch;
  failed_pcs_.push_back(pc);
  wait.permit = false;
  return true;
}

bool Warp::converged(uint32_t required) {
  const uint32_t wanted = required & live_lanes();
  if (const uint32_t idle = wanted & lanes & ~mask; idle != 0)
    throw EmulatorError(Fault::illegal_instruction, "lanes " + hex(idle) + " do not execute it, as their guard is " +
                                                        "false; lanes " + hex(wanted) + " must do so together");
  if ((wanted & ~lanes) == 0) return true;
  block(WaitKind::convergence);
  return false;
}

bool Warp::aligned_but_exited() {
  if (awaited_pc_ != pc) exited_before_wait_ = exited_lanes;
  awaited_pc_ = pc;
  if (!converged(kAllLanes)) return false;
  awaited_pc_ = UINT32_MAX;
  if (const uint32_t left = exited_lanes & ~exited_before_wait_; left != 0)
    throw EmulatorError(Fault::illegal_instruction, "lanes " + hex(left) + " exited while lanes " + hex(mask) +
                                                        " stood at it: all lanes must execute it together (.aligned)");
  return true;
}

bool Warp::aligned() {
  if (!aligned_but_exited()) return false;
  if (exited_lanes == 0) return true;
  throw EmulatorError(Fault::illegal_instruction, "lanes " + hex(exited_lanes) + " have exited: all lanes of the warp " +
                                                      "must execute it (.aligned)");
}

Flow Warp::branch(uint32_t taken, uint32_t target) {
  const uint32_t staying = lanes & ~taken;
  if (staying == 0) {
    pc = target;
    return Flow::jump;
  }
  if (taken == 0) return Flow::next;
  // Both ways are taken: the lower counter goes on, as everywhere.
  const uint32_t fall_through = pc + 1;
  parked.push_back(target < fall_through ? LaneGroup{fall_through, staying} : LaneGroup{target, taken});
  lanes = target < fall_through ? taken : staying;
  pc = std::min(target, fall_through);
  return Flow::jump;
}

// After a jump, or when the counter has reached merge_pc_: merges with groups that stand here, and lets one that stands
// lower go first.
void Warp::after_control_flow() {
  for (size_t i = 0; i < parked.size();) {
    if (parked[i].pc == pc) {
      lanes |= parked[i].lanes;
      parked[i] = parked.back();
      parked.pop_back();
    } else {
      ++i;
    }
  }
  const bool passed_one = std::any_of(parked.begin(), parked.end(), [&](const LaneGroup& g) { return g.pc < pc; });
  if (passed_one && !run_ahead && !coming_to_blocked_) return switch_group();
  merge_pc_ = UINT32_MAX;
  for (const LaneGroup& group : parked)
    if (group.pc > pc) merge_pc_ = std::min(merge_pc_, group.pc);
}

// Parks the current group and takes the one with the lowest counter.
void Warp::switch_group() {
  if (lanes != 0) parked.push_back({pc, lanes});
  lanes = 0;
  if (parked.empty()) return;
  const auto lowest = std::min_element(parked.begin(), parked.end(),
                                       [](const LaneGroup& x, const LaneGroup& y) { return x.pc < y.pc; });
  pc = lowest->pc;
  lanes = lowest->lanes;
  *lowest = parked.back();
  parked.pop_back();
  after_control_flow();
}

// After the current group blocked: takes another one that may go on now. A group waiting for convergence lets the
// others come to it; any other wait holds them back unless the scheduler is desperate.
bool Warp::select_group(bool desperate) {
  if (parked.empty() || (wait.kind != WaitKind::convergence && !desperate)) return false;
  const uint32_t blocked_pc = pc;
  const auto next = std::min_element(parked.begin(), parked.end(), [&](const LaneGroup& x, const LaneGroup& y) {
    // Those above the blocked one first, in order; then those below it.
    const uint64_t kx = x.pc > blocked_pc ? x.pc : x.pc + (uint64_t{1} << 32);
    const uint64_t ky = y.pc > blocked_pc ? y.pc : y.pc + (uint64_t{1} << 32);
    return kx < ky;
  });
  const LaneGroup chosen = *next;
  *next = {pc, lanes};
  pc = chosen.pc;
  lanes = chosen.lanes;
  coming_to_blocked_ = true;
  after_control_flow();
  coming_to_blocked_ = false;
  return true;
}

uint64_t Warp::run(uint64_t budget) {
  const Op* const ops = launch.program.ops.data();
  if (!parked.empty() && !run_ahead) switch_group();
  uint64_t completed = 0;
  size_t num_blocked_groups = 0;
  while (completed < budget && lanes != 0) {
    if (pc >= merge_pc_) after_control_flow();
    const Op& op = ops[pc];
    mask = lanes & (predicate(op.guard) ^ op.guard_flip);
    if (mask == 0) {
      ++pc;
      ++completed;
      continue;
    }
    switch (op.execute(*this, op)) {
      case Flow::next: ++pc; break;
      case Flow::jump:
        if (!parked.empty()) after_control_flow();
        break;
      case Flow::blocked:
        if (num_blocked_groups++ >= parked.size() + 1 || !select_group(run_ahead)) {
          run_ahead = false;
          return completed;
        }
        continue;
      case Flow::exited:
        exited_lanes |= mask;
        lanes &= ~mask;
        if (lanes != 0) {
          ++pc;
        } else {
          switch_group();
        }
        cta.on_lanes_exit();
        launch.signal();
        break;
    }
    wait.kind = WaitKind::none;
    num_blocked_groups = 0;
    ++completed;
  }
  run_ahead = false;
  return completed;
}

}  // namespace opdeck::emu
