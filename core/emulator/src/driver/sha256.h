// SPDX-License-Identifier: Apache-2.0
// SHA-256, by which a cubin names its PTX. Called by image.cpp and driver.cpp. Source: FIPS 180-4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace opdeck::emu {

std::string sha256_hex(const uint8_t* bytes, size_t num_bytes);

}  // namespace opdeck::emu
