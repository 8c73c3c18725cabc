// SPDX-License-Identifier: Apache-2.0
// What an instruction does with the bytes of its registers: which it needs, and which of those that it writes are only
// bytes that it was given. Made once a kernel for isa/assigned_registers.h.
// What only moves bits about (mov with its vectors, prmt, shifts, bitwise logic, selp, integer cvt) needs nothing: what
// it writes is as undefined as what it was given. A store needs the bytes that it stores. Everything else needs whole
// registers.
// Source: PTX ISA, "Data Movement and Conversion Instructions", "Logic and Shift Instructions".
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "../ptx/ast.h"
#include "register_uses.h"

namespace opdeck::emu {

// The bytes of all registers of a kernel, numbered through. A predicate counts as one byte.
class RegisterBytes {
 public:
  explicit RegisterBytes(const ptx::Kernel& kernel);
  uint32_t count() const { return first_.back(); }
  uint32_t first(uint32_t reg) const { return first_[reg]; }
  uint32_t end(uint32_t reg) const { return first_[reg + 1]; }
  uint32_t num(uint32_t reg) const { return end(reg) - first(reg); }

 private:
  std::vector<uint32_t> first_;
};

struct ByteFlow {
  static constexpr uint32_t kDefined = UINT32_MAX;  // a source that is no register
  struct Write {
    uint32_t byte;
    std::array<uint32_t, 2> sources{kDefined, kDefined};
  };
  std::vector<uint32_t> used;  // the guard's too
  std::vector<Write> writes;
};

// uses: of this instruction.
ByteFlow find_byte_flow(const RegisterBytes& bytes, const ptx::Instruction& instruction, const RegisterUses& uses);

}  // namespace opdeck::emu
