// SPDX-License-Identifier: Apache-2.0
// Instructions across the lanes of a warp: shfl, vote, match, redux, elect, activemask, bar.warp.sync.
// Source: PTX ISA, "Data Movement: shfl.sync", "Parallel Synchronization: vote.sync, match.sync, redux.sync,
// elect.sync". Each waits until the lanes of its member mask stand at it.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "../machine/cta.h"
#include "decode.h"
#include "lanes.h"
#include "type_dispatch.h"

namespace opdeck::emu {
namespace {

// The member mask, which all executing lanes must agree on.
uint32_t member_mask(Warp& warp, uint32_t row) {
  const uint32_t* const masks = warp.row<uint32_t>(row);
  const uint32_t members = masks[std::countr_zero(warp.mask)];
  for_each_lane(warp.mask, [&](uint32_t lane) {
    if (masks[lane] != members)
      throw EmulatorError(Fault::illegal_instruction, "the lanes give different member masks");
    if ((members >> lane & 1) == 0)
      throw EmulatorError(Fault::illegal_instruction,
                          "lane " + std::to_string(lane) + " is not in its own member mask");
  });
  return members;
}

enum class Shuffle : uint8_t { up, down, bfly, idx };
struct ShuffleDetail {
  Shuffle mode = Shuffle::idx;
  bool has_predicate = false;
  uint32_t predicate_row = 0;
};

Flow shuffle(Warp& warp, const Op& op) {
  const auto& detail = *static_cast<const ShuffleDetail*>(op.detail);
  if (!warp.converged(member_mask(warp, op.d))) return Flow::blocked;
  std::array<uint32_t, kWarpLanes> source;
  std::copy_n(warp.row<uint32_t>(op.a), kWarpLanes, source.begin());
  const uint32_t* const b = warp.row<uint32_t>(op.b);
  const uint32_t* const c = warp.row<uint32_t>(op.c);
  uint32_t* const dst = warp.row<uint32_t>(op.dst);
  uint32_t in_range = 0;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const uint32_t amount = b[lane] & 31, clamp = c[lane] & 31, segment = c[lane] >> 8 & 31;
    const uint32_t max_lane = (lane & segment) | (clamp & ~segment), min_lane = lane & segment;
    int32_t from = 0;
    bool valid = false;
    switch (detail.mode) {
      case Shuffle::up:
        from = static_cast<int32_t>(lane) - static_cast<int32_t>(amount);
        valid = from >= static_cast<int32_t>(max_lane);
        break;
      case Shuffle::down:
        from = static_cast<int32_t>(lane + amount);
        valid = from <= static_cast<int32_t>(max_lane);
        break;
      case Shuffle::bfly:
        from = static_cast<int32_t>(lane ^ amount);
        valid = from <= static_cast<int32_t>(max_lane);
        break;
      case Shuffle::idx:
        from = static_cast<int32_t>(min_lane | (amount & ~segment));
        valid = from <= static_cast<int32_t>(max_lane);
        break;
    }
    if (!valid) from = static_cast<int32_t>(lane);
    if ((warp.mask >> from & 1) == 0)
      throw EmulatorError(Fault::illegal_instruction, "lane " + std::to_string(lane) + " reads lane " +
                                                          std::to_string(from) +
                                                          ", which does not execute the shuffle");
    dst[lane] = source[static_cast<size_t>(from)];
    in_range |= static_cast<uint32_t>(valid) << lane;
  });
  if (detail.has_predicate) set_predicate(warp, detail.predicate_row, in_range);
  return Flow::next;
}

void decode_shfl(Decoding& d) {
  d.take_one_of({"sync"}, "modifier");
  ShuffleDetail detail;
  detail.mode = static_cast<Shuffle>(d.take_one_of({"up", "down", "bfly", "idx"}, "mode"));
  d.take_type_of({Type::b32});
  d.require_operands(5);
  if (d.operand(0).kind == ptx::Operand::Kind::pair) {
    d.op.dst = d.destination(d.operand(0).items[0], 32);
    detail.has_predicate = true;
    detail.predicate_row = d.destination(d.operand(0).items[1], 1);
  } else {
    d.op.dst = d.destination(0, 32);
  }
  d.op.a = d.source(1, 32);
  d.op.b = d.source(2, 32);
  d.op.c = d.source(3, 32);
  d.op.d = d.source(4, 32);
  d.op.detail = d.keep(detail);
  d.op.execute = &shuffle;
}

enum class Vote : uint8_t { all, any, uni, ballot };

// op.immediate flips a negated source predicate.
template <Vote mode>
Flow vote(Warp& warp, const Op& op) {
  if (!warp.converged(member_mask(warp, op.d))) return Flow::blocked;
  const uint32_t members = warp.mask;
  const uint32_t holding = (warp.predicate(op.a) ^ static_cast<uint32_t>(op.immediate)) & members;
  if (mode == Vote::ballot) {
    uint32_t* const dst = warp.row<uint32_t>(op.dst);
    for_each_lane(members, [&](uint32_t lane) { dst[lane] = holding; });
    return Flow::next;
  }
  const bool result = mode == Vote::all   ? holding == members
                      : mode == Vote::any ? holding != 0
                                          : holding == members || holding == 0;
  set_predicate(warp, op.dst, result ? kAllLanes : 0);
  return Flow::next;
}

void decode_vote(Decoding& d) {
  d.take_one_of({"sync"}, "modifier");
  const auto mode = static_cast<Vote>(d.take_one_of({"all", "any", "uni", "ballot"}, "mode"));
  d.take_type_of({mode == Vote::ballot ? Type::b32 : Type::pred});
  d.require_operands(3);
  d.op.dst = d.destination(0, mode == Vote::ballot ? 32 : 1);
  ptx::Operand source = d.operand(1);
  d.op.immediate = source.negated ? 0xffffffff : 0;
  source.negated = false;
  d.op.a = d.source(source, 1);
  d.op.d = d.source(2, 32);
  constexpr Execute kModes[] = {&vote<Vote::all>, &vote<Vote::any>, &vote<Vote::uni>, &vote<Vote::ballot>};
  d.op.execute = kModes[static_cast<size_t>(mode)];
}

Flow active_mask(Warp& warp, const Op& op) {
  for_each_lane(warp.mask, [&](uint32_t lane) { warp.row<uint32_t>(op.dst)[lane] = warp.mask; });
  return Flow::next;
}
void decode_activemask(Decoding& d) {
  d.take_type_of({Type::b32});
  d.require_operands(1);
  d.op.dst = d.destination(0, 32);
  d.op.execute = &active_mask;
}

// op.dst: the leader's lane; op.a: predicate, true in the leader. The leader is the lowest executing lane.
Flow elect(Warp& warp, const Op& op) {
  if (!warp.converged(member_mask(warp, op.d))) return Flow::blocked;
  const uint32_t leader = static_cast<uint32_t>(std::countr_zero(warp.mask));
  for_each_lane(warp.mask, [&](uint32_t lane) { warp.row<uint32_t>(op.dst)[lane] = leader; });
  set_predicate(warp, op.a, 1u << leader);
  return Flow::next;
}
void decode_elect(Decoding& d) {
  d.take_one_of({"sync"}, "modifier");
  d.require_operands(2);
  if (d.operand(0).kind != ptx::Operand::Kind::pair) d.malformed("the destination must be a register and a predicate");
  d.op.dst = d.destination(d.operand(0).items[0], 32);
  d.op.a = d.destination(d.operand(0).items[1], 1);
  d.op.d = d.source(1, 32);
  d.op.execute = &elect;
}

Flow synchronize_warp(Warp& warp, const Op& op) {
  return warp.converged(member_mask(warp, op.d)) ? Flow::next : Flow::blocked;
}
void decode_bar_warp(Decoding& d) {
  d.take_one_of({"sync"}, "modifier");
  d.require_operands(1);
  d.op.d = d.source(0, 32);
  d.op.execute = &synchronize_warp;
}

template <class T>
Flow match_any(Warp& warp, const Op& op) {
  if (!warp.converged(member_mask(warp, op.d))) return Flow::blocked;
  std::array<T, kWarpLanes> values;
  std::copy_n(warp.row<T>(op.a), kWarpLanes, values.begin());
  for_each_lane(warp.mask, [&](uint32_t lane) {
    uint32_t same = 0;
    for_each_lane(warp.mask,
                  [&](uint32_t other) { same |= static_cast<uint32_t>(values[other] == values[lane]) << other; });
    warp.row<uint32_t>(op.dst)[lane] = same;
  });
  return Flow::next;
}
template <class T>
Flow match_all(Warp& warp, const Op& op) {
  if (!warp.converged(member_mask(warp, op.d))) return Flow::blocked;
  const T* const values = warp.row<T>(op.a);
  const T first = values[std::countr_zero(warp.mask)];
  bool same = true;
  for_each_lane(warp.mask, [&](uint32_t lane) { same &= values[lane] == first; });
  for_each_lane(warp.mask, [&](uint32_t lane) { warp.row<uint32_t>(op.dst)[lane] = same ? warp.mask : 0; });
  set_predicate(warp, op.b, same ? kAllLanes : 0);
  return Flow::next;
}
void decode_match(Decoding& d) {
  const bool any = d.take_one_of({"any", "all"}, "mode") == 0;
  d.take_one_of({"sync"}, "modifier");
  const Type type = d.take_type_of({Type::b32, Type::b64});
  d.require_operands(3);
  const bool pair = d.operand(0).kind == ptx::Operand::Kind::pair;
  if (pair && any) d.malformed("match.any has no predicate");
  d.op.dst = pair ? d.destination(d.operand(0).items[0], 32) : d.destination(0, 32);
  d.op.b = pair ? d.destination(d.operand(0).items[1], 1) : d.context.scratch_row(1);
  d.op.a = d.source(1, type_bits(type));
  d.op.d = d.source(2, 32);
  d.op.execute = type == Type::b32 ? (any ? &match_any<uint32_t> : &match_all<uint32_t>)
                                   : (any ? &match_any<uint64_t> : &match_all<uint64_t>);
}

enum class Reduction : uint8_t { add, min, max, and_, or_, xor_ };

template <class T, Reduction reduction>
Flow reduce(Warp& warp, const Op& op) {
  if (!warp.converged(member_mask(warp, op.d))) return Flow::blocked;
  const T* const values = warp.row<T>(op.a);
  T result = values[std::countr_zero(warp.mask)];
  for_each_lane(warp.mask & (warp.mask - 1), [&](uint32_t lane) {
    const T v = values[lane];
    switch (reduction) {
      case Reduction::add: result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(v)); break;
      case Reduction::min: result = std::min(result, v); break;
      case Reduction::max: result = std::max(result, v); break;
      case Reduction::and_: result &= v; break;
      case Reduction::or_: result |= v; break;
      case Reduction::xor_: result ^= v; break;
    }
  });
  T* const dst = warp.row<T>(op.dst);
  for_each_lane(warp.mask, [&](uint32_t lane) { dst[lane] = result; });
  return Flow::next;
}

// redux.sync.{min,max}{.abs}{.NaN}.f32 (sm_100a on). op.immediate: bit 0 max, bit 1 abs, bit 2 NaN.
Flow reduce_f32(Warp& warp, const Op& op) {
  if (!warp.converged(member_mask(warp, op.d))) return Flow::blocked;
  const bool max = (op.immediate & 1) != 0, abs = (op.immediate & 2) != 0, nan = (op.immediate & 4) != 0;
  const float* const values = warp.row<float>(op.a);
  float result = NAN;
  bool saw_nan = false;
  for_each_lane(warp.mask, [&](uint32_t lane) {
    const float v = abs ? std::fabs(values[lane]) : values[lane];
    saw_nan |= v != v;
    const bool better = result != result || (max ? v > result : v < result) ||
                        (v == result && std::signbit(v) != max && std::signbit(result) == max);
    if (v == v && better) result = v;
  });
  if (result != result || (nan && saw_nan)) result = std::bit_cast<float>(0x7fffffffu);
  float* const dst = warp.row<float>(op.dst);
  for_each_lane(warp.mask, [&](uint32_t lane) { dst[lane] = result; });
  return Flow::next;
}

template <class T>
Execute pick_reduction(size_t reduction) {
  switch (static_cast<Reduction>(reduction)) {
    case Reduction::add: return &reduce<T, Reduction::add>;
    case Reduction::min: return &reduce<T, Reduction::min>;
    case Reduction::max: return &reduce<T, Reduction::max>;
    case Reduction::and_: return &reduce<T, Reduction::and_>;
    case Reduction::or_: return &reduce<T, Reduction::or_>;
    case Reduction::xor_: return &reduce<T, Reduction::xor_>;
  }
  return nullptr;
}
void decode_redux(Decoding& d) {
  d.take_one_of({"sync"}, "modifier");
  const size_t reduction = d.take_one_of({"add", "min", "max", "and", "or", "xor"}, "operation");
  const bool abs = d.take("abs"), nan = d.take("NaN");
  const Type type = d.take_type_of({Type::u32, Type::s32, Type::b32, Type::f32});
  d.require_operands(3);
  d.op.dst = d.destination(0, 32);
  d.op.a = d.source(1, 32);
  d.op.d = d.source(2, 32);
  if (type == Type::f32) {
    d.require_target({Target::sm_100a, Target::sm_103a});
    if (reduction != 1 && reduction != 2) d.unsupported("this operation of f32");
    d.op.immediate = (reduction == 2 ? 1 : 0) | (abs ? 2 : 0) | (nan ? 4 : 0);
    d.op.execute = &reduce_f32;
    return;
  }
  if (abs || nan) d.unsupported("modifiers of integers");
  if ((reduction >= 3) != (type == Type::b32)) d.unsupported("this operation of ." + std::string(type_name(type)));
  d.op.execute = type == Type::s32 ? pick_reduction<int32_t>(reduction) : pick_reduction<uint32_t>(reduction);
}

}  // namespace

void add_warp_instructions(InstructionTable& table) {
  table["shfl"] = {decode_shfl, manual::kDataMovement};
  table["vote"] = {decode_vote, manual::kSynchronization};
  table["activemask"] = {decode_activemask, manual::kSynchronization};
  table["elect"] = {decode_elect, manual::kSynchronization};
  table["bar.warp"] = {decode_bar_warp, manual::kSynchronization};
  table["match"] = {decode_match, manual::kSynchronization};
  table["redux"] = {decode_redux, manual::kSynchronization};
}

}  // namespace opdeck::emu
