// SPDX-License-Identifier: Apache-2.0
#include "probe.h"

namespace opdeck::emu {

ProbeAnswer probe_instruction(const std::string& target, const std::string& opcode) {
  ProbeAnswer answer;
  Program program;
  program.target = parse_target(target);
  const ptx::Module module;
  const ptx::Kernel kernel;
  KernelContext context(module, kernel, program);
  ptx::Instruction instruction;
  instruction.opcode = opcode;
  const auto entry = find_instruction(opcode);
  if (entry == instruction_table().end()) {
    answer.refusal = "no such instruction";
    return answer;
  }
  Decoding decoding(context, instruction, entry->first, entry->second.section, &answer.offered);
  try {
    entry->second.decode(decoding);
    decoding.finish();
    answer.accepted = true;
  } catch (const EmulatorError& error) {
    // Only the operands are wrong: a constant or a list of some length is wanted.
    answer.accepted = error.fault() == Fault::invalid_ptx && decoding.next_modifier().empty();
    answer.refusal = error.what();
  }
  return answer;
}

}  // namespace opdeck::emu
