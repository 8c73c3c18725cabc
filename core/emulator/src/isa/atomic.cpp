// SPDX-License-Identifier: Apache-2.0
// atom and red: add, min, max, inc, dec, exch, cas, and, or, xor on global and shared memory, scalar and vector adds.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: atom, red".
// One warp runs at a time, so every operation is atomic; lanes act in ascending order. Orderings and scopes change
// nothing. Limits: .v2/.v4/.v8 for red.global.add.f32 and halves only; 128-bit cas and exch are not supported;
// red.async and multimem are not supported.
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "../tensor/numbers.h"
#include "../counters/count.h"
#include "lanes.h"
#include "memory_access.h"

namespace opdeck::emu {
namespace {

enum class Operation : uint8_t { add, min, max, inc, dec, and_, or_, xor_, exch, cas };

struct AtomicDetail {
  Operation operation = Operation::add;
  Type type = Type::u32;
  MemorySpace space = MemorySpace::generic;
  bool address_is_32_bits = false;
  bool returns = false;
  uint32_t elem_bytes = 4;  // of the type (2 for packed halves: each half acts on its own)
  std::vector<uint32_t> dst_rows, operand_rows;
  uint32_t swap_row = 0;
};

float half_value(uint32_t code, Type type) {
  return type == Type::f16 || type == Type::f16x2 ? decode_f16(static_cast<uint16_t>(code))
                                                  : decode_bf16(static_cast<uint16_t>(code));
}
uint16_t half_code(double value, Type type) {
  Conversion conversion;
  conversion.to = type == Type::f16 || type == Type::f16x2 ? NumberFormat::f16 : NumberFormat::bf16;
  return static_cast<uint16_t>(encode(value, conversion));
}

template <class T>
uint64_t apply_integer(Operation operation, T old, T value, T swap) {
  switch (operation) {
    case Operation::add: return static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(value);
    case Operation::min: return static_cast<uint64_t>(std::min(old, value));
    case Operation::max: return static_cast<uint64_t>(std::max(old, value));
    case Operation::inc: return old >= value ? 0 : static_cast<uint64_t>(old) + 1;
    case Operation::dec: return old == 0 || old > value ? static_cast<uint64_t>(value) : static_cast<uint64_t>(old) - 1;
    case Operation::and_: return static_cast<uint64_t>(old & value);
    case Operation::or_: return static_cast<uint64_t>(old | value);
    case Operation::xor_: return static_cast<uint64_t>(old ^ value);
    case Operation::exch: return static_cast<uint64_t>(value);
    case Operation::cas: return static_cast<uint64_t>(old == value ? swap : old);
  }
  return 0;
}

uint64_t apply_half(Operation operation, uint32_t old, uint32_t value, Type type) {
  const double x = half_value(old, type), y = half_value(value, type);
  if (operation == Operation::add) return half_code(x + y, type);
  if (x != x) return value;
  if (y != y) return old;
  return (operation == Operation::min) == (x < y) ? old : value;
}

uint64_t apply_float(Operation operation, uint64_t old, uint64_t value, Type type) {
  if (operation == Operation::exch) return value;
  if (type == Type::f64) return std::bit_cast<uint64_t>(std::bit_cast<double>(old) + std::bit_cast<double>(value));
  const float sum =
      std::bit_cast<float>(static_cast<uint32_t>(old)) + std::bit_cast<float>(static_cast<uint32_t>(value));
  return sum != sum ? 0x7fffffff : std::bit_cast<uint32_t>(sum);
}

uint64_t apply(const AtomicDetail& detail, uint64_t old, uint64_t value, uint64_t swap) {
  switch (detail.type) {
    case Type::s32:
      return apply_integer<int32_t>(detail.operation, static_cast<int32_t>(old), static_cast<int32_t>(value), 0);
    case Type::s64:
      return apply_integer<int64_t>(detail.operation, static_cast<int64_t>(old), static_cast<int64_t>(value), 0);
    case Type::u32:
    case Type::b32:
      return apply_integer<uint32_t>(detail.operation, static_cast<uint32_t>(old), static_cast<uint32_t>(value),
                                     static_cast<uint32_t>(swap));
    case Type::b16:
      return apply_integer<uint16_t>(detail.operation, static_cast<uint16_t>(old), static_cast<uint16_t>(value),
                                     static_cast<uint16_t>(swap));
    case Type::u64:
    case Type::b64: return apply_integer<uint64_t>(detail.operation, old, value, swap);
    case Type::f32:
    case Type::f64: return apply_float(detail.operation, old, value, detail.type);
    case Type::f16:
    case Type::bf16:
      return apply_half(detail.operation, static_cast<uint32_t>(old), static_cast<uint32_t>(value), detail.type);
    default: {  // two halves
      const uint64_t low = apply_half(detail.operation, old & 0xffff, value & 0xffff, detail.type);
      return low | apply_half(detail.operation, old >> 16 & 0xffff, value >> 16 & 0xffff, detail.type) << 16;
    }
  }
}

Flow run_atomic(Warp& warp, const Op& op) {
  const auto& detail = *static_cast<const AtomicDetail*>(op.detail);
  const uint32_t bytes = detail.elem_bytes, total = bytes * static_cast<uint32_t>(detail.operand_rows.size());
  count_access(warp, op, {detail.space, total, Access::read_write}, detail.address_is_32_bits);
  bool has_changed = false;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint64_t address = lane_address(warp, op, lane, detail.address_is_32_bits);
    check_alignment(address, total);
    uint8_t* const memory = memory_pointer(warp, lane, {detail.space, address, total, Access::read_write,
                                                         detail.returns ? Ordering::strong : Ordering::weak});
    for (size_t e = 0; e < detail.operand_rows.size(); ++e) {
      uint64_t old = 0, value = 0, swap = 0;
      std::memcpy(&old, memory + e * bytes, bytes);
      std::memcpy(&value, warp.row<uint8_t>(detail.operand_rows[e]) + lane * bytes, bytes);
      if (detail.operation == Operation::cas)
        std::memcpy(&swap, warp.row<uint8_t>(detail.swap_row) + lane * bytes, bytes);
      const uint64_t result = apply(detail, old, value, swap);
      has_changed |= std::memcmp(memory + e * bytes, &result, bytes) != 0;
      std::memcpy(memory + e * bytes, &result, bytes);
      if (detail.returns) std::memcpy(warp.row<uint8_t>(detail.dst_rows[e]) + lane * bytes, &old, bytes);
    }
  });
  if (has_changed) warp.launch.signal();
  return Flow::next;
}

bool allowed(const AtomicDetail& detail) {
  const Type t = detail.type;
  switch (detail.operation) {
    case Operation::add:
      return is_unsigned(t)
                 ? type_bits(t) >= 32
                 : t == Type::s32 || t == Type::f32 || t == Type::f64 || (t >= Type::f16 && t <= Type::bf16x2);
    case Operation::min:
    case Operation::max: return (is_integer(t) && type_bits(t) >= 32) || (t >= Type::f16 && t <= Type::bf16x2);
    case Operation::inc:
    case Operation::dec: return t == Type::u32;
    case Operation::and_:
    case Operation::or_:
    case Operation::xor_:
    case Operation::exch: return t == Type::b32 || t == Type::b64;
    case Operation::cas: return t == Type::b16 || t == Type::b32 || t == Type::b64;
  }
  return false;
}

void take_ordering(Decoding& d) {
  if (d.take("relaxed") || d.take("acquire") || d.take("release") || d.take("acq_rel"))
    d.take_one_of({"cta", "cluster", "gpu", "sys"}, "scope");
  else
    d.take("cta") || d.take("cluster") || d.take("gpu") || d.take("sys");
}

void take_operation(Decoding& d, AtomicDetail& detail) {
  take_ordering(d);
  detail.space = take_space(d);
  take_ordering(d);  // behind the space in the manual's examples, and in what NVIDIA's compiler writes
  detail.operation = static_cast<Operation>(
      d.take_one_of({"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"}, "operation"));
  const bool noftz = d.take("noftz");
  d.take("L2::cache_hint");
  const size_t num_elems = d.take("v2") ? 2 : d.take("v4") ? 4 : d.take("v8") ? 8 : 1;
  detail.type = d.take_type();
  detail.elem_bytes = type_bits(detail.type) / 8;
  const bool half = detail.type >= Type::f16 && detail.type <= Type::bf16x2;
  if (!allowed(detail)) d.unsupported("this operation of ." + std::string(type_name(detail.type)));
  if (half != noftz) d.unsupported(half ? "halves without .noftz" : ".noftz of this type");
  if (num_elems > 1 && (detail.space != MemorySpace::global || !(half || detail.type == Type::f32)))
    d.unsupported("vectors of this type");
  detail.operand_rows.resize(num_elems);
  tell_communication(d, detail.space);
  tell_store_width(d, detail.space, detail.elem_bytes * static_cast<uint32_t>(num_elems));
}

void set_operands(Decoding& d, AtomicDetail detail, size_t i) {
  const size_t num_elems = detail.operand_rows.size();
  const uint32_t bits = type_bits(detail.type);
  const AddressOperand address = d.address(i);
  d.op.a = address.row;
  d.op.immediate = address.offset;
  detail.address_is_32_bits = address.bits == 32;
  detail.operand_rows = d.source_list(d.operand(i + 1), bits);
  if (detail.operand_rows.size() != num_elems) d.malformed("the vector operand has a wrong length");
  const bool cas = detail.operation == Operation::cas;
  if (cas) detail.swap_row = d.source(i + 2, bits);
  d.require_operands(i + (cas ? 3 : 2), i + (cas ? 4 : 3));  // a cache hint may follow
  d.op.detail = d.keep(std::move(detail));
  d.op.execute = &run_atomic;
}

void decode_atom(Decoding& d) {
  AtomicDetail detail;
  take_operation(d, detail);
  detail.returns = true;
  detail.dst_rows = d.destination_list(d.operand(0), type_bits(detail.type));
  if (detail.dst_rows.size() != detail.operand_rows.size()) d.malformed("the vector operand has a wrong length");
  set_operands(d, std::move(detail), 1);
}
void decode_red(Decoding& d) {
  AtomicDetail detail;
  take_operation(d, detail);
  if (detail.operation >= Operation::exch) d.unsupported("red with exch or cas");
  set_operands(d, std::move(detail), 0);
}

}  // namespace

void add_atomic_instructions(InstructionTable& table) {
  table["atom"] = {decode_atom, manual::kSynchronization};
  table["red"] = {decode_red, manual::kSynchronization};
}

}  // namespace opdeck::emu
