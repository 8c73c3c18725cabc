// SPDX-License-Identifier: Apache-2.0
// Parses PTX text. Called by src/driver when a library is loaded. Throws EmulatorError with the line.
#pragma once

#include <string_view>

#include "ast.h"

namespace opdeck::emu::ptx {

Module parse_module(std::string_view text);

}  // namespace opdeck::emu::ptx
