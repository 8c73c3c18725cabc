// SPDX-License-Identifier: Apache-2.0
// From a PTX type to the C++ type that an instruction's template is made for: pick(T{}) is called with a zero of it.
#pragma once

#include <cstdint>

#include "decode.h"

namespace opdeck::emu {

template <class Pick>
Execute for_integer(Type type, Pick pick) {
  switch (type) {
    case Type::u16: return pick(uint16_t{});
    case Type::u32: return pick(uint32_t{});
    case Type::u64: return pick(uint64_t{});
    case Type::s16: return pick(int16_t{});
    case Type::s32: return pick(int32_t{});
    case Type::s64: return pick(int64_t{});
    default: return nullptr;
  }
}

// The types that have a type of twice the width.
template <class Pick>
Execute for_narrow_integer(Type type, Pick pick) {
  switch (type) {
    case Type::u16: return pick(uint16_t{});
    case Type::u32: return pick(uint32_t{});
    case Type::s16: return pick(int16_t{});
    case Type::s32: return pick(int32_t{});
    default: return nullptr;
  }
}

template <class Pick>
Execute for_bits(uint32_t bits, Pick pick) {
  switch (bits) {
    case 8: return pick(uint8_t{});
    case 16: return pick(uint16_t{});
    case 32: return pick(uint32_t{});
    case 64: return pick(uint64_t{});
    default: return nullptr;
  }
}

}  // namespace opdeck::emu
