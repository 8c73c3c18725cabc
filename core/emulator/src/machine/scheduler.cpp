// SPDX-License-Identifier: Apache-2.0
// Runs a launch: the warps of a cluster by turns, asynchronous work as the schedule says; clusters one after another,
// but when one has run long or can only wait for others, the next ones start beside it (kernels whose CTAs wait for
// each other through global memory). Called by src/driver through Launch::run.
#include <algorithm>
#include <memory>
#include <vector>

#include "../hazard/detector.h"
#include "cta.h"
#include "error.h"
#include "launch.h"

namespace opdeck::emu {
namespace {

constexpr uint64_t kSliceInstructions = 4096;  // before the next warp has its turn
constexpr uint64_t kRandomSliceInstructions = 64;
constexpr uint64_t kTurnInstructions = uint64_t{1} << 22;  // of a cluster, before others are started beside it
constexpr size_t kMaxResidentCtas = 132;

const char* wait_text(WaitKind kind) {
  switch (kind) {
    case WaitKind::none: return "nothing (it can go on)";
    case WaitKind::mbarrier: return "mbarrier";
    case WaitKind::named_barrier: return "named barrier";
    case WaitKind::cluster_barrier: return "barrier.cluster";
    case WaitKind::bulk_group: return "bulk copies (wait_group)";
    case WaitKind::convergence: return "the other lanes of its warp";
    case WaitKind::tensor_memory: return "tensor memory";
    case WaitKind::wgmma: return "the other warps of its warpgroup (wgmma)";
    case WaitKind::try_again: return "another try";
  }
  return "?";
}

std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%x", value);
  return text;
}

enum class Turn : uint8_t { finished, ran, stuck };

class ClusterRun {
 public:
  ClusterRun(Launch& launch, std::array<uint32_t, 3> index) : launch_(launch), cluster_(launch, index) {
    for (const auto& cta : cluster_.ctas)
      for (Warp& warp : cta->warps) warps_.push_back(&warp);
  }

  Turn run_turn() {
    const uint64_t limit = launch_.counters.warp_instructions + kTurnInstructions;
    while (!warps_.empty()) {
      if (launch_.counters.warp_instructions > limit) return Turn::ran;
      if (run_round()) continue;
      if (!launch_.async.empty()) {
        launch_.async.complete_one();
        launch_.signal();
        continue;
      }
      if (!grant_failures() && !let_groups_run_ahead()) return Turn::stuck;
    }
    launch_.async.complete_all();
    if (cluster_.hazards) {
      cluster_.hazards->finish();
      launch_.counters.hb_fingerprint += cluster_.hazards->fingerprint();
    }
    return Turn::finished;
  }

  std::string waiting_report() {
    std::string text;
    for (const Warp* warp : warps_) text += "\n  " + waiting_text(*warp);
    return text;
  }

 private:
  // One turn of each warp that may go on. Returns whether any instruction completed.
  bool run_round() {
    const bool random = launch_.async.random_schedule();
    if (random) shuffle();
    bool progress = false;
    for (Warp* warp : warps_) {
      if (warp->wait.kind != WaitKind::none && warp->wait.epoch == launch_.epoch && !warp->wait.permit &&
          !warp->run_ahead)
        continue;
      const uint64_t budget = random ? 1 + launch_.async.draw(kRandomSliceInstructions) : kSliceInstructions;
      progress |= run_slice(*warp, budget) != 0;
      if (random && !launch_.async.empty() && launch_.async.draw(4) == 0) {
        launch_.async.complete_one();
        launch_.signal();
      }
    }
    const auto finished = [](const Warp* warp) { return warp->finished(); };
    warps_.erase(std::remove_if(warps_.begin(), warps_.end(), finished), warps_.end());
    return progress;
  }

  void shuffle() {
    for (size_t i = warps_.size(); i > 1; --i) std::swap(warps_[i - 1], warps_[launch_.async.draw(i)]);
  }

  uint64_t run_slice(Warp& warp, uint64_t budget) {
    try {
      const uint64_t completed = warp.run(budget);
      launch_.counters.warp_instructions += completed;
      if (launch_.counters.warp_instructions > launch_.options.max_warp_instructions)
        throw EmulatorError(
            Fault::timeout,
            "watchdog: more than " + std::to_string(launch_.options.max_warp_instructions) + " warp instructions");
      return completed;
    } catch (const EmulatorError& error) {
      throw EmulatorError(error.fault(), place(warp) + ": " + error.what());
    }
  }

  // Nothing can go on: every try_wait that has not failed since the last change may return false now.
  bool grant_failures() {
    bool any = false;
    for (Warp* warp : warps_) {
      if (warp->wait.kind == WaitKind::none || !warp->wait.may_fail || warp->wait.permit) continue;
      warp->wait.permit = any = true;
    }
    return any;
  }

  bool let_groups_run_ahead() {
    if (ahead_epoch_ == launch_.epoch) return false;
    ahead_epoch_ = launch_.epoch;
    bool any = false;
    for (Warp* warp : warps_) any |= warp->run_ahead = !warp->parked.empty();
    return any;
  }

  std::string place(const Warp& warp) const {
    const Program& program = launch_.program;
    const auto& i = warp.cta.index;
    std::string text = "kernel " + program.name + ", CTA (" + std::to_string(i[0]) + ", " + std::to_string(i[1]) +
                       ", " + std::to_string(i[2]) + "), warp " + std::to_string(warp.warp_idx);
    if (warp.pc >= program.places.size()) return text;
    const SourcePlace& source = program.places[warp.pc];
    text += ", PTX line " + std::to_string(source.ptx_line);
    if (source.source_line != 0) text += " (source line " + std::to_string(source.source_line) + ")";
    return text + ", lanes " + hex(warp.lanes) + ", `" + source.text + "`";
  }

  std::string waiting_text(const Warp& warp) {
    std::string text = place(warp) + " waits for " + wait_text(warp.wait.kind);
    if (warp.wait.kind == WaitKind::named_barrier) {
      const NamedBarrier& barrier = warp.cta.named_barriers[warp.wait.address];
      text += " " + std::to_string(warp.wait.address) + ", " + std::to_string(barrier.arrived_threads) + " of " +
              std::to_string(barrier.expected_threads) + " threads arrived";
    } else if (warp.wait.kind == WaitKind::mbarrier) {
      const Mbarrier barrier = cluster_.read_mbarrier(warp.wait.address);
      text += " at shared address " + hex(warp.wait.address) + " for parity " + std::to_string(warp.wait.parity) +
              " (phase " + std::to_string(barrier.phase) + ", " + std::to_string(barrier.pending) + " of " +
              std::to_string(barrier.expected) + " arrivals and " + std::to_string(barrier.tx) + " bytes pending)";
    }
    for (const LaneGroup& group : warp.parked)
      text += "; lanes " + hex(group.lanes) + " stand at PTX line " +
              std::to_string(launch_.program.places[group.pc].ptx_line);
    return text;
  }

  Launch& launch_;
  Cluster cluster_;
  std::vector<Warp*> warps_;
  uint64_t ahead_epoch_ = 0;
};

}  // namespace

namespace {

using ResidentClusters = std::vector<std::unique_ptr<ClusterRun>>;

void start_cluster(Launch& launch, ResidentClusters& resident) {
  uint64_t rest = launch.clusters.next++;
  std::array<uint32_t, 3> index{};
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t extent = launch.shape.grid[i] / launch.shape.cluster[i];
    index[i] = static_cast<uint32_t>(rest % extent);
    rest /= extent;
  }
  resident.push_back(std::make_unique<ClusterRun>(launch, index));
  launch.counters.num_ctas += launch.shape.ctas_per_cluster();
}

[[noreturn]] void report_deadlock(const ResidentClusters& resident) {
  std::string text = "deadlock: no warp can go on and no asynchronous work is pending";
  for (const auto& cluster : resident) text += cluster->waiting_report();
  throw EmulatorError(Fault::timeout, text);
}

}  // namespace

void Launch::run() {
  register_image = make_register_image(program);
  clusters.count = uint64_t{1};
  for (size_t i = 0; i < 3; ++i) clusters.count *= shape.grid[i] / shape.cluster[i];
  ResidentClusters resident;
  while (clusters.next < clusters.count || !resident.empty()) {
    const bool has_room = (resident.size() + 1) * shape.ctas_per_cluster() <= kMaxResidentCtas || resident.empty();
    const bool can_start = clusters.next < clusters.count && has_room;
    if (can_start) start_cluster(*this, resident);
    const uint64_t epoch_before = epoch;
    bool all_stuck = true;
    for (auto& cluster : resident) {
      const Turn turn = cluster->run_turn();
      all_stuck &= turn == Turn::stuck;
      if (turn == Turn::finished) cluster.reset();
    }
    resident.erase(std::remove(resident.begin(), resident.end(), nullptr), resident.end());
    if (all_stuck && !can_start && epoch == epoch_before) report_deadlock(resident);
  }
}

}  // namespace opdeck::emu
