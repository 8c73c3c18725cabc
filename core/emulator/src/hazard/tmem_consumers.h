// SPDX-License-Identifier: Apache-2.0
// Where a kernel reads registers that a tcgen05.ld wrote. Such a read ends the load (ptxas makes it wait), as a
// tcgen05.wait::ld would. Called by isa/decoder.cpp once a kernel.
#pragma once

#include <vector>

#include "../isa/register_uses.h"
#include "../machine/program.h"
#include "../ptx/ast.h"

namespace opdeck::emu {

// Makes the reading instructions tell the hazard checks before they execute. uses: one an instruction.
void mark_tmem_consumers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses);

}  // namespace opdeck::emu
