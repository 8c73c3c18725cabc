// SPDX-License-Identifier: Apache-2.0
// Fences: what they add to what a warp knows, passes on, or its next operations come after.
//
// The operations of tcgen05 on tensor memory have an order of their own (Knowledge::tensor, WarpState::tensor_order). One
// that has completed comes before what its warp executes behind a fence::before_thread_sync: barriers pass that on, relaxed
// ones too, and what another warp issues behind a fence::after_thread_sync comes after it. tcgen05.commit includes the
// former. Below the strict level both fences stand everywhere, and a register that tcgen05.ld has written is as good as a
// tcgen05.wait::ld when it is read.
// Limits: fences of a scope narrower than needed count in full.
#include "detector.h"

namespace opdeck::emu {

void ClusterHazards::fence_before_thread_sync(Warp& warp) {
  WarpState& s = state(warp);
  s.knows.tensor.join(tensor_order(s));
}

void ClusterHazards::fence_after_thread_sync(Warp& warp) {
  WarpState& s = state(warp);
  tensor_order(s).join(s.knows.tensor);
}

void ClusterHazards::fence_async_proxy(Warp& warp) {
  WarpState& s = state(warp);
  s.knows.fence();
  seal(s);
  fence_own_mbarriers(s);
}

void ClusterHazards::fence_mbarrier_init(Warp& warp) {
  WarpState& s = state(warp);
  fence_own_mbarriers(s);
  s.released.all.raise(s.mbarrier_init, agents_[s.mbarrier_init].time);
}

void ClusterHazards::fence_memory(Warp& warp) {
  WarpState& s = state(warp);
  fence_own_mbarriers(s);
  s.knows.join(s.acquirable);
  s.acquirable.clear();
  s.released.join(s.knows);
  seal(s);
}

// The mbarriers that the warp has initialised may be used by other CTAs and asynchronous operations.
void ClusterHazards::fence_own_mbarriers(WarpState& s) {
  if (agents_[s.mbarrier_init].time == 1) return;  // it has initialised none
  const Epoch now = agents_.tick(s.mbarrier_init);
  s.knows.learn(s.mbarrier_init, now.time());
  for (auto& [address, m] : mbarriers_)
    if (m.init.agent() == s.mbarrier_init && m.init_fence.empty()) m.init_fence = now;
}

}  // namespace opdeck::emu
