// SPDX-License-Identifier: Apache-2.0
// What compare.cpp and half.cpp share: comparisons and how a setp combines its result.
#pragma once

#include "decode.h"
#include "lanes.h"

namespace opdeck::emu {

enum class Comparison : uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

// setp p|q, a, b, c: p = (a cmp b) op c, q = !(a cmp b) op c. The detail of every setp.
struct PredicateCombination {
  enum class Kind : uint8_t { none, both, either, exclusive };
  Kind kind = Kind::none;
  uint32_t row = 0;
  bool negated = false;
  bool has_complement = false;
  uint32_t complement_row = 0;

  uint32_t apply(uint32_t value, uint32_t other) const {
    switch (kind) {
      case Kind::none: return value;
      case Kind::both: return value & other;
      case Kind::either: return value | other;
      case Kind::exclusive: return value ^ other;
    }
    return value;
  }
};

inline void finish_comparison(Warp& warp, const Op& op, uint32_t result) {
  const auto& combination = *static_cast<const PredicateCombination*>(op.detail);
  uint32_t other = 0;
  if (combination.kind != PredicateCombination::Kind::none) {
    other = warp.predicate(combination.row);
    if (combination.negated) other = ~other;
  }
  set_predicate(warp, op.dst, combination.apply(result, other));
  if (combination.has_complement) set_predicate(warp, combination.complement_row, combination.apply(~result, other));
}

Comparison take_comparison(Decoding& d);
// Refuses a comparison, by its name in PTX, that `type` does not have.
void check_comparison(Decoding& d, std::string_view name, Type type);

// nullptr when there is none.
Execute pick_half_comparison(Type type, Comparison comparison);

}  // namespace opdeck::emu
