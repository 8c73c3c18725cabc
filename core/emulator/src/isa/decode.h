// SPDX-License-Identifier: Apache-2.0
// From a parsed instruction to an Op. Each instruction's decode function (src/isa/*.cpp) takes its modifiers in PTX's
// order, its operands as rows, and sets the op's execute function; what it did not take is an error, so no modifier is
// ever ignored. Called by decoder.cpp once for each instruction of a kernel.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../machine/error.h"
#include "../machine/program.h"
#include "../ptx/ast.h"
#include "manual.h"
#include "register_uses.h"

namespace opdeck::emu {

enum class Type : uint8_t {
  none,
  pred,
  b8,
  b16,
  b32,
  b64,
  b128,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  f16x2,
  bf16,
  bf16x2,
  f32,
  f32x2,
  f64,
  tf32
};
Type parse_type(std::string_view modifier);  // Type::none when it is no type
const char* type_name(Type type);
uint32_t type_bits(Type type);  // 1 for pred
constexpr bool is_signed(Type type) { return type >= Type::s8 && type <= Type::s64; }
constexpr bool is_unsigned(Type type) { return type >= Type::u8 && type <= Type::u64; }
constexpr bool is_bits(Type type) { return type >= Type::b8 && type <= Type::b128; }
constexpr bool is_integer(Type type) { return is_signed(type) || is_unsigned(type); }

// An address operand: the row of its base and the offset to be added.
struct AddressOperand {
  uint32_t row = 0;
  uint32_t bits = 64;  // of the row's entries: 32 or 64
  int64_t offset = 0;
};

// Rows and symbols of the kernel that is being decoded.
class KernelContext {
 public:
  KernelContext(const ptx::Module& module, const ptx::Kernel& kernel, Program& program);

  uint32_t register_row(uint32_t reg) const { return register_rows_[reg]; }
  uint32_t register_bits(uint32_t reg) const { return kernel.registers[reg].bits; }
  uint32_t constant_row(uint32_t bits, uint64_t value);
  uint32_t special_row(SpecialRegister special, uint32_t bits, uint64_t value = 0);
  uint32_t scratch_row(uint32_t bits);
  // The carry flag of add.cc and its like, 32 bits a lane.
  uint32_t carry_row();
  // The row with a variable's or parameter's address in its own state space.
  uint32_t symbol_row(const std::string& name, uint32_t bits, int64_t offset);
  // Whether the name is a kernel parameter, and its space for plain `ld`.
  const ptx::Parameter* find_parameter(const std::string& name) const;

  const ptx::Module& module;
  const ptx::Kernel& kernel;
  Program& program;

 private:
  struct Symbol {
    ptx::StateSpace space;
    uint64_t address;
  };
  void place_variables();
  uint32_t allocate(uint32_t elem_bytes);

  std::vector<uint32_t> register_rows_;
  std::unordered_map<std::string, Symbol> symbols_;
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> constants_;
  std::map<std::tuple<SpecialRegister, uint32_t, uint64_t>, uint32_t> specials_;
  uint32_t next_row_ = 0;
  std::optional<uint32_t> carry_row_;
};

// A modifier that a decode function looked for and did not find, and before which of the opcode's it would stand.
struct OfferedModifier {
  size_t at = 0;
  std::string modifier;
  bool is_wanted = false;  // that one, or another wanted one, must be there
};

class Decoding {
 public:
  // `name` is the part of the opcode that the instruction table matched. `offered` may be null.
  Decoding(KernelContext& context, const ptx::Instruction& instruction, std::string_view name, const char* section,
           std::vector<OfferedModifier>* offered = nullptr);

  // Modifiers, in order.
  bool take(std::string_view modifier);
  // Takes the next modifier, which must be one of these; returns its index.
  size_t take_one_of(std::initializer_list<std::string_view> modifiers, const char* what);
  Type take_type();                                      // must be there
  Type take_type_of(std::initializer_list<Type> types);  // must be there and one of these
  std::string_view next_modifier() const { return at_ < modifiers_.size() ? modifiers_[at_] : std::string_view{}; }
  // Whether this is the next modifier, which stays.
  bool sees(std::string_view modifier);
  // The first modifier that is a type, wherever it stands: what chooses between instructions of one name.
  Type element_type() const;
  // Called after the decode function: everything must have been taken.
  void finish() const;

  // Operands.
  size_t num_operands() const { return instruction.operands.size(); }
  // Whether the operands are those of a probe (probe.cpp), which stand for whatever is asked for.
  bool is_probe() const { return offered_ != nullptr; }
  const ptx::Operand& operand(size_t i) const;
  void require_operands(size_t count) const { require_operands(count, count); }
  void require_operands(size_t at_least, size_t at_most) const;
  uint32_t destination(size_t i, uint32_t bits) { return destination(operand(i), bits); }
  uint32_t source(size_t i, uint32_t bits) { return source(operand(i), bits); }
  uint32_t destination(const ptx::Operand& operand, uint32_t bits);
  uint32_t source(const ptx::Operand& operand, uint32_t bits);
  // A register of any width (ld, st, cvt may be wider than the type); its width goes to `bits`.
  uint32_t any_destination(const ptx::Operand& operand, uint32_t& bits);
  uint32_t any_source(const ptx::Operand& operand, uint32_t& bits);
  uint32_t source_predicate(size_t i) { return source(i, 1); }
  // Rows of `{a, b, ...}` or of a single operand.
  std::vector<uint32_t> source_list(const ptx::Operand& operand, uint32_t bits);
  std::vector<uint32_t> destination_list(const ptx::Operand& operand, uint32_t bits);
  // Destinations whose old values may be read.
  std::vector<uint32_t> accumulator_list(const ptx::Operand& operand, uint32_t bits);
  int64_t immediate(size_t i) const;
  bool is_immediate(size_t i) const { return operand(i).kind == ptx::Operand::Kind::immediate; }
  AddressOperand address(const ptx::Operand& operand);
  AddressOperand address(size_t i) { return address(operand(i)); }
  uint32_t label(size_t i) const;

  // Keeps a value as long as the program lives; for Op::detail.
  template <class T>
  const T* keep(T value) {
    auto owned = std::make_shared<const T>(std::move(value));
    context.program.details.push_back(owned);
    return owned.get();
  }

  [[noreturn]] void unsupported(const std::string& what) const;
  [[noreturn]] void malformed(const std::string& what) const;
  void require_target(std::initializer_list<Target> targets) const;
  Target target() const { return context.program.target; }

  KernelContext& context;
  const ptx::Instruction& instruction;
  Op op;
  RegisterUses registers;  // taken so far

 private:
  Type read_type();
  void offer_all_types() const;
  void offer(std::string_view modifier, bool is_wanted = false) const;

  std::string_view name_;
  const char* section_;
  std::vector<std::string_view> modifiers_;
  size_t at_ = 0;
  std::vector<OfferedModifier>* offered_;
};

using DecodeFunction = void (*)(Decoding&);
struct InstructionEntry {
  DecodeFunction decode;
  const char* section;  // of the PTX ISA manual
};
using InstructionTable = std::map<std::string, InstructionEntry, std::less<>>;
const InstructionTable& instruction_table();
// The table's longest name that the opcode starts with, at a dot; end() where there is none.
InstructionTable::const_iterator find_instruction(std::string_view opcode);

// One for each file of src/isa.
void add_arithmetic_instructions(InstructionTable& table);
void add_integer_instructions(InstructionTable& table);
void add_extended_integer_instructions(InstructionTable& table);
void add_logic_instructions(InstructionTable& table);
void add_float_instructions(InstructionTable& table);
void add_convert_instructions(InstructionTable& table);
void add_compare_instructions(InstructionTable& table);
void add_set_instructions(InstructionTable& table);
void add_move_instructions(InstructionTable& table);
void add_memory_instructions(InstructionTable& table);
void add_atomic_instructions(InstructionTable& table);
void add_control_instructions(InstructionTable& table);
void add_warp_instructions(InstructionTable& table);
void add_barrier_instructions(InstructionTable& table);
void add_mbarrier_instructions(InstructionTable& table);
void add_bulk_copy_instructions(InstructionTable& table);
void add_tensor_copy_instructions(InstructionTable& table);
void add_tensor_map_instructions(InstructionTable& table);
void add_tmem_instructions(InstructionTable& table);
void add_umma_instructions(InstructionTable& table);
void add_wgmma_instructions(InstructionTable& table);
void add_matrix_instructions(InstructionTable& table);
void add_cluster_launch_instructions(InstructionTable& table);
void add_refused_instructions(InstructionTable& table);

// Decodes one kernel of a module. Throws EmulatorError with the PTX line.
Program decode_kernel(const ptx::Module& module, const ptx::Kernel& kernel);
Target parse_target(const std::string& text);

}  // namespace opdeck::emu
