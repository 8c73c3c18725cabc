// SPDX-License-Identifier: Apache-2.0
// Uninitialised registers: of those that isa/assigned_registers.h could not prove to be written before they are used,
// each warp keeps the lanes that have written them. The instructions that name them do so before they execute; all
// others are as they were. Called by isa/decoder.cpp once a kernel.
#pragma once

#include <vector>

#include "../isa/register_uses.h"
#include "../machine/program.h"
#include "../ptx/ast.h"

namespace opdeck::emu {

// uses: one an instruction.
void mark_unproven_registers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses);

}  // namespace opdeck::emu
