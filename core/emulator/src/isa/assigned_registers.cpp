// SPDX-License-Identifier: Apache-2.0
#include "assigned_registers.h"

#include <algorithm>
#include <string_view>

#include "control_flow.h"

namespace opdeck::emu {
namespace {

// The registers that a thread has certainly written, as a set.
class RegisterSet {
 public:
  RegisterSet(size_t num_registers, uint64_t fill) : words_((num_registers + 63) / 64, fill) {}
  bool has(uint32_t reg) const { return (words_[reg / 64] >> reg % 64 & 1) != 0; }
  void put(uint32_t reg, bool is_member) {
    const uint64_t bit = uint64_t{1} << reg % 64;
    words_[reg / 64] = is_member ? words_[reg / 64] | bit : words_[reg / 64] & ~bit;
  }
  // Keeps what both have; returns whether that is less.
  bool meet(const RegisterSet& other) {
    bool shrank = false;
    for (size_t i = 0; i < words_.size(); ++i) {
      shrank |= (words_[i] & ~other.words_[i]) != 0;
      words_[i] &= other.words_[i];
    }
    return shrank;
  }

 private:
  std::vector<uint64_t> words_;
};

class Analysis {
 public:
  Analysis(const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses)
      : kernel_(kernel), uses_(uses), blocks_(find_basic_blocks(kernel)) {}

  UnprovenRegisters run() {
    find_entries();
    UnprovenRegisters result;
    result.followed.assign(kernel_.registers.size(), false);
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (!reached_[b]) continue;
      RegisterSet assigned = entries_[b];
      for (uint32_t i = blocks_[b].first; i < blocks_[b].end; ++i) {
        add_use(result, i, assigned);
        step(i, assigned);
      }
    }
    follow_copies(result);
    return result;
  }

 private:
  // What has certainly been written at the start of each block: the largest solution, found from above.
  void find_entries() {
    entries_.assign(blocks_.size(), RegisterSet(kernel_.registers.size(), ~uint64_t{0}));
    reached_.assign(blocks_.size(), false);
    if (blocks_.empty()) return;
    entries_[0] = RegisterSet(kernel_.registers.size(), 0);
    reached_[0] = true;
    std::vector<uint32_t> to_visit{0};
    while (!to_visit.empty()) {
      const uint32_t b = to_visit.back();
      to_visit.pop_back();
      RegisterSet assigned = entries_[b];
      for (uint32_t i = blocks_[b].first; i < blocks_[b].end; ++i) step(i, assigned);
      for (const uint32_t next : blocks_[b].successors) {
        const bool is_new = !reached_[next];
        reached_[next] = true;
        if (entries_[next].meet(assigned) || is_new) to_visit.push_back(next);
      }
    }
  }

  void step(uint32_t i, RegisterSet& assigned) const {
    const ptx::Instruction& instruction = kernel_.instructions[i];
    const auto has = [&](uint32_t reg) { return assigned.has(reg); };
    const bool defines = !is_register_copy(instruction) || std::all_of(uses_[i].reads.begin(), uses_[i].reads.end(), has);
    // Under a guard, the lanes that do not execute keep what they had.
    for (const uint32_t reg : uses_[i].writes)
      assigned.put(reg, instruction.has_guard ? defines && assigned.has(reg) : defines);
  }

  void add_use(UnprovenRegisters& result, uint32_t i, const RegisterSet& assigned) const {
    const ptx::Instruction& instruction = kernel_.instructions[i];
    UnprovenUse use{i, {}, {}, {}};
    const auto add = [&](uint32_t reg) {
      if (assigned.has(reg)) return;
      const bool is_guard = instruction.has_guard && reg == instruction.guard_reg;
      const bool is_copied = is_register_copy(instruction) && !is_guard;
      (is_copied ? use.copied : use.used).push_back(reg);
      if (!is_copied) result.followed[reg] = true;
    };
    for (const uint32_t reg : uses_[i].reads) add(reg);
    for (const uint32_t reg : uses_[i].accumulators) {
      if (assigned.has(reg)) continue;
      use.accumulators.push_back(reg);
      result.followed[reg] = true;
    }
    if (!use.used.empty() || !use.copied.empty() || !use.accumulators.empty()) result.uses.push_back(std::move(use));
  }

  // Where a followed register is a copy, what it is a copy of is followed too.
  void follow_copies(UnprovenRegisters& result) const {
    bool grew = true;
    while (grew) {
      grew = false;
      for (const UnprovenUse& use : result.uses) {
        const auto is_followed = [&](uint32_t reg) { return result.followed[reg]; };
        const std::vector<uint32_t>& writes = uses_[use.instruction].writes;
        if (std::none_of(writes.begin(), writes.end(), is_followed)) continue;
        for (const uint32_t reg : use.copied) {
          grew |= !result.followed[reg];
          result.followed[reg] = true;
        }
      }
    }
  }

  const ptx::Kernel& kernel_;
  const std::vector<RegisterUses>& uses_;
  const std::vector<BasicBlock> blocks_;
  std::vector<RegisterSet> entries_;
  std::vector<bool> reached_;
};

}  // namespace

bool is_register_copy(const ptx::Instruction& instruction) {
  constexpr std::string_view kCopies[] = {"mov"};
  const std::string_view name = std::string_view(instruction.opcode).substr(0, instruction.opcode.find('.'));
  return std::find(std::begin(kCopies), std::end(kCopies), name) != std::end(kCopies);
}

UnprovenRegisters find_unproven_registers(const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses) {
  return Analysis(kernel, uses).run();
}

}  // namespace opdeck::emu
