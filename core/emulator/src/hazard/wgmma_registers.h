// SPDX-License-Identifier: Apache-2.0
// The registers of wgmma.mma_async: its accumulators and its A fragments. From its issue until a wgmma.wait_group has
// retired its group they belong to the tensor core, and a wgmma.fence must stand between other accesses and it.
// mark_wgmma_registers is called by isa/decoder.cpp once a kernel; the checks are ClusterHazards' (detector.h).
//
// The rule: an instruction that names such a register uses it, a mov too. ptxas might merge the copy away, but it is not
// bound to, and none of the kernels known to be right (NVIDIA's Hopper examples) has one between a wgmma and its wait.
// Between a wgmma.fence and the next wgmma only the strict level forbids a mov: NVIDIA's compiler puts there the movs that
// zero accumulators (Hopper's grouped GEMM). Source: PTX ISA, "wgmma.mma_async", "wgmma.fence", "wgmma.wait_group".
#pragma once

#include <vector>

#include "../isa/register_uses.h"
#include "../machine/program.h"
#include "../ptx/ast.h"

namespace opdeck::emu {

// Makes all other instructions that name them tell the hazard checks before they execute. uses: one an instruction.
void mark_wgmma_registers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses);

}  // namespace opdeck::emu
