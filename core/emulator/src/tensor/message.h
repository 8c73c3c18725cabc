// SPDX-License-Identifier: Apache-2.0
// Builds error messages from pieces. Called by everything in src/tensor that can fail.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

namespace opdeck::emu {

// A number to be written in hexadecimal.
struct Hex {
  uint64_t value;
};
inline std::ostream& operator<<(std::ostream& out, Hex hex) {
  return out << "0x" << std::hex << hex.value << std::dec;
}

// All pieces, written one after the other.
template <class... Pieces>
std::string message(const Pieces&... pieces) {
  std::ostringstream out;
  (out << ... << pieces);
  return out.str();
}

}  // namespace opdeck::emu
