// SPDX-License-Identifier: Apache-2.0
// ld, ldu, st: loads and stores of scalars and vectors in every state space; st.bulk, prefetch, applypriority.
// Source: PTX ISA, "Data Movement and Conversion Instructions: ld, st".
// Cache operators, eviction priorities, cache hints, scopes and ordering modifiers change no result here: one warp at a
// time runs, in program order. They are parsed strictly all the same.
#include <algorithm>
#include <cstring>

#include "../counters/count.h"
#include "../hazard/detector.h"
#include "lanes.h"
#include "memory_access.h"

namespace opdeck::emu {
namespace {

// How a register holds a loaded element that is narrower than itself.
struct MemoryAccess {
  MemorySpace space = MemorySpace::generic;
  bool address_is_32_bits = false;
  bool sign_extends = false;
  Ordering ordering = Ordering::weak;
  uint32_t elem_bytes = 0;
  uint32_t num_elems = 1;
  uint32_t total_bytes = 0;
  std::vector<uint32_t> rows;
  std::vector<uint32_t> register_bytes;
};

// The operands of a load or store that is about to be done.
const MemoryAccess& counted(Warp& warp, const Op& op, Access kind) {
  const auto& access = *static_cast<const MemoryAccess*>(op.detail);
  count_access(warp, op, {access.space, access.total_bytes, kind}, access.address_is_32_bits);
  return access;
}

Flow load(Warp& warp, const Op& op) {
  const MemoryAccess& access = counted(warp, op, Access::read);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t address = lane_address(warp, op, lane, access.address_is_32_bits);
    check_alignment(address, access.total_bytes);
    uint8_t bytes[32];
    std::memcpy(bytes,
                memory_pointer(warp, lane, {access.space, address, access.total_bytes, Access::read, access.ordering}),
                access.total_bytes);
    for (uint32_t e = 0; e < access.num_elems; ++e) {
      const uint32_t register_bytes = access.register_bytes[e];
      uint8_t wide[16] = {};
      std::memcpy(wide, bytes + e * access.elem_bytes, access.elem_bytes);
      if (access.sign_extends && (wide[access.elem_bytes - 1] & 0x80) != 0)
        std::memset(wide + access.elem_bytes, 0xff, 16 - access.elem_bytes);
      std::memcpy(warp.row<uint8_t>(access.rows[e]) + lane * register_bytes, wide, register_bytes);
    }
  });
  return Flow::next;
}

void put(Warp& warp, const MemoryAccess& access, uint32_t lane, uint64_t address, const uint8_t* bytes) {
  const MemoryRequest request{access.space,    address, access.total_bytes, Access::write,
                              access.ordering, bytes,   access.elem_bytes};
  std::memcpy(memory_pointer(warp, lane, request), bytes, access.total_bytes);
}

Flow store(Warp& warp, const Op& op) {
  const MemoryAccess& access = counted(warp, op, Access::write);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t address = lane_address(warp, op, lane, access.address_is_32_bits);
    check_alignment(address, access.total_bytes);
    uint8_t bytes[32];
    for (uint32_t e = 0; e < access.num_elems; ++e)
      std::memcpy(bytes + e * access.elem_bytes, warp.row<uint8_t>(access.rows[e]) + lane * access.register_bytes[e],
                  access.elem_bytes);
    put(warp, access, lane, address, bytes);
  });
  return Flow::next;
}

// The hot case: registers as wide as the elements.
template <class Elem>
Flow load_whole(Warp& warp, const Op& op) {
  const MemoryAccess& access = counted(warp, op, Access::read);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t address = lane_address(warp, op, lane, access.address_is_32_bits);
    check_alignment(address, access.total_bytes);
    const uint8_t* const memory =
        memory_pointer(warp, lane, {access.space, address, access.total_bytes, Access::read, access.ordering});
    for (uint32_t e = 0; e < access.num_elems; ++e)
      std::memcpy(warp.row<Elem>(access.rows[e]) + lane, memory + e * sizeof(Elem), sizeof(Elem));
  });
  return Flow::next;
}
template <class Elem>
Flow store_whole(Warp& warp, const Op& op) {
  const MemoryAccess& access = counted(warp, op, Access::write);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t address = lane_address(warp, op, lane, access.address_is_32_bits);
    check_alignment(address, access.total_bytes);
    uint8_t bytes[32];
    for (uint32_t e = 0; e < access.num_elems; ++e)
      std::memcpy(bytes + e * sizeof(Elem), warp.row<Elem>(access.rows[e]) + lane, sizeof(Elem));
    put(warp, access, lane, address, bytes);
  });
  return Flow::next;
}

// ... and weak accesses of the CTA's own shared memory: all lanes at once.
template <class Elem>
Flow load_shared(Warp& warp, const Op& op) {
  const auto& access = *static_cast<const MemoryAccess*>(op.detail);
  SharedOffsets offsets;
  if (!find_shared_offsets(warp, op, access.total_bytes, offsets)) return load_whole<Elem>(warp, op);
  counted(warp, op, Access::read);
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->read_shared(warp, offsets, access.total_bytes);
  for (uint32_t e = 0; e < access.num_elems; ++e) {
    const uint8_t* const memory = warp.cta.shared() + e * sizeof(Elem);
    Elem* const row = warp.row<Elem>(access.rows[e]);
    for_each_lane(warp.mask, [&](uint32_t lane) { std::memcpy(row + lane, memory + offsets[lane], sizeof(Elem)); });
  }
  return Flow::next;
}
template <class Elem>
Flow store_shared(Warp& warp, const Op& op) {
  const auto& access = *static_cast<const MemoryAccess*>(op.detail);
  SharedOffsets offsets;
  if (!find_shared_offsets(warp, op, access.total_bytes, offsets)) return store_whole<Elem>(warp, op);
  counted(warp, op, Access::write);
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->write_shared(warp, offsets, access.total_bytes);
  for_each_lane(warp.mask, [&](uint32_t lane) {  // of lanes that write the same place the last one wins
    uint8_t* const memory = warp.cta.shared() + offsets[lane];
    for (uint32_t e = 0; e < access.num_elems; ++e)
      std::memcpy(memory + e * sizeof(Elem), warp.row<Elem>(access.rows[e]) + lane, sizeof(Elem));
  });
  return Flow::next;
}

bool has_whole_registers(const MemoryAccess& access) {
  return std::all_of(access.register_bytes.begin(), access.register_bytes.end(),
                     [&](uint32_t register_bytes) { return register_bytes == access.elem_bytes; });
}
bool is_plain_shared(const MemoryAccess& access) {
  return access.space == MemorySpace::shared_cta && access.address_is_32_bits && access.ordering == Ordering::weak;
}
template <class Elem>
Execute pick_whole_load(const MemoryAccess& access) {
  return is_plain_shared(access) ? &load_shared<Elem> : &load_whole<Elem>;
}
template <class Elem>
Execute pick_whole_store(const MemoryAccess& access) {
  return is_plain_shared(access) ? &store_shared<Elem> : &store_whole<Elem>;
}
Execute pick_load(const MemoryAccess& access) {
  if (!has_whole_registers(access)) return &load;
  switch (access.elem_bytes) {
    case 2: return pick_whole_load<uint16_t>(access);
    case 4: return pick_whole_load<uint32_t>(access);
    case 8: return pick_whole_load<uint64_t>(access);
    default: return &load;
  }
}
Execute pick_store(const MemoryAccess& access) {
  if (!has_whole_registers(access)) return &store;
  switch (access.elem_bytes) {
    case 2: return pick_whole_store<uint16_t>(access);
    case 4: return pick_whole_store<uint32_t>(access);
    case 8: return pick_whole_store<uint64_t>(access);
    default: return &store;
  }
}

// A parameter at a known offset is the same for all lanes.
Flow load_parameter(Warp& warp, const Op& op) {
  const auto& access = *static_cast<const MemoryAccess*>(op.detail);
  const uint8_t* const bytes = param_pointer(warp, static_cast<uint64_t>(op.immediate), access.total_bytes);
  for (uint32_t e = 0; e < access.num_elems; ++e) {
    const uint32_t register_bytes = access.register_bytes[e];
    uint8_t wide[16] = {};
    std::memcpy(wide, bytes + e * access.elem_bytes, access.elem_bytes);
    if (access.sign_extends && (wide[access.elem_bytes - 1] & 0x80) != 0)
      std::memset(wide + access.elem_bytes, 0xff, 16 - access.elem_bytes);
    uint8_t* const row = warp.row<uint8_t>(access.rows[e]);
    for_each_lane(warp.mask, [&](uint32_t lane) { std::memcpy(row + lane * register_bytes, wide, register_bytes); });
  }
  return Flow::next;
}

void take_scope(Decoding& d) { d.take_one_of({"cta", "cluster", "gpu", "sys"}, "scope"); }

// Between the opcode and the type, in PTX's order.
void take_cache_modifiers(Decoding& d, MemorySpace space) {
  if (d.take("cv") || d.take("wt")) tell_communication(d, space);  // as volatile as the cache lets them be
  for (const std::string_view m : {"ca", "cg", "cs", "lu", "wb", "nc"}) d.take(m);
  for (const std::string_view level : {"L1::", "L2::"}) {
    for (const std::string_view m : {"evict_normal", "evict_unchanged", "evict_first", "evict_last", "no_allocate"})
      d.take(std::string(level).append(m));
  }
  d.take("L2::cache_hint");
  for (const std::string_view m : {"L2::64B", "L2::128B", "L2::256B"}) d.take(m);
}

// Vectors are of at most 16 bytes but for .v4 of 64 and .v8 of 32 bits in global memory.
void check_vector(Decoding& d, const MemoryAccess& access) {
  const std::string vector = ".v" + std::to_string(access.num_elems);
  const bool is_long = access.total_bytes == 32 && access.elem_bytes <= 8;
  if (access.elem_bytes > 8 || access.total_bytes > 32 || (access.num_elems == 8 && !is_long))
    d.unsupported(vector + " of " + std::to_string(8 * access.elem_bytes) + " bits");
  if (!is_long) return;
  if (access.space != MemorySpace::global) d.unsupported(vector + " of 32 bytes outside .global");
  d.require_target({Target::sm_100a, Target::sm_103a});
}

MemoryAccess take_access(Decoding& d) {
  MemoryAccess access;
  d.take("weak");
  const bool ordered = d.take("relaxed") || d.take("acquire") || d.take("release");
  if (ordered) take_scope(d);
  if (ordered || d.take("volatile")) access.ordering = Ordering::strong;
  access.space = take_space(d);
  if (access.ordering == Ordering::strong) tell_communication(d, access.space);
  take_cache_modifiers(d, access.space);
  access.num_elems = d.take("v2") ? 2 : d.take("v4") ? 4 : d.take("v8") ? 8 : 1;
  const Type type = d.take_type_of({Type::b8, Type::b16, Type::b32, Type::b64, Type::b128, Type::u8, Type::u16,
                                    Type::u32, Type::u64, Type::s8, Type::s16, Type::s32, Type::s64, Type::f32,
                                    Type::f64});
  access.elem_bytes = type_bits(type) / 8;
  access.total_bytes = access.elem_bytes * access.num_elems;
  access.sign_extends = is_signed(type);
  if (access.num_elems > 1) check_vector(d, access);
  return access;
}

// `take` is Decoding::any_destination of a load, any_source of a store.
void set_registers(Decoding& d, MemoryAccess& access, const ptx::Operand& operand,
                   uint32_t (Decoding::*take)(const ptx::Operand&, uint32_t&)) {
  const std::vector<ptx::Operand> single{operand};
  const bool is_vector = operand.kind == ptx::Operand::Kind::vector;
  const std::vector<ptx::Operand>& items = is_vector ? operand.items : single;
  if (items.size() != access.num_elems) d.malformed("the vector operand has a wrong length");
  for (const ptx::Operand& item : items) {
    uint32_t bits = access.elem_bytes * 8;
    access.rows.push_back((d.*take)(item, bits));
    if (bits < access.elem_bytes * 8) d.malformed("a register is narrower than the type");
    access.register_bytes.push_back(bits / 8);
  }
}

void set_address(Decoding& d, MemoryAccess& access, const ptx::Operand& operand) {
  const AddressOperand address = d.address(operand);
  d.op.a = address.row;
  d.op.immediate = address.offset;
  access.address_is_32_bits = address.bits == 32;
  if (operand.items.size() != 1) d.malformed("the address has more than one part");
}

void decode_ld(Decoding& d) {
  MemoryAccess access = take_access(d);
  d.require_operands(2, 3);  // the third is a cache hint
  set_registers(d, access, d.operand(0), &Decoding::any_destination);
  set_address(d, access, d.operand(1));
  d.op.execute = pick_load(access);
  const ptx::Operand& base = d.operand(1).items[0];
  if (access.space == MemorySpace::param && base.kind == ptx::Operand::Kind::symbol) {
    const ptx::Parameter* parameter = d.context.find_parameter(base.name);
    if (parameter == nullptr) d.malformed("'" + base.name + "' is not a parameter");
    d.op.immediate = parameter->offset_bytes + d.operand(1).value;
    d.op.execute = &load_parameter;
  }
  d.op.detail = d.keep(std::move(access));
}

void decode_st(Decoding& d) {
  MemoryAccess access = take_access(d);
  d.require_operands(2, 3);
  set_address(d, access, d.operand(0));
  set_registers(d, access, d.operand(1), &Decoding::any_source);
  tell_store_width(d, access.space, access.total_bytes);
  d.op.execute = pick_store(access);
  d.op.detail = d.keep(std::move(access));
}

// Zeros in shared memory.
Flow store_zeros(Warp& warp, const Op& op) {
  const auto& access = *static_cast<const MemoryAccess*>(op.detail);
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t address = lane_address(warp, op, lane, access.address_is_32_bits);
    const uint64_t num_bytes = warp.row<uint64_t>(op.b)[lane];
    constexpr uint64_t kMaxBytes = 16 << 20;
    check_alignment(address, 8);
    if (num_bytes % 8 != 0 || num_bytes > kMaxBytes)
      throw EmulatorError(Fault::illegal_instruction,
                          "size " + std::to_string(num_bytes) + ", a multiple of 8 up to 16777216 is wanted");
    if (OpTally* tally = tally_of(warp)) tally->shared_write_bytes += num_bytes;
    const MemoryRequest request{access.space, address, static_cast<uint32_t>(num_bytes), Access::write};
    if (num_bytes != 0) std::memset(memory_pointer(warp, lane, request), 0, num_bytes);
  });
  return Flow::next;
}
void decode_st_bulk(Decoding& d) {
  MemoryAccess access;
  d.require_target({Target::sm_100a, Target::sm_103a});
  d.take("weak");
  access.space = take_space(d);
  if (access.space != MemorySpace::shared_cta && access.space != MemorySpace::generic) d.unsupported("this state space");
  d.require_operands(3);
  set_address(d, access, d.operand(0));
  d.op.b = d.source(1, 64);
  if (d.immediate(2) != 0) d.malformed("initial value " + std::to_string(d.immediate(2)) + ", 0 wanted");
  tell_store_width(d, access.space, 8);
  d.op.detail = d.keep(std::move(access));
  d.op.execute = &store_zeros;
}

void decode_applypriority(Decoding& d) {
  d.take("global");
  d.take_one_of({"L2::evict_normal"}, "priority");
  d.require_operands(2);
  d.address(size_t{0});
  if (d.immediate(1) != 128) d.malformed("size " + std::to_string(d.immediate(1)) + ", 128 wanted");
  d.op.execute = +[](Warp&, const Op&) { return Flow::next; };
}

// Prefetches check nothing and change nothing: an illegal prefetch address is harmless on the chip too.
void decode_prefetch(Decoding& d) {
  if (d.take("tensormap") || d.take("const") || d.take("param")) d.take("tensormap");
  d.take("global");
  d.take("local");
  for (const std::string_view m : {"L1", "L2", "L2::evict_last", "L2::evict_normal"}) d.take(m);
  d.require_operands(1);
  d.address(size_t{0});
  d.op.execute = +[](Warp&, const Op&) { return Flow::next; };
}

void decode_cache_policy(Decoding& d) {
  d.take_one_of({"fractional", "range"}, "kind of policy");
  d.take("global");
  d.take_one_of({"L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"}, "primary priority");
  d.take("L2::evict_first") || d.take("L2::evict_unchanged");
  d.take_type_of({Type::b64});
  d.op.dst = d.destination(0, 64);
  d.op.execute = +[](Warp& warp, const Op& op) {
    for_each_lane(warp.mask, [&](uint32_t lane) { warp.row<uint64_t>(op.dst)[lane] = 0; });
    return Flow::next;
  };
}

}  // namespace

void add_memory_instructions(InstructionTable& table) {
  table["ld"] = {decode_ld, manual::kDataMovement};
  table["ldu"] = {decode_ld, manual::kDataMovement};
  table["st"] = {decode_st, manual::kDataMovement};
  table["st.bulk"] = {decode_st_bulk, manual::kDataMovement};
  table["applypriority"] = {decode_applypriority, manual::kDataMovement};
  table["prefetch"] = {decode_prefetch, manual::kDataMovement};
  table["prefetchu"] = {decode_prefetch, manual::kDataMovement};
  table["createpolicy"] = {decode_cache_policy, manual::kDataMovement};
}

}  // namespace opdeck::emu
