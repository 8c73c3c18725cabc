// SPDX-License-Identifier: Apache-2.0
#include "cta.h"

#include <algorithm>
#include <cstring>

#include "../hazard/detector.h"
#include "error.h"

namespace opdeck::emu {
namespace {

constexpr uint8_t kSharedPoison = 0xff;  // NaN in every format that has one
constexpr uint32_t kTmemPoison = 0xffffffff;

}  // namespace

int32_t TmemAllocator::allocate(uint32_t num_columns) {
  const uint32_t num_blocks = num_columns / kBlockColumns;
  for (uint32_t first = 0; first + num_blocks <= kNumBlocks; ++first) {
    const auto begin = used_.begin() + first;
    if (std::any_of(begin, begin + num_blocks, [](bool used) { return used; })) continue;
    std::fill(begin, begin + num_blocks, true);
    std::fill_n(ever_used_.begin() + first, num_blocks, true);
    length_blocks_[first] = num_blocks;
    return static_cast<int32_t>(first * kBlockColumns);
  }
  return -1;
}

bool TmemAllocator::release(uint32_t first_column, uint32_t num_columns) {
  const uint32_t first = first_column / kBlockColumns;
  if (first_column % kBlockColumns != 0 || first >= kNumBlocks) return false;
  if (num_columns == 0 || length_blocks_[first] * kBlockColumns != num_columns) return false;
  std::fill_n(used_.begin() + first, length_blocks_[first], false);
  length_blocks_[first] = 0;
  return true;
}

bool TmemAllocator::all(const Blocks& blocks, uint32_t first_column, uint32_t num_columns) {
  if (num_columns == 0) return true;
  if (first_column + num_columns > TmemView::num_columns) return false;
  for (uint32_t block = first_column / kBlockColumns; block <= (first_column + num_columns - 1) / kBlockColumns;
       ++block)
    if (!blocks[block]) return false;
  return true;
}

uint32_t TmemAllocator::num_allocated_columns() const {
  return static_cast<uint32_t>(std::count(used_.begin(), used_.end(), true)) * kBlockColumns;
}

Cta::Cta(Cluster& owner, uint32_t cluster_rank, std::array<uint32_t, 3> cta_index)
    : cluster(owner), launch(owner.launch), rank(cluster_rank), index(cta_index) {
  const Program& program = launch.program;
  const uint32_t align = std::max<uint32_t>(program.dynamic_shared_align, 16);
  const uint32_t dynamic_start = (program.static_shared_end + align - 1) / align * align;
  shared_.assign(dynamic_start + launch.shape.dynamic_shared_bytes, kSharedPoison);
  has_mbarrier.resize(shared_.size() / 8 + 1);
  const uint32_t num_warps = launch.shape.num_warps(), num_threads = launch.shape.num_threads();
  warps.reserve(num_warps);
  for (uint32_t w = 0; w < num_warps; ++w)
    warps.emplace_back(*this, w, std::min(kWarpLanes, num_threads - w * kWarpLanes));
}

void Cta::require_tmem(const std::string& who, uint32_t first_column, uint32_t num_columns) const {
  if (tmem_allocator.is_allocated(first_column, num_columns)) return;
  const std::string text = who + "tensor memory columns " + std::to_string(first_column) + " .. " +
                           std::to_string(first_column + num_columns - 1);
  if (!tmem_allocator.was_allocated(first_column, num_columns))
    throw EmulatorError(Fault::illegal_address, text + " are not allocated");
  if (cluster.hazards) cluster.hazards->use_freed_tmem(text);
}

uint32_t* Cta::tmem_words() {
  if (tmem_.empty()) tmem_.assign(TmemView::num_columns * TmemView::num_lanes, kTmemPoison);
  return tmem_.data();
}

bool Cta::finished() const {
  return std::all_of(warps.begin(), warps.end(), [](const Warp& warp) { return warp.finished(); });
}

uint32_t Cta::num_threads() const { return launch.shape.num_threads(); }

uint32_t Cta::live_threads() const {
  uint32_t count = 0;
  for (const Warp& warp : warps) count += static_cast<uint32_t>(__builtin_popcount(warp.live_lanes()));
  return count;
}

bool Cta::arrive_named_barrier(uint32_t barrier_idx, uint32_t num_threads, uint32_t expected_threads) {
  NamedBarrier& barrier = named_barriers[barrier_idx];
  const bool counts_live = expected_threads == 0;
  const uint32_t expected = counts_live ? live_threads() : expected_threads;
  if (barrier.arrived_threads == 0) {
    barrier.expected_threads = expected;
    barrier.counts_live_threads = counts_live;
  } else if (barrier.expected_threads != expected && !counts_live) {
    throw EmulatorError(Fault::illegal_instruction,
                        "barrier " + std::to_string(barrier_idx) + " is used with " + std::to_string(expected) +
                            " threads while others arrived at it with " + std::to_string(barrier.expected_threads));
  }
  barrier.arrived_threads += num_threads;
  if (barrier.arrived_threads > barrier.expected_threads)
    throw EmulatorError(Fault::illegal_instruction, std::to_string(barrier.arrived_threads) +
                                                        " threads arrived at barrier " + std::to_string(barrier_idx) +
                                                        ", which expects " + std::to_string(barrier.expected_threads));
  if (barrier.arrived_threads < barrier.expected_threads) return false;
  barrier.arrived_threads = 0;
  ++barrier.generation;
  launch.signal();
  return true;
}

void Cta::on_lanes_exit() {
  for (NamedBarrier& barrier : named_barriers) {
    if (!barrier.counts_live_threads || barrier.arrived_threads == 0) continue;
    barrier.expected_threads = live_threads();
    if (barrier.arrived_threads < barrier.expected_threads) continue;
    barrier.arrived_threads = 0;
    ++barrier.generation;
    launch.signal();
  }
  cluster.on_lanes_exit();
  if (finished()) check_clean_exit();
}

void Cta::check_clean_exit() const {
  if (const uint32_t columns = tmem_allocator.num_allocated_columns(); columns != 0)
    throw EmulatorError(Fault::failed, "CTA (" + std::to_string(index[0]) + ", " + std::to_string(index[1]) + ", " +
                                           std::to_string(index[2]) + ") exited with " + std::to_string(columns) +
                                           " columns of tensor memory allocated");
  check_register_counts();
}

void Cta::check_register_counts() const {
  constexpr uint32_t kRegistersPerSm = 64 * 1024;
  uint64_t total = 0;
  bool all_set = true;
  for (const Warp& warp : warps) {
    all_set &= warp.max_registers != 0;
    total += uint64_t{warp.max_registers} * kWarpLanes;
  }
  if (all_set && total > kRegistersPerSm)
    throw EmulatorError(Fault::failed, "setmaxnreg gave the warps of a CTA " + std::to_string(total) +
                                           " registers, there are " + std::to_string(kRegistersPerSm));
}

Cluster::Cluster(Launch& owner, std::array<uint32_t, 3> cluster_index) : launch(owner), index(cluster_index) {
  const auto& extent = launch.shape.cluster;
  for (uint32_t z = 0, rank = 0; z < extent[2]; ++z)
    for (uint32_t y = 0; y < extent[1]; ++y)
      for (uint32_t x = 0; x < extent[0]; ++x, ++rank)
        ctas.push_back(std::make_unique<Cta>(
            *this, rank,
            std::array<uint32_t, 3>{index[0] * extent[0] + x, index[1] * extent[1] + y, index[2] * extent[2] + z}));
  if (launch.options.hazards != OPDECK_EMU_HAZARDS_OFF) hazards = std::make_unique<ClusterHazards>(launch, *this);
}

Cluster::~Cluster() = default;

bool Cluster::finished() const {
  return std::all_of(ctas.begin(), ctas.end(), [](const auto& cta) { return cta->finished(); });
}

Cta& Cluster::cta_of(uint32_t address) {
  const uint32_t rank = shared_rank(address);
  if (rank >= num_ctas())
    throw EmulatorError(Fault::illegal_address, "shared address " + hex(address) + " names CTA " +
                                                    std::to_string(rank) + " of a cluster of " +
                                                    std::to_string(num_ctas()));
  return *ctas[rank];
}

uint8_t* Cluster::shared_pointer(uint32_t address, uint32_t num_bytes) {
  Cta& cta = cta_of(address);
  const uint32_t offset = shared_offset(address);
  if (offset < kReservedSharedBytes || offset + uint64_t{num_bytes} > cta.shared_bytes())
    throw EmulatorError(Fault::illegal_address, "access of " + std::to_string(num_bytes) + " bytes at shared address " +
                                                    hex(address) + ": shared memory of the CTA is " +
                                                    hex(kReservedSharedBytes) + " to " + hex(cta.shared_bytes()));
  return cta.shared() + offset;
}

void Cluster::on_lanes_exit() { complete_cluster_barrier_if_done(); }

void Cluster::arrive_cluster_barrier(uint32_t num_threads) {
  cluster_arrived_threads_ += num_threads;
  complete_cluster_barrier_if_done();
}

void Cluster::complete_cluster_barrier_if_done() {
  uint32_t live = 0;
  for (const auto& cta : ctas) live += cta->live_threads();
  if (cluster_arrived_threads_ == 0 || cluster_arrived_threads_ < live) return;
  cluster_arrived_threads_ = 0;
  ++cluster_generation;
  launch.signal();
}

uint8_t* Cluster::mbarrier_pointer(uint32_t address, bool must_be_live) {
  if (address % 8 != 0)
    throw EmulatorError(Fault::misaligned, "mbarrier at shared address " + hex(address) + " is not 8-byte aligned");
  uint8_t* const pointer = shared_pointer(address, 8);
  if (must_be_live && !cta_of(address).has_mbarrier[shared_offset(address) / 8])
    throw EmulatorError(Fault::illegal_instruction, "no mbarrier was initialised at shared address " + hex(address));
  return pointer;
}

void Cluster::update_mbarrier(uint8_t* pointer, Mbarrier barrier) {
  if (barrier.complete_if_done()) launch.signal();
  const uint64_t word = barrier.pack();
  std::memcpy(pointer, &word, sizeof word);
}

Mbarrier Cluster::read_mbarrier(uint32_t address) {
  uint64_t word;
  std::memcpy(&word, mbarrier_pointer(address, true), sizeof word);
  return Mbarrier::unpack(word);
}

uint64_t Cluster::init_mbarrier(uint32_t address, uint32_t count) {
  if (count == 0 || count > Mbarrier::kMaxCount)
    throw EmulatorError(Fault::illegal_instruction, "mbarrier.init count " + std::to_string(count) +
                                                        " is outside 1 .. " + std::to_string(Mbarrier::kMaxCount));
  uint8_t* const pointer = mbarrier_pointer(address, false);
  const auto has_one = cta_of(address).has_mbarrier.begin() + shared_offset(address) / 8;
  if (*has_one)
    throw EmulatorError(Fault::illegal_instruction,
                        "an mbarrier lives at shared address " + hex(address) + " already (mbarrier.inval is missing)");
  *has_one = true;
  Mbarrier barrier;
  barrier.expected = barrier.pending = count;
  const uint64_t word = barrier.pack();
  std::memcpy(pointer, &word, sizeof word);
  return word;
}

void Cluster::invalidate_mbarrier(uint32_t address) {
  mbarrier_pointer(address, true);
  cta_of(address).has_mbarrier[shared_offset(address) / 8] = false;
}

uint64_t Cluster::arrive_mbarrier(uint32_t address, uint32_t count, int32_t expect_bytes) {
  uint8_t* const pointer = mbarrier_pointer(address, true);
  uint64_t word;
  std::memcpy(&word, pointer, sizeof word);
  Mbarrier barrier = Mbarrier::unpack(word);
  if (count > barrier.pending)
    throw EmulatorError(Fault::illegal_instruction,
                        "mbarrier at shared address " + hex(address) + ": " + std::to_string(count) +
                            " arrivals, but only " + std::to_string(barrier.pending) + " of " +
                            std::to_string(barrier.expected) + " are pending in this phase");
  barrier.tx += expect_bytes;
  barrier.pending -= count;
  update_mbarrier(pointer, barrier);
  return word;
}

void Cluster::add_mbarrier_arrival(uint32_t address) {
  Mbarrier barrier = read_mbarrier(address);
  if (++barrier.pending > Mbarrier::kMaxCount)
    throw EmulatorError(Fault::illegal_instruction,
                        "mbarrier at shared address " + hex(address) + ": more than 2^20 - 1 arrivals are pending");
  update_mbarrier(mbarrier_pointer(address, true), barrier);
}

uint64_t Cluster::arrive_drop_mbarrier(uint32_t address, uint32_t count, int32_t expect_bytes) {
  uint8_t* const pointer = mbarrier_pointer(address, true);
  uint64_t word;
  std::memcpy(&word, pointer, sizeof word);
  Mbarrier barrier = Mbarrier::unpack(word);
  if (count > barrier.expected)
    throw EmulatorError(Fault::illegal_instruction,
                        "mbarrier.arrive_drop takes more arrivals than the barrier expects");
  barrier.expected -= count;
  const uint64_t dropped = barrier.pack();
  std::memcpy(pointer, &dropped, sizeof dropped);
  return arrive_mbarrier(address, count, expect_bytes);
}

void Cluster::expect_mbarrier_tx(uint32_t address, int32_t bytes) {
  uint8_t* const pointer = mbarrier_pointer(address, true);
  uint64_t word;
  std::memcpy(&word, pointer, sizeof word);
  Mbarrier barrier = Mbarrier::unpack(word);
  barrier.tx += bytes;
  if (barrier.tx > static_cast<int32_t>(Mbarrier::kMaxCount) || barrier.tx < -static_cast<int32_t>(Mbarrier::kMaxCount))
    throw EmulatorError(Fault::illegal_instruction,
                        "mbarrier at shared address " + hex(address) + ": tx-count leaves its range of 2^20 - 1 bytes");
  update_mbarrier(pointer, barrier);
}

}  // namespace opdeck::emu
