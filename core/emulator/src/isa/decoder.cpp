// SPDX-License-Identifier: Apache-2.0
// Decodes a kernel: places its variables, gives its registers rows, decodes each instruction by the table.
#include <algorithm>

#include "../hazard/tmem_consumers.h"
#include "../hazard/unproven_registers.h"
#include "../hazard/wgmma_registers.h"
#include "../machine/address_space.h"
#include "decode.h"
#include "effects.h"
#include "register_rows.h"

namespace opdeck::emu {
namespace {

constexpr uint32_t kRowAlignBytes = 64;
constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 28;  // of each state space

uint64_t align_up(uint64_t value, uint64_t align) { return (value + align - 1) / align * align; }

std::string source_text(const ptx::Module& module, const ptx::Instruction& instruction) {
  const auto file = module.files.find(instruction.source_file);
  if (instruction.source_line == 0 || file == module.files.end()) return "";
  return file->second + ":" + std::to_string(instruction.source_line);
}

}  // namespace

const InstructionTable& instruction_table() {
  static const InstructionTable table = [] {
    InstructionTable t;
    for (const auto add :
         {add_arithmetic_instructions, add_integer_instructions,        add_logic_instructions,
          add_float_instructions,      add_convert_instructions,        add_compare_instructions,
          add_move_instructions,       add_memory_instructions,         add_atomic_instructions,
          add_control_instructions,    add_warp_instructions,           add_barrier_instructions,
          add_mbarrier_instructions,   add_bulk_copy_instructions,      add_tensor_copy_instructions, add_tensor_map_instructions,
          add_tmem_instructions,       add_umma_instructions,           add_wgmma_instructions,
          add_matrix_instructions,     add_cluster_launch_instructions, add_extended_integer_instructions,
          add_set_instructions,        add_refused_instructions})
      add(t);
    return t;
  }();
  return table;
}

InstructionTable::const_iterator find_instruction(std::string_view opcode) {
  const InstructionTable& table = instruction_table();
  while (true) {
    const auto it = table.find(opcode);
    if (it != table.end()) return it;
    const size_t dot = opcode.rfind('.');
    if (dot == std::string_view::npos) return table.end();
    opcode = opcode.substr(0, dot);
  }
}

KernelContext::KernelContext(const ptx::Module& m, const ptx::Kernel& k, Program& p)
    : module(m), kernel(k), program(p) {
  const RegisterSlots slots = assign_register_slots(kernel);
  std::vector<uint32_t> slot_rows;
  for (const uint16_t bits : slots.slot_bits) slot_rows.push_back(allocate(bits == 1 ? 0 : bits / 8));
  for (const uint32_t slot : slots.slot) register_rows_.push_back(slot_rows[slot]);
  place_variables();
}

// elem_bytes 0: a predicate row.
uint32_t KernelContext::allocate(uint32_t elem_bytes) {
  const uint32_t bytes = elem_bytes == 0 ? 4 : elem_bytes * 32;
  next_row_ = static_cast<uint32_t>(align_up(next_row_, elem_bytes == 0 ? 4 : kRowAlignBytes));
  const uint32_t row = next_row_;
  next_row_ += bytes;
  program.register_file_bytes = static_cast<uint32_t>(align_up(next_row_, kRowAlignBytes));
  return row;
}

void KernelContext::place_variables() {
  uint64_t shared_end = kReservedSharedBytes, local_end = 0, global_bytes = 0;
  const auto check_size = [&](const ptx::Variable& v, uint64_t total_bytes) {
    if (total_bytes > kMaxVariableBytes)
      throw EmulatorError(Fault::out_of_memory, "kernel " + kernel.name + ": with '" + v.name +
                                                    "' the variables of its state space take " +
                                                    std::to_string(total_bytes) + " bytes, want at most " +
                                                    std::to_string(kMaxVariableBytes));
  };
  std::vector<const ptx::Variable*> dynamic;
  const auto place = [&](const ptx::Variable& v) {
    switch (v.space) {
      case ptx::StateSpace::shared:
        if (v.is_extern) {
          dynamic.push_back(&v);
          return;
        }
        shared_end = align_up(shared_end, v.align_bytes);
        symbols_[v.name] = {v.space, shared_end};
        shared_end += v.size_bytes;
        check_size(v, shared_end);
        return;
      case ptx::StateSpace::local:
        local_end = align_up(local_end, std::max<uint32_t>(v.align_bytes, 16));
        symbols_[v.name] = {v.space, local_end};
        local_end += v.size_bytes;
        check_size(v, local_end);
        return;
      default: {  // .global and .const: initialised bytes that live as long as the program
        global_bytes += v.size_bytes + v.align_bytes;
        check_size(v, global_bytes);
        auto bytes = std::make_shared<std::vector<uint8_t>>(align_up(v.size_bytes, 16) + v.align_bytes, uint8_t{0});
        const uint64_t address = align_up(reinterpret_cast<uint64_t>(bytes->data()), v.align_bytes);
        std::copy(v.initial_bytes.begin(), v.initial_bytes.end(), reinterpret_cast<uint8_t*>(address));
        symbols_[v.name] = {v.space, address};
        program.variables.push_back({v.name, address, v.size_bytes});
        program.details.push_back(std::move(bytes));
      }
    }
  };
  for (const ptx::Variable& v : module.variables) place(v);
  for (const ptx::Variable& v : kernel.variables) place(v);
  program.static_shared_end = static_cast<uint32_t>(shared_end);
  for (const ptx::Variable* v : dynamic)
    program.dynamic_shared_align = std::max(program.dynamic_shared_align, v->align_bytes);
  for (const ptx::Variable* v : dynamic)
    symbols_[v->name] = {v->space, align_up(shared_end, program.dynamic_shared_align)};
  program.local_bytes = static_cast<uint32_t>(align_up(local_end, 16));
  for (const ptx::Parameter& p : kernel.parameters) symbols_[p.name] = {ptx::StateSpace::param, p.offset_bytes};
}

uint32_t KernelContext::constant_row(uint32_t bits, uint64_t value) {
  if (bits < 64) value &= (uint64_t{1} << bits) - 1;
  const auto key = std::make_pair(bits, value);
  const auto it = constants_.find(key);
  if (it != constants_.end()) return it->second;
  const uint32_t elem_bytes = bits == 1 ? 0 : bits / 8;
  const uint32_t row = allocate(elem_bytes);
  program.presets.push_back({PresetRow::Kind::constant, SpecialRegister::count, row, elem_bytes, value});
  return constants_[key] = row;
}

uint32_t KernelContext::special_row(SpecialRegister special, uint32_t bits, uint64_t value) {
  const auto key = std::make_tuple(special, bits, value);
  const auto it = specials_.find(key);
  if (it != specials_.end()) return it->second;
  const uint32_t elem_bytes = bits == 1 ? 0 : bits / 8;
  const uint32_t row = allocate(elem_bytes);
  program.presets.push_back({PresetRow::Kind::special, special, row, elem_bytes, value});
  return specials_[key] = row;
}

uint32_t KernelContext::scratch_row(uint32_t bits) { return allocate(bits == 1 ? 0 : bits / 8); }

uint32_t KernelContext::carry_row() {
  if (!carry_row_) carry_row_ = scratch_row(32);
  return *carry_row_;
}

uint32_t KernelContext::symbol_row(const std::string& name, uint32_t bits, int64_t offset) {
  const auto it = symbols_.find(name);
  if (it == symbols_.end())
    throw EmulatorError(Fault::invalid_ptx, "kernel " + kernel.name + ": '" + name + "' is not declared");
  const uint64_t address = it->second.address + static_cast<uint64_t>(offset);
  if (it->second.space == ptx::StateSpace::shared) return special_row(SpecialRegister::shared_address, bits, address);
  return constant_row(bits, address);
}

const ptx::Parameter* KernelContext::find_parameter(const std::string& name) const {
  const auto it = std::find_if(kernel.parameters.begin(), kernel.parameters.end(),
                               [&](const ptx::Parameter& p) { return p.name == name; });
  return it == kernel.parameters.end() ? nullptr : &*it;
}

Target parse_target(const std::string& text) {
  if (text == "sm_90a") return Target::sm_90a;
  if (text == "sm_100a") return Target::sm_100a;
  if (text == "sm_103a") return Target::sm_103a;
  throw EmulatorError(Fault::unsupported, "PTX .target " + text + ": the emulator has sm_90a, sm_100a and sm_103a");
}

Program decode_kernel(const ptx::Module& module, const ptx::Kernel& kernel) {
  Program program;
  program.name = kernel.name;
  program.target = parse_target(module.target);
  program.required_threads = kernel.required_threads;
  program.maximum_threads = kernel.maximum_threads;
  program.required_cluster = kernel.required_cluster;
  program.parameter_bytes = kernel.parameter_bytes;
  for (const ptx::Parameter& p : kernel.parameters) program.parameters.push_back({p.offset_bytes, p.size_bytes});
  KernelContext context(module, kernel, program);
  program.always_row = context.constant_row(1, 1);
  std::vector<RegisterUses> uses;  // one an op
  const auto decode_one = [&](const ptx::Instruction& instruction) {
    const auto it = find_instruction(instruction.opcode);
    if (it == instruction_table().end())
      throw EmulatorError(Fault::unsupported, "PTX line " + std::to_string(instruction.line) + ": instruction `" +
                                                  instruction.opcode + "` is not supported");
    Decoding decoding(context, instruction, it->first, it->second.section);
    it->second.decode(decoding);
    decoding.finish();
    program.ops.push_back(decoding.op);
    uses.push_back(std::move(decoding.registers));
    program.effects.push_back(effect_of(instruction));
    program.places.push_back({instruction.line, source_text(module, instruction), instruction.opcode});
  };
  for (const ptx::Instruction& instruction : kernel.instructions) decode_one(instruction);
  ptx::Instruction end;  // falling off the end of a kernel is a return
  end.opcode = "ret";
  end.line = kernel.instructions.empty() ? kernel.line : kernel.instructions.back().line;
  decode_one(end);
  mark_tmem_consumers(program, kernel, uses);
  mark_unproven_registers(program, kernel, uses);
  mark_wgmma_registers(program, kernel, uses);
  return program;
}

}  // namespace opdeck::emu
