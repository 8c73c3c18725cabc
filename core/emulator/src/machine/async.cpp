// SPDX-License-Identifier: Apache-2.0
#include "async.h"

namespace opdeck::emu {

void AsyncQueue::submit(Stream stream, Work work) {
  if (schedule_ != OPDECK_EMU_EAGER) {
    pending_.push_back({stream, std::move(work)});
    return;
  }
  work();
  ++num_completed_;
}

void AsyncQueue::complete_one() {
  size_t chosen = random_schedule() ? draw(pending_.size()) : pending_.size() - 1;
  const Stream stream = pending_[chosen].stream;
  for (size_t i = 0; stream != kUnordered && i < chosen; ++i) {
    if (pending_[i].stream == stream) chosen = i;
  }
  const Work work = std::move(pending_[chosen].work);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(chosen));
  work();
  ++num_completed_;
}

void AsyncQueue::complete_all() {
  while (!pending_.empty()) complete_one();
}

}  // namespace opdeck::emu
