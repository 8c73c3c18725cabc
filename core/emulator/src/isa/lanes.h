// SPDX-License-Identifier: Apache-2.0
// Loops over the lanes of a warp: what almost every instruction of src/isa is made of.
//
// vectorised<F>() returns F, or F compiled for AVX2 and FMA where the processor has them. F must be an Execute whose
// callees can be inlined; the results are the same (no contraction, no reassociation).
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "../machine/error.h"
#include "../machine/warp.h"

namespace opdeck::emu {

#if defined(__x86_64__)
template <Execute F>
[[gnu::target("avx2,fma"), gnu::flatten]] Flow wide(Warp& warp, const Op& op) {
  return F(warp, op);
}
inline bool has_wide_vectors() {
  static const bool has = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return has;
}
template <Execute F>
Execute vectorised() {
  return has_wide_vectors() ? &wide<F> : F;
}
#else
template <Execute F>
Execute vectorised() {
  return F;
}
#endif

template <class Visit>
inline void for_each_lane(uint32_t mask, Visit&& visit) {
  for (; mask != 0; mask &= mask - 1) visit(static_cast<uint32_t>(std::countr_zero(mask)));
}

// dst[lane] = f(a[lane], ...) in the lanes of the mask. Rows may be the same; they do not overlap otherwise.
template <class D, class A, class F>
inline Flow map_lanes(Warp& warp, const Op& op, F f) {
  D* const dst = warp.row<D>(op.dst);
  const A* const a = warp.row<A>(op.a);
  if (warp.mask == kAllLanes) {
#pragma GCC ivdep
    for (uint32_t i = 0; i < kWarpLanes; ++i) dst[i] = f(a[i]);
  } else {
    for_each_lane(warp.mask, [&](uint32_t i) { dst[i] = f(a[i]); });
  }
  return Flow::next;
}

template <class D, class A, class B, class F>
inline Flow map_lanes2(Warp& warp, const Op& op, F f) {
  D* const dst = warp.row<D>(op.dst);
  const A* const a = warp.row<A>(op.a);
  const B* const b = warp.row<B>(op.b);
  if (warp.mask == kAllLanes) {
#pragma GCC ivdep
    for (uint32_t i = 0; i < kWarpLanes; ++i) dst[i] = f(a[i], b[i]);
  } else {
    for_each_lane(warp.mask, [&](uint32_t i) { dst[i] = f(a[i], b[i]); });
  }
  return Flow::next;
}

template <class D, class A, class B, class C, class F>
inline Flow map_lanes3(Warp& warp, const Op& op, F f) {
  D* const dst = warp.row<D>(op.dst);
  const A* const a = warp.row<A>(op.a);
  const B* const b = warp.row<B>(op.b);
  const C* const c = warp.row<C>(op.c);
  if (warp.mask == kAllLanes) {
#pragma GCC ivdep
    for (uint32_t i = 0; i < kWarpLanes; ++i) dst[i] = f(a[i], b[i], c[i]);
  } else {
    for_each_lane(warp.mask, [&](uint32_t i) { dst[i] = f(a[i], b[i], c[i]); });
  }
  return Flow::next;
}

// The lanes of the mask in which f(a[lane], b[lane]) holds.
template <class A, class B, class F>
inline uint32_t lanes_where(Warp& warp, const Op& op, F f) {
  const A* const a = warp.row<A>(op.a);
  const B* const b = warp.row<B>(op.b);
  uint32_t result = 0;
  for (uint32_t i = 0; i < kWarpLanes; ++i) result |= static_cast<uint32_t>(f(a[i], b[i])) << i;
  return result & warp.mask;
}

// Throws for an operand that PTX wants to be the same in all executing lanes. what: its name, in the plural.
template <class T>
[[noreturn, gnu::noinline]] void refuse_different(Warp& warp, const T* values, const char* what) {
  const auto first = static_cast<uint32_t>(std::countr_zero(warp.mask));
  uint32_t lane = first;
  while ((warp.mask >> lane & 1) == 0 || values[lane] == values[first]) ++lane;
  throw EmulatorError(Fault::illegal_instruction, std::string("the lanes give different ") + what + ": lane " +
                                                      std::to_string(first) + " " + hex(values[first]) + ", lane " +
                                                      std::to_string(lane) + " " + hex(values[lane]));
}

// Such an operand.
template <class T>
inline T uniform(Warp& warp, uint32_t row, const char* what) {
  const T* const values = warp.row<T>(row);
  const T value = values[std::countr_zero(warp.mask)];
  T difference = 0;
  if (warp.mask == kAllLanes) {
    for (uint32_t i = 0; i < kWarpLanes; ++i) difference |= values[i] ^ value;
  } else {
    for_each_lane(warp.mask, [&](uint32_t i) { difference |= values[i] ^ value; });
  }
  if (difference != 0) refuse_different(warp, values, what);
  return value;
}

// Writes a predicate row in the lanes of the mask.
inline void set_predicate(Warp& warp, uint32_t row, uint32_t value) {
  uint32_t& predicate = warp.predicate(row);
  predicate = (predicate & ~warp.mask) | (value & warp.mask);
}

}  // namespace opdeck::emu
