// SPDX-License-Identifier: Apache-2.0
// What tcgen05.mma, cp and commit share: the CTA or CTA pair they work on, and their order.
// Used by tmem.cpp and umma.cpp.
#pragma once

#include <array>
#include <bit>

#include "../machine/cta.h"
#include "../machine/error.h"
#include "decode.h"

namespace opdeck::emu {

inline void require_tcgen05(Decoding& d) { d.require_target({Target::sm_100a, Target::sm_103a}); }

// Takes .cta_group::1 or ::2; the number of CTAs.
inline uint32_t take_cta_group(Decoding& d) {
  return static_cast<uint32_t>(d.take_one_of({"cta_group::1", "cta_group::2"}, "group")) + 1;
}

struct TensorPair {
  std::array<Cta*, 2> ctas{};  // the executing CTA alone, or the even and the odd one of its pair
  // mma, cp and commit of one CTA (pair) complete in order.
  const void* stream() const { return ctas[0]; }
};

inline TensorPair tensor_pair(Warp& warp, uint32_t num_ctas) {
  if (num_ctas == 1) return {{&warp.cta, nullptr}};
  Cluster& cluster = warp.cta.cluster;
  const uint32_t even = warp.cta.rank & ~1u;
  if (even + 1 >= cluster.num_ctas())
    throw EmulatorError(Fault::illegal_instruction, ".cta_group::2 in a CTA that has no pair in its cluster");
  return {{cluster.ctas[even].get(), cluster.ctas[even + 1].get()}};
}

// These instructions are issued by one thread.
inline uint32_t single_lane(const Warp& warp) {
  if (std::has_single_bit(warp.mask)) return static_cast<uint32_t>(std::countr_zero(warp.mask));
  throw EmulatorError(Fault::illegal_instruction,
                      "issued by " + std::to_string(std::popcount(warp.mask)) + " threads of the warp, one is wanted");
}

}  // namespace opdeck::emu
