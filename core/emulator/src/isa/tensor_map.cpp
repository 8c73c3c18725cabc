// SPDX-License-Identifier: Apache-2.0
// Tensor maps that a kernel makes: tensormap.replace and tensormap.cp_fenceproxy.
// Source: PTX ISA, "Data Movement and Conversion Instructions: tensormap.replace", "Parallel Synchronization and
// Communication Instructions: tensormap.cp_fenceproxy".
// A map is read when a copy that uses it issues; that a fence.proxy.tensormap is missing is for the hazard checks to say.
#include <bit>
#include <cstring>

#include "../hazard/detector.h"
#include "../tensor/tensormap.h"
#include "decode.h"
#include "lanes.h"
#include "memory_access.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t kMapBytes = 128, kMapAlignmentBytes = 64;

uint64_t address_of(Warp& warp, const AddressOperand& operand, uint32_t lane) {
  const uint64_t base =
      operand.bits == 32 ? warp.row<uint32_t>(operand.row)[lane] : warp.row<uint64_t>(operand.row)[lane];
  const uint64_t address = base + static_cast<uint64_t>(operand.offset);
  check_alignment(address, kMapAlignmentBytes);
  return address;
}

struct Replacement {
  MemorySpace space = MemorySpace::generic;
  AddressOperand map;
  TensorMapField field = TensorMapField::global_address;
  uint32_t ordinal = 0;
  uint32_t value_row = 0, value_bits = 32;
};

Flow replace_field(Warp& warp, const Op& op) {
  const auto& replacement = *static_cast<const Replacement*>(op.detail);
  // A write of the whole map: the second half of one that a host made may hold nothing.
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t address = address_of(warp, replacement.map, lane);
    uint8_t* const bytes = memory_pointer(warp, lane, {replacement.space, address, kMapBytes, Access::write});
    const uint64_t value = replacement.value_bits == 32 ? warp.row<uint32_t>(replacement.value_row)[lane]
                                                        : warp.row<uint64_t>(replacement.value_row)[lane];
    const Error error = replace_tensor_map_field(bytes, replacement.field, replacement.ordinal, value);
    if (!error.empty()) throw EmulatorError(Fault::illegal_instruction, error);
  });
  return Flow::next;
}

void decode_replace(Decoding& d) {
  Replacement replacement;
  d.take_one_of({"tile"}, "mode");
  replacement.field = static_cast<TensorMapField>(
      d.take_one_of({"global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype",
                     "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode"},
                    "field"));
  if (d.take("global"))
    replacement.space = MemorySpace::global;
  else if (d.take("shared::cta"))
    replacement.space = MemorySpace::shared_cta;
  d.take_one_of({"b1024"}, "size");
  const bool is_wide = replacement.field == TensorMapField::global_address ||
                       replacement.field == TensorMapField::global_stride;
  replacement.value_bits = type_bits(d.take_type_of({is_wide ? Type::b64 : Type::b32}));
  const uint32_t ordinals = num_ordinals(replacement.field);
  d.require_operands(ordinals == 0 ? 2 : 3);
  replacement.map = d.address(size_t{0});
  if (ordinals != 0) {
    const int64_t ordinal = d.immediate(1);
    if (ordinal < 0 || ordinal >= ordinals)
      d.malformed("ordinal " + std::to_string(ordinal) + ", 0 .. " + std::to_string(ordinals - 1) + " wanted");
    replacement.ordinal = static_cast<uint32_t>(ordinal);
  }
  const size_t value = d.num_operands() - 1;
  if (replacement.field >= TensorMapField::elemtype) d.immediate(value);  // PTX: these are constants
  replacement.value_row = d.source(value, replacement.value_bits);
  tell_store_width(d, replacement.space, kMapBytes);
  d.op.detail = d.keep(replacement);
  d.op.execute = &replace_field;
}

struct MapCopy {
  AddressOperand target, source;
};

// One copy a warp, of which all lanes give the same addresses.
Flow copy_map(Warp& warp, const Op& op) {
  if (!warp.aligned_but_exited()) return Flow::blocked;
  const auto& copy = *static_cast<const MapCopy*>(op.detail);
  const uint32_t lane = static_cast<uint32_t>(std::countr_zero(warp.mask));
  const uint64_t target = address_of(warp, copy.target, lane), source = address_of(warp, copy.source, lane);
  for_each_lane(warp.mask, [&](uint32_t other) {
    if (address_of(warp, copy.target, other) != target || address_of(warp, copy.source, other) != source)
      throw EmulatorError(Fault::illegal_instruction, "the lanes give different addresses");
  });
  const uint8_t* const from = memory_pointer(warp, lane, {MemorySpace::shared_cta, source, kMapBytes});
  std::memcpy(warp.launch.memory.access(target, kMapBytes, Access::write), from, kMapBytes);
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->copy_tensor_map(warp, target);
  return Flow::next;
}

void decode_copy_map(Decoding& d) {
  for (const std::string_view modifier : {"global", "shared::cta", "tensormap::generic", "release"})
    d.take_one_of({modifier}, "modifier");
  const size_t scope = d.take_one_of({"cta", "cluster", "gpu", "sys"}, "scope");
  d.take_one_of({"sync"}, "modifier");
  d.take_one_of({"aligned"}, "modifier");
  d.require_operands(3);
  if (d.immediate(2) != kMapBytes) d.malformed("size " + std::to_string(d.immediate(2)) + ", 128 wanted");
  MapCopy copy{d.address(size_t{0}), d.address(1)};
  tell_store_width(d, MemorySpace::global, kMapBytes);
  d.context.program.clusters_communicate |= scope >= 2;
  d.op.detail = d.keep(copy);
  d.op.execute = &copy_map;
}

}  // namespace

void add_tensor_map_instructions(InstructionTable& table) {
  table["tensormap.replace"] = {decode_replace, manual::kDataMovement};
  table["tensormap.cp_fenceproxy"] = {decode_copy_map, manual::kSynchronization};
}

}  // namespace opdeck::emu
