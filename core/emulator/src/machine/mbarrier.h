// SPDX-License-Identifier: Apache-2.0
// The mbarrier object: 64 bits of shared memory. Called by the mbarrier instructions, bulk copies and tcgen05.commit.
// Source: PTX ISA, "mbarrier: phase completion" and "tx-count operations".
// Limits: counts up to 2^20 - 1, as PTX says; the encoding of the 64 bits is the emulator's own (it is opaque in PTX).
#pragma once

#include <cstdint>

namespace opdeck::emu {

struct Mbarrier {
  static constexpr uint32_t kMaxCount = (1u << 20) - 1;
  uint32_t expected = 0;  // arrivals of each phase
  uint32_t pending = 0;   // arrivals still to come in this one
  int32_t tx = 0;         // bytes still to come; negative when data came before it was announced
  uint32_t phase = 0;     // parity of the phase that is in progress

  static Mbarrier unpack(uint64_t word) {
    Mbarrier b;
    b.expected = static_cast<uint32_t>(word & kMaxCount);
    b.pending = static_cast<uint32_t>(word >> 20 & kMaxCount);
    b.tx = static_cast<int32_t>(static_cast<uint32_t>(word >> 40) << 9) >> 9;
    b.phase = static_cast<uint32_t>(word >> 63);
    return b;
  }
  uint64_t pack() const {
    return uint64_t{expected} | uint64_t{pending} << 20 | uint64_t{static_cast<uint32_t>(tx) & 0x7fffff} << 40 |
           uint64_t{phase} << 63;
  }

  // A phase completes when nothing is pending; true when that happens.
  bool complete_if_done() {
    if (pending != 0 || tx != 0) return false;
    phase ^= 1;
    pending = expected;
    return true;
  }
  bool parity_done(uint32_t parity) const { return phase != (parity & 1); }
};

}  // namespace opdeck::emu
