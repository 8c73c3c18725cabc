// SPDX-License-Identifier: Apache-2.0
// Whether an instruction changes anything but registers, as data. Used to recognise warps that poll
// (machine/warp_run.h): what is not listed here counts as a change.
#pragma once

#include <string_view>

#include "../machine/program.h"
#include "../ptx/ast.h"

namespace opdeck::emu {

// An atomic is Effect::none, as it signals the launch when it changes memory.
Effect effect_of(const ptx::Instruction& instruction);

// Whether it reads what others may change.
bool looks_at_memory(std::string_view opcode);

}  // namespace opdeck::emu
