// SPDX-License-Identifier: Apache-2.0
#include "memory_access.h"

#include <algorithm>

#include "../hazard/detector.h"
#include "lanes.h"

namespace opdeck::emu {
namespace {

[[noreturn]] void out_of_bounds(const char* space, uint64_t offset, uint32_t num_bytes, uint64_t size_bytes) {
  throw EmulatorError(Fault::illegal_address, "access of " + std::to_string(num_bytes) + " bytes at " + space +
                                                  " offset " + std::to_string(offset) + ", which has " +
                                                  std::to_string(size_bytes) + " bytes");
}

AccessMode access_mode(Access access, Ordering ordering) {
  const bool weak = ordering == Ordering::weak;
  switch (access) {
    case Access::read: return weak ? AccessMode::read : AccessMode::strong_read;
    case Access::write: return weak ? AccessMode::write : AccessMode::strong_write;
    case Access::read_write: break;
  }
  return weak ? AccessMode::reduction : AccessMode::atomic;
}

// A generic access of shared memory, which the hazard checks see.
uint8_t* accessed_shared(Warp& warp, uint8_t* pointer, uint64_t address, uint32_t num_bytes, AccessMode mode) {
  if (ClusterHazards* hazards = hazards_of(warp))
    hazards->access_shared(warp, static_cast<uint32_t>(address), num_bytes, mode);
  return pointer;
}

uint8_t* accessed_global(Warp& warp, const MemoryRequest& request, AccessMode mode) {
  const uint64_t address = request.address;
  uint8_t* const pointer = warp.launch.memory.access(address, request.num_bytes, request.access);
  ClusterHazards* const hazards = hazards_of(warp);
  if (hazards != nullptr && !warp.launch.memory.is_read_only(address))
    hazards->access_global(warp, {address, request.num_bytes, request.stored, request.elem_bytes}, mode);
  return pointer;
}

}  // namespace

uint8_t* param_pointer(Warp& warp, uint64_t offset, uint32_t num_bytes) {
  auto& parameters = warp.launch.parameters;
  if (offset > parameters.size() || parameters.size() - offset < num_bytes)
    out_of_bounds("parameter", offset, num_bytes, parameters.size());
  return parameters.data() + offset;
}

uint8_t* local_pointer(Warp& warp, uint32_t lane, uint64_t offset, uint32_t num_bytes) {
  const uint64_t size_bytes = warp.launch.program.local_bytes;
  if (offset > size_bytes || size_bytes - offset < num_bytes) out_of_bounds("local", offset, num_bytes, size_bytes);
  return warp.local_memory(lane) + offset;
}

uint8_t* shared_cta_pointer(Warp& warp, uint64_t address, uint32_t num_bytes) {
  if (address > 0xffffffff || shared_rank(static_cast<uint32_t>(address)) != warp.cta.rank)
    throw EmulatorError(Fault::illegal_address,
                        "shared address " + std::to_string(address) + " is not in the window of the executing CTA");
  return warp.cta.cluster.shared_pointer(static_cast<uint32_t>(address), num_bytes);
}

uint8_t* shared_cluster_pointer(Warp& warp, uint64_t address, uint32_t num_bytes) {
  if (address > 0xffffffff)
    throw EmulatorError(Fault::illegal_address, std::to_string(address) + " is not a shared address");
  return warp.cta.cluster.shared_pointer(static_cast<uint32_t>(address), num_bytes);
}

bool find_shared_offsets(Warp& warp, const Op& op, uint32_t num_bytes, SharedOffsets& offsets) {
  const uint32_t* const addresses = warp.row<uint32_t>(op.a);
  const uint32_t to_offset = static_cast<uint32_t>(op.immediate) - shared_address(warp.cta.rank, 0);
  for (uint32_t i = 0; i < kWarpLanes; ++i) offsets[i] = addresses[i] + to_offset;
  if (warp.cta.shared_bytes() < kReservedSharedBytes + num_bytes) return false;
  // Offsets that are too small become too large ones.
  const uint32_t last = warp.cta.shared_bytes() - kReservedSharedBytes - num_bytes;
  const auto is_wrong = [&](uint32_t offset) {
    return static_cast<uint32_t>(offset - kReservedSharedBytes > last) | (offset & (num_bytes - 1));
  };
  uint32_t wrong = 0;
  if (warp.mask == kAllLanes) {
    for (uint32_t i = 0; i < kWarpLanes; ++i) wrong |= is_wrong(offsets[i]);
  } else {
    for_each_lane(warp.mask, [&](uint32_t i) { wrong |= is_wrong(offsets[i]); });
  }
  return wrong == 0;
}

uint8_t* memory_pointer(Warp& warp, uint32_t lane, const MemoryRequest& request) {
  const AccessMode mode = access_mode(request.access, request.ordering);
  const uint64_t address = request.address;
  const uint32_t num_bytes = request.num_bytes;
  switch (request.space) {
    case MemorySpace::global: return accessed_global(warp, request, mode);
    case MemorySpace::constant: return warp.launch.memory.access(address, num_bytes, request.access);
    case MemorySpace::shared_cta:
      return accessed_shared(warp, shared_cta_pointer(warp, address, num_bytes), address, num_bytes, mode);
    case MemorySpace::shared_cluster:
      return accessed_shared(warp, shared_cluster_pointer(warp, address, num_bytes), address, num_bytes, mode);
    case MemorySpace::local: return local_pointer(warp, lane, address, num_bytes);
    case MemorySpace::param:
      if (request.access != Access::read) throw EmulatorError(Fault::illegal_address, "write to a kernel parameter");
      return param_pointer(warp, address, num_bytes);
    case MemorySpace::generic: break;
  }
  switch (space_of(address)) {
    case Space::global: return accessed_global(warp, request, mode);
    case Space::shared:
      return accessed_shared(warp, shared_cluster_pointer(warp, address - kSharedWindow, num_bytes),
                             address - kSharedWindow, num_bytes, mode);
    case Space::local: return local_pointer(warp, lane, address - kLocalWindow, num_bytes);
    case Space::param:
      return memory_pointer(warp, lane, {MemorySpace::param, address - kParamWindow, num_bytes, request.access});
    case Space::none: break;
  }
  throw EmulatorError(Fault::illegal_address, "generic address " + std::to_string(address) + " lies in no state space");
}

void tell_store_width(Decoding& d, MemorySpace space, uint32_t num_bytes) {
  Program& program = d.context.program;
  const bool generic = space == MemorySpace::generic;
  if (generic || space == MemorySpace::shared_cta || space == MemorySpace::shared_cluster)
    program.narrowest_shared_bytes = std::min(program.narrowest_shared_bytes, num_bytes);
  if (generic || space == MemorySpace::global)
    program.narrowest_global_bytes = std::min(program.narrowest_global_bytes, num_bytes);
}

void tell_communication(Decoding& d, MemorySpace space) {
  if (space == MemorySpace::generic || space == MemorySpace::global) d.context.program.clusters_communicate = true;
}

MemorySpace take_space(Decoding& d) {
  if (d.take("global")) return MemorySpace::global;
  if (d.take("shared") || d.take("shared::cta")) return MemorySpace::shared_cta;
  if (d.take("shared::cluster")) return MemorySpace::shared_cluster;
  if (d.take("local")) return MemorySpace::local;
  if (d.take("param") || d.take("param::entry")) return MemorySpace::param;
  if (d.take("const")) return MemorySpace::constant;
  return MemorySpace::generic;
}

}  // namespace opdeck::emu
