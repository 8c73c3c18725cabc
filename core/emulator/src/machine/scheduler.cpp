// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include <algorithm>

#include "../counters/profile.h"
#include "../hazard/detector.h"
#include "error.h"

namespace opdeck::emu {
namespace {

// Before the next warp has its turn. Under eager, which is nearest to what a GPU does, no warp gets far ahead of others.
constexpr uint64_t kEagerSliceInstructions = 32;
constexpr uint64_t kLazySliceInstructions = 4096;
constexpr uint64_t kRandomSliceInstructions = 64;
constexpr uint64_t kTurnInstructions = uint64_t{1} << 22;  // of a cluster, before others are started beside it

const char* wait_text(WaitKind kind) {
  switch (kind) {
    case WaitKind::none: return "nothing (it can go on)";
    case WaitKind::mbarrier: return "mbarrier";
    case WaitKind::named_barrier: return "named barrier";
    case WaitKind::cluster_barrier: return "barrier.cluster";
    case WaitKind::bulk_group: return "bulk copies (wait_group)";
    case WaitKind::convergence: return "the other lanes of its warp";
    case WaitKind::tensor_memory: return "tensor memory";
    case WaitKind::wgmma_group: return "wgmma (wait_group)";
    case WaitKind::wgmma: return "the other warps of its warpgroup (wgmma)";
    case WaitKind::try_again: return "another try";
  }
  return "?";
}

}  // namespace

ClusterRun::ClusterRun(Launch& launch, uint64_t cluster_number)
    : launch_(launch), cluster_(launch, launch.grid.cluster_index(cluster_number)) {
  for (const auto& cta : cluster_.ctas)
    for (Warp& warp : cta->warps) warps_.emplace_back(warp);
  launch_.counters.num_ctas += launch.shape.ctas_per_cluster();
}

Turn ClusterRun::run_turn() {
  const uint64_t limit = launch_.counters.warp_instructions + kTurnInstructions;
  Turn without_progress = Turn::stuck;
  while (!warps_.empty()) {
    if (launch_.counters.warp_instructions > limit) return Turn::ran;
    const uint64_t epoch_before = launch_.epoch;
    // The random schedule completes work between warps: what the earlier ones wait for may have come.
    if (run_round() || launch_.epoch != epoch_before) {
      without_progress = Turn::ran;
    } else if (!launch_.async.empty()) {
      launch_.async.complete_one();
      launch_.signal();
      without_progress = Turn::ran;
    } else if (!grant_failures() && !let_groups_run_ahead()) {
      return without_progress;
    }
  }
  launch_.async.complete_all();
  if (cluster_.hazards) {
    cluster_.hazards->finish();
    launch_.counters.hb_fingerprint += cluster_.hazards->fingerprint();
  }
  if (launch_.grid.profile != nullptr) add_to_profile();
  return Turn::finished;
}

void ClusterRun::add_to_profile() {
  for (const auto& cta : cluster_.ctas)
    for (const Warp& warp : cta->warps) launch_.grid.profile->add(warp.warp_idx, *warp.tally);
}

std::string ClusterRun::waiting_report() {
  std::string text;
  for (WarpRun& run : warps_) text += "\n  " + (run.polls() ? polling_text(run) : waiting_text(run));
  return text;
}

bool ClusterRun::polls() const {
  return std::any_of(warps_.begin(), warps_.end(), [](const WarpRun& run) { return run.polls(); });
}

// One turn of each warp that may go on. Returns whether any went on, or asynchronous work completed.
bool ClusterRun::run_round() {
  const bool random = launch_.async.random_schedule();
  if (random) shuffle();
  bool progress = false;
  for (WarpRun& run : warps_) {
    const Warp& warp = run.warp();
    if (warp.wait.kind != WaitKind::none && warp.wait.epoch == launch_.epoch && !warp.wait.permit && !warp.run_ahead)
      continue;
    progress |= run_slice(run, slice_instructions());
    if (random && !launch_.async.empty() && launch_.async.draw(4) == 0) {
      launch_.async.complete_one();
      launch_.signal();
      progress = true;
    }
  }
  std::erase_if(warps_, [](const WarpRun& run) { return run.warp().finished(); });
  return progress;
}

uint64_t ClusterRun::slice_instructions() {
  if (launch_.async.random_schedule()) return 1 + launch_.async.draw(kRandomSliceInstructions);
  return launch_.options.schedule == OPDECK_EMU_EAGER ? kEagerSliceInstructions : kLazySliceInstructions;
}

void ClusterRun::shuffle() {
  for (size_t i = warps_.size(); i > 1; --i) std::swap(warps_[i - 1], warps_[launch_.async.draw(i)]);
}

// Whether the warp went on.
bool ClusterRun::run_slice(WarpRun& run, uint64_t budget) {
  Warp& warp = run.warp();
  try {
    const uint64_t completed = run.run(budget);
    launch_.counters.warp_instructions += completed;
    if (warp.tally) warp.tally->passed += completed;
    std::atomic<uint64_t>& of_all = launch_.grid.warp_instructions;
    if (of_all.fetch_add(completed, std::memory_order_relaxed) + completed > launch_.options.max_warp_instructions)
      throw EmulatorError(
          Fault::timeout,
          "watchdog: more than " + std::to_string(launch_.options.max_warp_instructions) + " warp instructions");
    return completed != 0 && !run.polls();
  } catch (const EmulatorError& error) {
    throw EmulatorError(error.fault(), place(warp) + ": " + error.what());
  }
}

// Nothing can go on: every try_wait that has not failed since the last change may return false now.
bool ClusterRun::grant_failures() {
  bool any = false;
  for (WarpRun& run : warps_) {
    WaitState& wait = run.warp().wait;
    if (wait.kind == WaitKind::none || !wait.may_fail || wait.permit) continue;
    wait.permit = any = true;
  }
  return any;
}

bool ClusterRun::let_groups_run_ahead() {
  if (ahead_epoch_ == launch_.epoch) return false;
  ahead_epoch_ = launch_.epoch;
  bool any = false;
  for (WarpRun& run : warps_) any |= run.warp().run_ahead = !run.warp().parked.empty();
  return any;
}

std::string ClusterRun::place(const Warp& warp) const {
  const Program& program = launch_.program;
  const auto& i = warp.cta.index;
  std::string text = "kernel " + program.name + ", CTA (" + std::to_string(i[0]) + ", " + std::to_string(i[1]) +
                     ", " + std::to_string(i[2]) + "), warp " + std::to_string(warp.warp_idx);
  if (warp.pc >= program.places.size()) return text;
  const SourcePlace& source = program.places[warp.pc];
  return text + ", " + source.line_text() + ", lanes " + hex(warp.lanes) + ", `" + source.text + "`";
}

std::string ClusterRun::mbarrier_text(const WaitState& wait) {
  const Mbarrier barrier = cluster_.read_mbarrier(wait.address);
  return " at shared address " + hex(wait.address) + " for parity " + std::to_string(wait.parity) + " (phase " +
         std::to_string(barrier.phase) + ", " + std::to_string(barrier.pending) + " of " +
         std::to_string(barrier.expected) + " arrivals and " + std::to_string(barrier.tx) + " bytes pending)";
}

std::string ClusterRun::polling_text(WarpRun& run) {
  std::string text = place(run.warp()) + " polls";
  const char* separator = " ";
  for (const uint32_t op_idx : run.polling_ops()) {
    const SourcePlace& source = launch_.program.places[op_idx];
    text += separator + ("`" + source.text) + "` of " + source.line_text();
    if (source.text.starts_with("mbarrier.")) text += mbarrier_text(run.warp().wait);
    separator = " and ";
  }
  return text + parked_text(run.warp());
}

std::string ClusterRun::waiting_text(WarpRun& run) {
  const Warp& warp = run.warp();
  std::string text = place(warp) + " waits for " + wait_text(warp.wait.kind);
  if (warp.wait.kind == WaitKind::named_barrier) {
    const NamedBarrier& barrier = warp.cta.named_barriers[warp.wait.address];
    text += " " + std::to_string(warp.wait.address) + ", " + std::to_string(barrier.arrived_threads) + " of " +
            std::to_string(barrier.expected_threads) + " threads arrived";
  } else if (warp.wait.kind == WaitKind::mbarrier) {
    text += mbarrier_text(warp.wait);
  }
  return text + parked_text(warp);
}

std::string ClusterRun::parked_text(const Warp& warp) const {
  std::string text;
  for (const LaneGroup& group : warp.parked)
    text += "; lanes " + hex(group.lanes) + " stand at " + launch_.program.places[group.pc].line_text();
  return text;
}

}  // namespace opdeck::emu
