// SPDX-License-Identifier: Apache-2.0
// How instructions reach memory: one function per state space, each checking bounds and alignment.
// Used by memory.cpp, atomic.cpp and the copies.
#pragma once

#include <array>
#include <string>

#include "../machine/address_space.h"
#include "../machine/cta.h"
#include "../machine/error.h"
#include "decode.h"

namespace opdeck::emu {

// The space that an instruction names; generic addresses choose at run time.
enum class MemorySpace : uint8_t { generic, global, shared_cta, shared_cluster, local, param, constant };

// num_bytes: a power of two.
inline void check_alignment(uint64_t address, uint32_t num_bytes) {
  if ((address & (num_bytes - 1)) == 0) return;
  char text[80];
  std::snprintf(text, sizeof text, "address 0x%llx is not aligned to %u bytes",
                static_cast<unsigned long long>(address), num_bytes);
  throw EmulatorError(Fault::misaligned, text);
}

// The parameter buffer, checked.
uint8_t* param_pointer(Warp& warp, uint64_t offset, uint32_t num_bytes);
uint8_t* local_pointer(Warp& warp, uint32_t lane, uint64_t offset, uint32_t num_bytes);
// A shared address of this CTA (plain .shared), or of any CTA of the cluster.
uint8_t* shared_cta_pointer(Warp& warp, uint64_t address, uint32_t num_bytes);
uint8_t* shared_cluster_pointer(Warp& warp, uint64_t address, uint32_t num_bytes);
// By space; `access` matters for global memory.
// strong: volatile, relaxed, acquire, release; an atomic that returns a value (weak: one that does not).
enum class Ordering : uint8_t { weak, strong };
struct MemoryRequest {
  MemorySpace space = MemorySpace::generic;
  uint64_t address = 0;
  uint32_t num_bytes = 0;
  Access access = Access::read;
  Ordering ordering = Ordering::weak;
  const uint8_t* stored = nullptr;  // the bytes that a store will write, in elements of elem_bytes; hazard checks ask
  uint32_t elem_bytes = 0;
};
uint8_t* memory_pointer(Warp& warp, uint32_t lane, const MemoryRequest& request);

// Where each executing lane accesses shared memory of its own CTA, from the start of that.
using SharedOffsets = std::array<uint32_t, kWarpLanes>;
// The offsets that the 32-bit addresses of an instruction give, of which only those of executing lanes have a meaning.
// False where one of these is misaligned or outside: memory_pointer, lane by lane, says which.
bool find_shared_offsets(Warp& warp, const Op& op, uint32_t num_bytes, SharedOffsets& offsets);

// The address that lane `lane` gives: op.a is the base row (op.immediate the offset).
inline uint64_t lane_address(Warp& warp, const Op& op, uint32_t lane, bool is_32_bits) {
  const uint64_t base = is_32_bits ? warp.row<uint32_t>(op.a)[lane] : warp.row<uint64_t>(op.a)[lane];
  const uint64_t sum = base + static_cast<uint64_t>(op.immediate);
  return is_32_bits ? sum & 0xffffffff : sum;
}

// A 32-bit shared address operand of an instruction, in lane `lane` (mbarriers, copies): row, its width and offset.
inline uint32_t shared_operand(Warp& warp, const AddressOperand& operand, uint32_t lane) {
  const uint64_t base =
      operand.bits == 32 ? warp.row<uint32_t>(operand.row)[lane] : warp.row<uint64_t>(operand.row)[lane];
  return static_cast<uint32_t>(base + static_cast<uint64_t>(operand.offset));
}

// A store of this width exists: the hazard checks tell granules of that size apart.
void tell_store_width(Decoding& d, MemorySpace space, uint32_t num_bytes);

// An instruction whose access of this space other clusters may be synchronised by.
void tell_communication(Decoding& d, MemorySpace space);

// Takes .global, .shared, .shared::cta, ...; generic when there is none.
MemorySpace take_space(Decoding& d);

}  // namespace opdeck::emu
