// SPDX-License-Identifier: Apache-2.0
#include "register_rows.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace opdeck::emu {
namespace {

constexpr uint32_t kNever = UINT32_MAX;

// First and last instruction that name a register.
struct Life {
  uint32_t first = kNever, last = 0;
  bool starts_with_definition = false;
  bool is_async = false;  // a wgmma reads or writes it later
};

template <class Visit>
void for_each_register(const ptx::Operand& operand, Visit&& visit) {
  if (operand.kind == ptx::Operand::Kind::reg) visit(operand.reg);
  for (const ptx::Operand& item : operand.items) for_each_register(item, visit);
}

// Whether the first operand, when it is no address, is what the instruction writes (and does not read: wgmma does).
bool writes_first_operand(const ptx::Instruction& instruction) {
  if (instruction.has_guard || instruction.operands.empty()) return false;
  if (instruction.operands[0].kind == ptx::Operand::Kind::address) return false;
  constexpr std::string_view kReaders[] = {"bar", "barrier", "brx", "nanosleep", "setmaxnreg", "tcgen05", "wgmma"};
  const std::string_view name = std::string_view(instruction.opcode).substr(0, instruction.opcode.find('.'));
  const bool is_tmem_load = instruction.opcode.rfind("tcgen05.ld", 0) == 0;
  return is_tmem_load || std::find(std::begin(kReaders), std::end(kReaders), name) == std::end(kReaders);
}

std::vector<Life> find_lives(const ptx::Kernel& kernel) {
  std::vector<Life> lives(kernel.registers.size());
  const auto note = [&](uint32_t reg, uint32_t at, bool is_definition) {
    Life& life = lives[reg];
    if (life.first == kNever) {
      life.first = at;
      life.starts_with_definition = is_definition;
    } else if (life.first == at) {
      life.starts_with_definition &= is_definition;  // also read by the instruction that writes it
    }
    life.last = at;
  };
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    const ptx::Instruction& instruction = kernel.instructions[i];
    const bool is_async = instruction.opcode.rfind("wgmma.mma_async", 0) == 0;
    if (instruction.has_guard) note(instruction.guard_reg, i, false);
    for (size_t o = 0; o < instruction.operands.size(); ++o) {
      const bool is_definition = o == 0 && writes_first_operand(instruction);
      for_each_register(instruction.operands[o], [&](uint32_t reg) {
        note(reg, i, is_definition);
        lives[reg].is_async |= is_async;
      });
    }
  }
  return lives;
}

// The number of the basic block of each instruction: a block ends behind a branch and before a label.
std::vector<uint32_t> number_blocks(const ptx::Kernel& kernel) {
  std::vector<bool> starts_block(kernel.instructions.size() + 1, false);
  const auto mark_target = [&](const ptx::Operand& operand) {
    if (operand.kind == ptx::Operand::Kind::label) starts_block[static_cast<size_t>(operand.value)] = true;
  };
  for (size_t i = 0; i < kernel.instructions.size(); ++i) {
    for (const ptx::Operand& operand : kernel.instructions[i].operands) {
      mark_target(operand);
      for (const ptx::Operand& item : operand.items) mark_target(item);
    }
    if (kernel.instructions[i].opcode.rfind("br", 0) == 0) starts_block[i + 1] = true;
  }
  std::vector<uint32_t> blocks(kernel.instructions.size());
  uint32_t block = 0;
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = block += starts_block[i] ? 1 : 0;
  return blocks;
}

}  // namespace

RegisterSlots assign_register_slots(const ptx::Kernel& kernel) {
  const std::vector<Life> lives = find_lives(kernel);
  const std::vector<uint32_t> blocks = number_blocks(kernel);
  RegisterSlots result;
  result.slot.assign(kernel.registers.size(), 0);
  const auto new_slot = [&](uint16_t bits) {
    result.slot_bits.push_back(bits);
    return static_cast<uint32_t>(result.slot_bits.size() - 1);
  };
  std::vector<std::vector<uint32_t>> starting(kernel.instructions.size() + 1), ending(kernel.instructions.size() + 1);
  for (uint32_t reg = 0; reg < lives.size(); ++reg) {
    const Life& life = lives[reg];
    if (life.first == kNever || life.is_async || !life.starts_with_definition || blocks[life.first] != blocks[life.last]) {
      if (life.first != kNever) result.slot[reg] = new_slot(kernel.registers[reg].bits);
      continue;
    }
    starting[life.first].push_back(reg);
    ending[life.last + 1].push_back(reg);  // a slot is free behind the last use, not for its own instruction's result
  }
  std::map<uint16_t, std::vector<uint32_t>> free_slots;
  for (size_t i = 0; i < starting.size(); ++i) {
    for (const uint32_t reg : ending[i]) free_slots[kernel.registers[reg].bits].push_back(result.slot[reg]);
    for (const uint32_t reg : starting[i]) {
      std::vector<uint32_t>& free = free_slots[kernel.registers[reg].bits];
      if (free.empty()) {
        result.slot[reg] = new_slot(kernel.registers[reg].bits);
      } else {
        result.slot[reg] = free.back();
        free.pop_back();
      }
    }
  }
  if (result.slot_bits.empty() && !kernel.registers.empty()) new_slot(128);  // for registers that nothing names
  return result;
}

}  // namespace opdeck::emu
