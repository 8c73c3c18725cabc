// SPDX-License-Identifier: Apache-2.0
// Moves that touch no memory: mov (packing and unpacking vectors too), cvta, mapa, getctarank, isspacep, prmt.
// Source: PTX ISA, "Data Movement and Conversion Instructions".
// Limits: clocks count the warp instructions of all finished slices; no vector registers (.v2 .reg).
#include <cstring>

#include "../machine/address_space.h"
#include "../machine/cta.h"
#include "decode.h"
#include "lanes.h"
#include "type_dispatch.h"

namespace opdeck::emu {
namespace {

template <class T>
Flow copy(Warp& warp, const Op& op) {
  return map_lanes<T, T>(warp, op, [](T a) { return a; });
}
struct Word128 {
  uint64_t low, high;
};

Flow copy_predicate(Warp& warp, const Op& op) {
  set_predicate(warp, op.dst, warp.predicate(op.a));
  return Flow::next;
}

// Elements of a vector operand beside one wide register, lowest bits first.
struct Packing {
  std::vector<uint32_t> rows;
  uint32_t elem_bytes = 0;
};

Flow pack(Warp& warp, const Op& op) {
  const auto& packing = *static_cast<const Packing*>(op.detail);
  const uint32_t elem_bytes = packing.elem_bytes, num_elems = static_cast<uint32_t>(packing.rows.size());
  uint8_t* const dst = warp.row<uint8_t>(op.dst);
  for_each_lane(warp.mask, [&](uint32_t i) {
    uint8_t value[16];
    for (uint32_t e = 0; e < num_elems; ++e)
      std::memcpy(value + e * elem_bytes, warp.row<uint8_t>(packing.rows[e]) + i * elem_bytes, elem_bytes);
    std::memcpy(dst + i * elem_bytes * num_elems, value, size_t{elem_bytes} * num_elems);
  });
  return Flow::next;
}

Flow unpack(Warp& warp, const Op& op) {
  const auto& packing = *static_cast<const Packing*>(op.detail);
  const uint32_t elem_bytes = packing.elem_bytes, num_elems = static_cast<uint32_t>(packing.rows.size());
  const uint8_t* const src = warp.row<uint8_t>(op.a);
  for_each_lane(warp.mask, [&](uint32_t i) {
    uint8_t value[16];
    std::memcpy(value, src + i * elem_bytes * num_elems, size_t{elem_bytes} * num_elems);
    for (uint32_t e = 0; e < num_elems; ++e)
      std::memcpy(warp.row<uint8_t>(packing.rows[e]) + i * elem_bytes, value + e * elem_bytes, elem_bytes);
  });
  return Flow::next;
}

// The common packing: two halves of 32 bits.
Flow pack_pair(Warp& warp, const Op& op) {
  return map_lanes2<uint64_t, uint32_t, uint32_t>(
      warp, op, [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; });
}
Flow unpack_pair(Warp& warp, const Op& op) {
  uint32_t* const low = warp.row<uint32_t>(op.b);
  uint32_t* const high = warp.row<uint32_t>(op.c);
  const uint64_t* const src = warp.row<uint64_t>(op.a);
  if (warp.mask == kAllLanes) {
#pragma GCC ivdep
    for (uint32_t i = 0; i < kWarpLanes; ++i) {
      low[i] = static_cast<uint32_t>(src[i]);
      high[i] = static_cast<uint32_t>(src[i] >> 32);
    }
  } else {
    for_each_lane(warp.mask, [&](uint32_t i) {
      low[i] = static_cast<uint32_t>(src[i]);
      high[i] = static_cast<uint32_t>(src[i] >> 32);
    });
  }
  return Flow::next;
}

template <class T>
Flow read_clock(Warp& warp, const Op& op) {
  T* const dst = warp.row<T>(op.dst);
  const T now = static_cast<T>(warp.launch.counters.warp_instructions);
  for_each_lane(warp.mask, [&](uint32_t i) { dst[i] = now; });
  return Flow::next;
}

void decode_vector_mov(Decoding& d, uint32_t bits) {
  const bool packs = d.operand(1).kind == ptx::Operand::Kind::vector;
  const ptx::Operand& vector = d.operand(packs ? 1 : 0);
  const uint32_t num_elems = static_cast<uint32_t>(vector.items.size());
  if (num_elems == 0 || bits % num_elems != 0 || bits / num_elems < 8) d.malformed("vector of a wrong length");
  const uint32_t elem_bits = bits / num_elems;
  Packing packing;
  packing.elem_bytes = elem_bits / 8;
  packing.rows = packs ? d.source_list(vector, elem_bits) : d.destination_list(vector, elem_bits);
  const bool pair = bits == 64 && elem_bits == 32;
  if (packs) {
    d.op.dst = d.destination(0, bits);
    d.op.execute = pair ? vectorised<&pack_pair>() : &pack;
    d.op.a = packing.rows[0];
    d.op.b = packing.rows[num_elems > 1 ? 1 : 0];
  } else {
    d.op.a = d.source(1, bits);
    d.op.execute = pair ? vectorised<&unpack_pair>() : &unpack;
    d.op.b = packing.rows[0];
    d.op.c = packing.rows[num_elems > 1 ? 1 : 0];
  }
  d.op.detail = d.keep(std::move(packing));
}

void decode_mov(Decoding& d) {
  const Type type = d.take_type_of({Type::pred, Type::b16, Type::b32, Type::b64, Type::b128, Type::u16, Type::u32,
                                    Type::u64, Type::s16, Type::s32, Type::s64, Type::f32, Type::f64});
  const uint32_t bits = type_bits(type);
  d.require_operands(2);
  using Kind = ptx::Operand::Kind;
  if (d.operand(0).kind == Kind::vector || d.operand(1).kind == Kind::vector) return decode_vector_mov(d, bits);
  d.op.dst = d.destination(0, bits);
  const std::string& name = d.operand(1).name;
  if (d.operand(1).kind == Kind::special && (name == "%clock" || name == "%clock64" || name == "%clock_hi" ||
                                             name == "%globaltimer" || name == "%globaltimer_lo")) {
    d.op.execute = bits == 64 ? &read_clock<uint64_t> : &read_clock<uint32_t>;
    return;
  }
  d.op.a = d.source(1, bits);
  if (type == Type::pred)
    d.op.execute = &copy_predicate;
  else if (bits == 128)
    d.op.execute = &copy<Word128>;
  else
    d.op.execute = for_bits(bits, [](auto zero) { return vectorised<&copy<decltype(zero)>>(); });
}

struct Window {
  uint64_t first = 0;
  bool is_own_cta = false;  // of shared memory, that of the executing CTA alone
};
Window take_window(Decoding& d) {
  if (d.take("global") || d.take("const")) return {0};
  if (d.take("shared") || d.take("shared::cta")) return {kSharedWindow, true};
  if (d.take("shared::cluster")) return {kSharedWindow};
  if (d.take("local")) return {kLocalWindow};
  if (d.take("param") || d.take("param::entry")) return {kParamWindow};
  d.unsupported("state space ." + std::string(d.next_modifier()));
}

// A window's addresses differ from generic ones by a constant.
Flow add_window(Warp& warp, const Op& op) {
  const uint64_t window = static_cast<uint64_t>(op.immediate);
  return map_lanes<uint64_t, uint64_t>(warp, op, [window](uint64_t a) { return a + window; });
}
void decode_cvta(Decoding& d) {
  const bool to_space = d.take("to");
  const uint64_t window = take_window(d).first;
  d.take_type_of({Type::u64});
  d.require_operands(2);
  d.op.dst = d.destination(0, 64);
  d.op.a = d.source(1, 64);
  d.op.immediate = static_cast<int64_t>(to_space ? 0 - window : window);
  d.op.execute = vectorised<&add_window>();
}

// A rank that the cluster does not have gives an address at which any access is an error.
Flow map_shared_address(Warp& warp, const Op& op) {
  return map_lanes2<uint32_t, uint32_t, uint32_t>(
      warp, op, [](uint32_t address, uint32_t rank) { return shared_address(rank & 0xff, shared_offset(address)); });
}
template <uint64_t window>
Flow map_address64(Warp& warp, const Op& op) {
  const uint32_t* const rank = warp.row<uint32_t>(op.b);
  const uint64_t* const address = warp.row<uint64_t>(op.a);
  uint64_t* const dst = warp.row<uint64_t>(op.dst);
  for_each_lane(warp.mask, [&](uint32_t i) {
    if (window != 0 && space_of(address[i]) != Space::shared)
      throw EmulatorError(Fault::illegal_instruction, "mapa of a generic address outside shared memory");
    dst[i] = window + shared_address(rank[i] & 0xff, shared_offset(static_cast<uint32_t>(address[i])));
  });
  return Flow::next;
}
void decode_mapa(Decoding& d) {
  const bool shared = d.take("shared::cluster");
  const Type type = d.take_type_of({Type::u32, Type::u64});
  d.require_operands(3);
  d.op.dst = d.destination(0, type_bits(type));
  d.op.a = d.source(1, type_bits(type));
  d.op.b = d.source(2, 32);
  if (type == Type::u32 && !shared) d.unsupported("generic addresses of 32 bits");
  d.op.execute = type == Type::u32 ? &map_shared_address : shared ? &map_address64<0> : &map_address64<kSharedWindow>;
}

template <class T>
Flow rank_of_address(Warp& warp, const Op& op) {
  return map_lanes<uint32_t, T>(warp, op, [](T a) { return shared_rank(static_cast<uint32_t>(a)); });
}
void decode_getctarank(Decoding& d) {
  d.take("shared::cluster");
  const Type type = d.take_type_of({Type::u32, Type::u64});
  d.require_operands(2);
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, type_bits(type));
  d.op.execute = type == Type::u32 ? &rank_of_address<uint32_t> : &rank_of_address<uint64_t>;
}

Flow is_in_space(Warp& warp, const Op& op) {
  const uint64_t* const a = warp.row<uint64_t>(op.a);
  const auto space = static_cast<Space>(op.immediate & 0xff);
  const bool own_cta = (op.immediate >> 8) != 0;
  uint32_t result = 0;
  for_each_lane(warp.mask, [&](uint32_t i) {
    const bool own = shared_rank(static_cast<uint32_t>(a[i])) == warp.cta.rank;
    if (space_of(a[i]) == space && (!own_cta || own)) result |= 1u << i;
  });
  set_predicate(warp, op.dst, result);
  return Flow::next;
}
void decode_isspacep(Decoding& d) {
  const Window window = take_window(d);
  d.require_operands(2);
  d.op.dst = d.destination(0, 1);
  d.op.a = d.source(1, 64);
  d.op.immediate = static_cast<int64_t>(static_cast<uint64_t>(space_of(window.first)) | (window.is_own_cta ? 256 : 0));
  d.op.execute = &is_in_space;
}

// Each nibble of the selector names a byte of {b, a}; its top bit replicates that byte's sign.
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t pick = selector >> (4 * i) & 0xf;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (pick & 7)) & 0xff);
    if ((pick & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
Flow permute(Warp& warp, const Op& op) {
  return map_lanes3<uint32_t, uint32_t, uint32_t, uint32_t>(warp, op, permute_bytes);
}
// Selectors of the special modes, by mode and the low two bits of c.
constexpr uint16_t kPermuteModes[6][4] = {{0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
                                          {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
                                          {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
Flow permute_mode(Warp& warp, const Op& op) {
  const uint16_t* const modes = kPermuteModes[op.immediate];
  return map_lanes3<uint32_t, uint32_t, uint32_t, uint32_t>(
      warp, op, [modes](uint32_t a, uint32_t b, uint32_t c) { return permute_bytes(a, b, modes[c & 3]); });
}
void decode_prmt(Decoding& d) {
  d.take_type_of({Type::b32});
  d.require_operands(4);
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, 32);
  d.op.b = d.source(2, 32);
  d.op.c = d.source(3, 32);
  d.op.execute = &permute;
  constexpr std::string_view kModes[] = {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};
  for (size_t mode = 0; mode < std::size(kModes); ++mode)
    if (d.take(kModes[mode])) {
      d.op.immediate = static_cast<int64_t>(mode);
      d.op.execute = &permute_mode;
    }
}

}  // namespace

void add_move_instructions(InstructionTable& table) {
  table["mov"] = {decode_mov, manual::kDataMovement};
  table["cvta"] = {decode_cvta, manual::kDataMovement};
  table["mapa"] = {decode_mapa, manual::kDataMovement};
  table["getctarank"] = {decode_getctarank, manual::kDataMovement};
  table["isspacep"] = {decode_isspacep, manual::kDataMovement};
  table["prmt"] = {decode_prmt, manual::kDataMovement};
}

}  // namespace opdeck::emu
