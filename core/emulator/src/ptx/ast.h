// SPDX-License-Identifier: Apache-2.0
// A parsed PTX module: what the parser gives to the decoder (src/isa).
// Source: PTX ISA, "Syntax", "State Spaces, Types, and Variables", "Directives".
// Limits: one module of kernels (.entry); .func bodies, textures and surfaces are not kept.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace opdeck::emu::ptx {

enum class StateSpace : uint8_t { param, shared, global, constant, local };

// Bits of a register or element type; predicates have 1.
struct ScalarType {
  uint16_t bits = 0;
};

struct Register {
  std::string name;
  uint16_t bits = 0;  // 1 = predicate
};

struct Variable {
  std::string name;
  StateSpace space = StateSpace::global;
  uint32_t align_bytes = 1;
  uint64_t size_bytes = 0;
  bool is_extern = false;  // `.extern .shared name[]`: dynamic shared memory
  std::vector<uint8_t> initial_bytes;
};

struct Operand {
  enum class Kind : uint8_t { reg, immediate, float_immediate, symbol, label, special, vector, address, sink, pair, any };
  Kind kind = Kind::sink;  // any: never parsed; what stands for an operand of whatever kind (isa/probe.cpp)
  bool negated = false;        // `!%p`
  uint32_t reg = 0;            // Kind::reg: index into Kernel::registers
  int64_t value = 0;           // immediate; bits of a float immediate; offset of an address; target of a label
  uint16_t float_bits = 0;     // 32 for 0f, 64 for 0d
  std::string name;            // symbol, special register, label as written
  std::vector<Operand> items;  // vector: elements; pair: two; address: base [, coordinates...]
};

struct Instruction {
  std::string opcode;  // as written, modifiers included
  std::vector<Operand> operands;
  bool has_guard = false;
  bool guard_negated = false;
  uint32_t guard_reg = 0;
  uint32_t line = 0;         // of the PTX text
  uint32_t source_file = 0;  // of the last .loc: a number of Module::files
  uint32_t source_line = 0;  // 0 when there is no .loc
};

struct Parameter {
  std::string name;
  uint32_t offset_bytes = 0;
  uint32_t size_bytes = 0;
  uint32_t align_bytes = 1;
};

struct Kernel {
  std::string name;
  uint32_t line = 0;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  std::array<uint32_t, 3> required_threads{};  // .reqntid; zero when absent
  std::array<uint32_t, 3> maximum_threads{};   // .maxntid
  std::array<uint32_t, 3> required_cluster{};  // .reqnctapercluster
  bool explicit_cluster = false;
  std::vector<Register> registers;
  std::vector<Variable> variables;  // declared inside the body
  std::vector<Instruction> instructions;
};

struct Module {
  std::string version;
  std::string target;
  std::vector<Variable> variables;
  std::vector<Kernel> kernels;
  std::map<uint32_t, std::string> files;  // of .file, by their numbers
};

}  // namespace opdeck::emu::ptx
