// SPDX-License-Identifier: Apache-2.0
#include "byte_flow.h"

#include <algorithm>
#include <string_view>

#include "decode.h"

namespace opdeck::emu {
namespace {

using Kind = ptx::Operand::Kind;

// The types among an opcode's modifiers, in order.
std::vector<Type> types_of(std::string_view opcode) {
  std::vector<Type> types;
  while (opcode.find('.') != std::string_view::npos) {
    opcode.remove_prefix(opcode.find('.') + 1);
    if (const Type type = parse_type(opcode.substr(0, opcode.find('.'))); type != Type::none) types.push_back(type);
  }
  return types;
}

uint32_t type_bytes(Type type) { return (type_bits(type) + 7) / 8; }

class FlowFinder {
 public:
  FlowFinder(const RegisterBytes& bytes, const ptx::Instruction& instruction)
      : bytes_(bytes), instruction_(instruction), types_(types_of(instruction.opcode)) {
    if (instruction.has_guard) use_register(instruction.guard_reg);
  }
  ByteFlow take() { return std::move(flow_); }

  void use_whole_registers(const RegisterUses& uses) {
    for (const uint32_t reg : uses.reads) use_register(reg);
    for (const uint32_t reg : uses.writes)
      for (uint32_t byte = bytes_.first(reg); byte < bytes_.end(reg); ++byte) write(byte, ByteFlow::kDefined);
  }

  // Each returns whether it knows the instruction.
  bool move() {
    const uint32_t num_bytes = type_bytes(types_.at(0));
    const std::vector<uint32_t> to = bytes_of(0, num_bytes), from = bytes_of(1, num_bytes);
    for (uint32_t k = 0; k < num_bytes; ++k) write(to[k], from[k]);
    return true;
  }

  bool permute() {
    if (instruction_.opcode != "prmt.b32" || !is_immediate(3)) return false;
    std::vector<uint32_t> from = bytes_of(1, 4);
    for (const uint32_t byte : bytes_of(2, 4)) from.push_back(byte);
    const std::vector<uint32_t> to = bytes_of(0, 4);
    for (uint32_t k = 0; k < 4; ++k) write(to[k], from[value(3) >> 4 * k & 7]);
    return true;
  }

  bool bitwise() {
    const uint32_t num_bytes = type_bytes(types_.at(0));
    const bool is_and = instruction_.opcode.starts_with("and");
    const std::vector<uint32_t> to = bytes_of(0, num_bytes);
    const std::vector<uint32_t> a = bytes_of(1, num_bytes);
    const bool is_binary = instruction_.operands.size() > 2;
    const std::vector<uint32_t> b = is_binary ? bytes_of(2, num_bytes) : a;
    const uint64_t mask = is_and && is_immediate(2) ? value(2) : ~uint64_t{0};
    for (uint32_t k = 0; k < num_bytes; ++k)
      write(to[k], (mask >> 8 * k & 0xff) != 0 ? a[k] : ByteFlow::kDefined, b[k]);
    return true;
  }

  bool shift_left() { return shift(-1); }
  bool shift_right() { return shift(1); }

  bool select() {
    use_operand(instruction_.operands.at(3));
    const uint32_t num_bytes = type_bytes(types_.at(0));
    const std::vector<uint32_t> to = bytes_of(0, num_bytes), a = bytes_of(1, num_bytes), b = bytes_of(2, num_bytes);
    for (uint32_t k = 0; k < num_bytes; ++k) write(to[k], a[k], b[k]);
    return true;
  }

  // Between integers: what it extends depends on the last byte that it keeps.
  bool convert() {
    const auto num_dots = std::count(instruction_.opcode.begin(), instruction_.opcode.end(), '.');
    if (num_dots != 2 || types_.size() != 2 || !is_integer(types_[0]) || !is_integer(types_[1])) return false;
    if (instruction_.operands.at(0).kind != Kind::reg) return false;
    const uint32_t num_kept = std::min(type_bytes(types_[0]), type_bytes(types_[1]));
    const std::vector<uint32_t> from = bytes_of(1, type_bytes(types_[1]));
    const uint32_t num_written = bytes_.num(instruction_.operands[0].reg);
    const std::vector<uint32_t> to = bytes_of(0, num_written);
    for (uint32_t k = 0; k < num_written; ++k) write(to[k], from[std::min(k, num_kept - 1)]);
    return true;
  }

  // Of a wider register the low bytes are stored.
  bool store() {
    if (types_.size() != 1) return false;
    for (size_t i = 0; i < instruction_.operands.size(); ++i) {
      if (i != 1) {
        use_operand(instruction_.operands[i]);
        continue;
      }
      const ptx::Operand& operand = instruction_.operands[i];
      const auto store_low_bytes = [&](const ptx::Operand& item) {
        if (item.kind == Kind::reg) use_register(item.reg, type_bytes(types_[0]));
      };
      if (operand.kind == Kind::vector)
        std::for_each(operand.items.begin(), operand.items.end(), store_low_bytes);
      else
        store_low_bytes(operand);
    }
    return true;
  }

 private:
  bool is_immediate(size_t i) const { return instruction_.operands.at(i).kind == Kind::immediate; }
  uint64_t value(size_t i) const { return static_cast<uint64_t>(instruction_.operands.at(i).value); }

  void use_register(uint32_t reg, uint32_t at_most_bytes = UINT32_MAX) {
    const uint32_t num_bytes = std::min(at_most_bytes, bytes_.num(reg));
    for (uint32_t k = 0; k < num_bytes; ++k) flow_.used.push_back(bytes_.first(reg) + k);
  }
  void use_operand(const ptx::Operand& operand) {
    if (operand.kind == Kind::reg) use_register(operand.reg);
    for (const ptx::Operand& item : operand.items) use_operand(item);
  }

  void write(uint32_t byte, uint32_t source, uint32_t other = ByteFlow::kDefined) {
    if (byte != ByteFlow::kDefined) flow_.writes.push_back({byte, {source, other}});
  }

  // The low num_bytes of an operand; of a vector those of its elements, the first lowest.
  std::vector<uint32_t> bytes_of(size_t i, uint32_t num_bytes) const {
    const ptx::Operand& operand = instruction_.operands.at(i);
    std::vector<uint32_t> result;
    const auto add = [&](const ptx::Operand& item, uint32_t num) {
      for (uint32_t k = 0; k < num; ++k)
        result.push_back(item.kind == Kind::reg ? bytes_.first(item.reg) + k : ByteFlow::kDefined);
    };
    if (operand.kind != Kind::vector) {
      add(operand, num_bytes);
      return result;
    }
    for (const ptx::Operand& item : operand.items) add(item, num_bytes / static_cast<uint32_t>(operand.items.size()));
    return result;
  }

  // direction: of a byte's source, seen from the byte.
  bool shift(int64_t direction) {
    if (!is_immediate(2)) return false;
    const int64_t num_bytes = type_bytes(types_.at(0));
    const std::vector<uint32_t> to = bytes_of(0, static_cast<uint32_t>(num_bytes));
    const std::vector<uint32_t> from = bytes_of(1, static_cast<uint32_t>(num_bytes));
    const int64_t bits = static_cast<int64_t>(std::min<uint64_t>(value(2), 64));
    const auto at = [&](int64_t k) {
      if (k >= 0 && k < num_bytes) return from[static_cast<size_t>(k)];
      return k >= 0 && is_signed(types_[0]) ? from.back() : ByteFlow::kDefined;  // copies of the sign
    };
    for (int64_t k = 0; k < num_bytes; ++k) {
      const int64_t source = k + direction * (bits / 8);
      write(to[static_cast<size_t>(k)], at(source), bits % 8 == 0 ? ByteFlow::kDefined : at(source + direction));
    }
    return true;
  }

  const RegisterBytes& bytes_;
  const ptx::Instruction& instruction_;
  const std::vector<Type> types_;
  ByteFlow flow_;
};

struct Rule {
  std::string_view name;
  bool (FlowFinder::*find)();
};
constexpr Rule kRules[] = {{"mov", &FlowFinder::move},        {"prmt", &FlowFinder::permute},
                           {"and", &FlowFinder::bitwise},     {"or", &FlowFinder::bitwise},
                           {"xor", &FlowFinder::bitwise},     {"not", &FlowFinder::bitwise},
                           {"shl", &FlowFinder::shift_left},  {"shr", &FlowFinder::shift_right},
                           {"selp", &FlowFinder::select},     {"cvt", &FlowFinder::convert},
                           {"st", &FlowFinder::store}};

}  // namespace

RegisterBytes::RegisterBytes(const ptx::Kernel& kernel) : first_{0} {
  for (const ptx::Register& reg : kernel.registers)
    first_.push_back(first_.back() + static_cast<uint32_t>((reg.bits + 7) / 8));
}

ByteFlow find_byte_flow(const RegisterBytes& bytes, const ptx::Instruction& instruction, const RegisterUses& uses) {
  const std::string_view opcode = instruction.opcode;
  const std::string_view name = opcode.substr(0, opcode.find('.'));
  const auto rule = std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& r) { return r.name == name; });
  FlowFinder finder(bytes, instruction);
  if (rule == std::end(kRules) || !(finder.*rule->find)()) finder.use_whole_registers(uses);
  return finder.take();
}

}  // namespace opdeck::emu
