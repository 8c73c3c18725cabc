// SPDX-License-Identifier: Apache-2.0
// Asks the decode functions themselves what they accept: an opcode is decoded with operands that fit everywhere.
// Called by driver/session.cpp for opdeck_emu_probe; docs/coverage.md is made from it.
#pragma once

#include <string>
#include <vector>

#include "decode.h"

namespace opdeck::emu {

struct ProbeAnswer {
  bool accepted = false;
  std::string refusal;                   // where it is not accepted
  std::vector<OfferedModifier> offered;  // that were looked for, more than once perhaps
};
ProbeAnswer probe_instruction(const std::string& target, const std::string& opcode);

}  // namespace opdeck::emu
