// SPDX-License-Identifier: Apache-2.0
// Asynchronous work (bulk copies, tensor-core operations, commits) and when it completes.
// Issued by src/isa, completed by scheduler.cpp as the session's schedule says.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <random>

#include "opdeck_emu.h"

namespace opdeck::emu {

class AsyncQueue {
 public:
  using Work = std::function<void()>;
  // Work of one stream completes in the order of issue. Streams are named by any address; kUnordered has no order.
  using Stream = const void*;
  static constexpr Stream kUnordered = nullptr;

  AsyncQueue(opdeck_emu_schedule schedule, uint64_t seed) : schedule_(schedule), random_(seed) {}

  void submit(Stream stream, Work work);
  bool empty() const { return pending_.empty(); }
  size_t size() const { return pending_.size(); }
  // The newest that its stream allows, so not in the order of issue where that is not promised; or a random one.
  void complete_one();
  void complete_all();
  bool random_schedule() const { return schedule_ == OPDECK_EMU_RANDOM; }
  // Uniform in [0, limit).
  uint64_t draw(uint64_t limit) { return random_() % limit; }
  uint64_t num_completed() const { return num_completed_; }

 private:
  struct Entry {
    Stream stream;
    Work work;
  };
  opdeck_emu_schedule schedule_;
  std::mt19937_64 random_;
  std::deque<Entry> pending_;
  uint64_t num_completed_ = 0;
};

}  // namespace opdeck::emu
