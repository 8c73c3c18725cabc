// SPDX-License-Identifier: Apache-2.0
// How the emulator's tensor functions report failure: by value, with a message, without exceptions.
// Called by everything in src/tensor and by the instructions of src/isa that use it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace opdeck::emu {

// What the emulated chip is. A feature that the target lacks is an error, not an extension.
enum class Target : uint8_t { sm_90a, sm_100a, sm_103a };

// A failure message that says what was found and what is wanted; empty means success.
using Error = std::string;

// A value, or the reason why there is none.
template <class T>
struct Expected {
  T value{};
  Error error;

  Expected(T v) : value(std::move(v)) {}
  static Expected failure(Error why) {
    Expected e{T{}};
    e.error = std::move(why);
    return e;
  }
  bool ok() const { return error.empty(); }
};

// One CTA's shared memory. Offset 0 is shared::cta address 0 of that CTA.
struct SharedView {
  const uint8_t* bytes = nullptr;
  uint32_t size_bytes = 0;
};

// One CTA's tensor memory: 512 columns x 128 lanes of 32 bits, lanes contiguous: what one column holds for
// the 32 lanes of a warp is one run, and so is what one MMA column needs for all rows.
struct TmemView {
  static constexpr uint32_t num_columns = 512;
  static constexpr uint32_t num_lanes = 128;
  uint32_t* words = nullptr;

  uint32_t& at(uint32_t lane, uint32_t column) const { return words[column * num_lanes + lane]; }
  uint32_t* column(uint32_t column_idx) const { return words + column_idx * num_lanes; }
};

// A TMEM address is lane << 16 | column.
constexpr uint32_t tmem_lane(uint32_t address) { return address >> 16; }
constexpr uint32_t tmem_column(uint32_t address) { return address & 0xffff; }

}  // namespace opdeck::emu
