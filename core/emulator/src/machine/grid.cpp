// SPDX-License-Identifier: Apache-2.0
// Runs a launch: which clusters run when, and in which thread. Called by src/driver.
//
// Clusters that may communicate through global memory (Program::clusters_communicate) share one thread and one schedule:
// one after another, but when one has run long or can only wait for others, the next ones start beside it. All other
// clusters are independent: each runs to its end under a schedule of its own, which comes from the seed and the
// cluster's number, so that a run is the same however many threads take part.
// Limits: hazard checks compare clusters in one order, so they run in one thread. Clusters that wait for each other
// through plain loads, which no memory model orders, are taken for independent.
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "error.h"
#include "scheduler.h"

namespace opdeck::emu {
namespace {

constexpr size_t kMaxResidentCtas = 132;

[[noreturn]] void report_stuck(bool polls, const std::string& waiting) {
  const std::string what = polls ? "livelock: each warp waits, or polls what no other will change,"
                                 : "deadlock: no warp can go on";
  throw EmulatorError(Fault::timeout, what + " and no asynchronous work is pending" + waiting);
}

class CommunicatingClusters {
 public:
  explicit CommunicatingClusters(Grid& grid) : grid_(grid), launch_(grid, grid.options.seed) {}
  ~CommunicatingClusters() { grid_.counters.add(launch_.counters); }

  void run() {
    while (!grid_.clusters.empty() || !resident_.empty()) {
      const bool started = start_one();
      const bool all_stuck = run_turns();
      if (all_stuck && !started) report_stuck(polls(), waiting_report());
    }
  }

 private:
  bool start_one() {
    const size_t resident_ctas = (resident_.size() + 1) * grid_.shape.ctas_per_cluster();
    if (!resident_.empty() && resident_ctas > kMaxResidentCtas) return false;
    const auto number = grid_.clusters.take();
    if (number) resident_.push_back(std::make_unique<ClusterRun>(launch_, *number));
    return number.has_value();
  }

  // A turn of each; whether none could go on.
  bool run_turns() {
    bool all_stuck = true;
    for (auto& cluster : resident_) {
      const Turn turn = cluster->run_turn();
      all_stuck &= turn == Turn::stuck;
      if (turn == Turn::finished) cluster.reset();
    }
    std::erase(resident_, nullptr);
    return all_stuck;
  }

  bool polls() const {
    return std::any_of(resident_.begin(), resident_.end(), [](const auto& cluster) { return cluster->polls(); });
  }

  std::string waiting_report() {
    std::string text;
    for (const auto& cluster : resident_) text += cluster->waiting_report();
    return text;
  }

  Grid& grid_;
  Launch launch_;
  std::vector<std::unique_ptr<ClusterRun>> resident_;
};

class IndependentClusters {
 public:
  explicit IndependentClusters(Grid& grid) : grid_(grid) {}

  void run(uint64_t num_threads) {
    std::vector<std::thread> helpers;
    num_working_threads_ = num_threads;
    try {
      while (helpers.size() + 1 < num_threads) helpers.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // the system has no more threads: those that there are do the work
      leave(num_threads - 1 - helpers.size());
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void work() {
    take_clusters();
    leave(1);
  }

  void leave(uint64_t num_threads) {
    const std::lock_guard lock(mutex_);
    num_working_threads_ -= num_threads;
  }

  // The numbers are taken in order, so when one has failed all before it have been taken, and the first that fails is
  // the same in every run.
  void take_clusters() {
    while (!has_failed_.load(std::memory_order_relaxed)) {
      const auto number = grid_.clusters.take();
      if (!number) return;
      run_one(*number);
    }
  }

  void run_one(uint64_t number) {
    constexpr uint64_t kSeedStep = 0x9e3779b97f4a7c15;
    Launch launch(grid_, grid_.options.seed + number * kSeedStep);
    std::exception_ptr failure;
    try {
      ClusterRun cluster(launch, number);
      while (goes_on(cluster, number)) std::this_thread::yield();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    polling_.erase(number);
    grid_.counters.add(launch.counters);
    if (!failure || (failure_ && failed_number_ < number)) return;
    failure_ = failure;
    failed_number_ = number;
    has_failed_.store(true, std::memory_order_relaxed);
  }

  // One turn. A cluster that polls may see what another thread stores: it is stuck when all threads are, and each
  // has polled since the last of them went on.
  bool goes_on(ClusterRun& cluster, uint64_t number) {
    const uint64_t changes_before = num_changes_.load();
    const Turn turn = cluster.run_turn();
    const std::lock_guard lock(mutex_);
    if (turn != Turn::stuck) {
      ++num_changes_;
      polling_.clear();
      return turn == Turn::ran;
    }
    if (num_changes_ == changes_before) polling_.insert(number);
    if (!cluster.polls() || polling_.size() == num_working_threads_)
      report_stuck(cluster.polls(), cluster.waiting_report());
    return true;
  }

  Grid& grid_;
  std::atomic<uint64_t> num_changes_ = 0;  // turns of all threads in which something happened
  std::mutex mutex_;  // of all below, and of the grid's counters
  uint64_t num_working_threads_ = 0;
  std::set<uint64_t> polling_;  // the clusters that have polled since the last change
  std::exception_ptr failure_;
  uint64_t failed_number_ = 0;
  std::atomic<bool> has_failed_ = false;
};

// The processors that this process may use, or OPDECK_EMULATOR_THREADS.
uint64_t num_threads_wanted() {
  constexpr long kMaxThreads = 1024;
  if (const char* text = std::getenv("OPDECK_EMULATOR_THREADS"); text != nullptr && text[0] != '\0') {
    char* end = nullptr;
    const long number = std::strtol(text, &end, 10);
    if (*end != '\0' || number < 1 || number > kMaxThreads)
      throw EmulatorError(Fault::invalid_value, std::string("OPDECK_EMULATOR_THREADS is '") + text +
                                                    "', want a number from 1 to " + std::to_string(kMaxThreads));
    return static_cast<uint64_t>(number);
  }
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return static_cast<uint64_t>(std::max(CPU_COUNT(&allowed), 1));
}

uint64_t num_clusters(const LaunchShape& shape) {
  uint64_t count = 1;
  for (size_t i = 0; i < 3; ++i) count *= shape.grid[i] / shape.cluster[i];
  return count;
}

}  // namespace

void LaunchCounters::add(const LaunchCounters& other) {
  num_ctas += other.num_ctas;
  warp_instructions += other.warp_instructions;
  mma_macs += other.mma_macs;
  tma_load_bytes += other.tma_load_bytes;
  tma_store_bytes += other.tma_store_bytes;
  hb_fingerprint += other.hb_fingerprint;
}

Grid::Grid(const Program& kernel, const LaunchShape& launch_shape, GlobalMemory& global_memory,
           const opdeck_emu_options& launch_options)
    : program(kernel),
      shape(launch_shape),
      memory(global_memory),
      options(launch_options),
      register_image(make_register_image(kernel)),
      clusters(num_clusters(launch_shape)) {}

std::array<uint32_t, 3> Grid::cluster_index(uint64_t cluster_number) const {
  std::array<uint32_t, 3> index{};
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t extent = shape.grid[i] / shape.cluster[i];
    index[i] = static_cast<uint32_t>(cluster_number % extent);
    cluster_number /= extent;
  }
  return index;
}

void Grid::run() {
  const uint64_t num_threads = options.hazards != 0 ? 1 : std::min(num_threads_wanted(), clusters.count());
  if (program.clusters_communicate)
    CommunicatingClusters(*this).run();
  else
    IndependentClusters(*this).run(num_threads);
}

}  // namespace opdeck::emu
