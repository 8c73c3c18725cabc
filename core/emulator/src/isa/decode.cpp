// SPDX-License-Identifier: Apache-2.0
#include "decode.h"

#include <algorithm>

namespace opdeck::emu {
namespace {

struct TypeEntry {
  const char* name;
  uint32_t bits;
};
constexpr TypeEntry kTypes[] = {{"none", 0},    {"pred", 1}, {"b8", 8},     {"b16", 16}, {"b32", 32},   {"b64", 64},
                                {"b128", 128},  {"u8", 8},   {"u16", 16},   {"u32", 32}, {"u64", 64},   {"s8", 8},
                                {"s16", 16},    {"s32", 32}, {"s64", 64},   {"f16", 16}, {"f16x2", 32}, {"bf16", 16},
                                {"bf16x2", 32}, {"f32", 32}, {"f32x2", 64}, {"f64", 64}, {"tf32", 32}};

}  // namespace

Type parse_type(std::string_view modifier) {
  for (size_t i = 1; i < std::size(kTypes); ++i)
    if (modifier == kTypes[i].name) return static_cast<Type>(i);
  return Type::none;
}
const char* type_name(Type type) { return kTypes[static_cast<size_t>(type)].name; }
uint32_t type_bits(Type type) { return kTypes[static_cast<size_t>(type)].bits; }

Decoding::Decoding(KernelContext& kernel_context, const ptx::Instruction& parsed, std::string_view name,
                   const char* section, std::vector<OfferedModifier>* offered)
    : context(kernel_context), instruction(parsed), name_(name), section_(section), offered_(offered) {
  std::string_view rest = std::string_view(parsed.opcode).substr(name.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);  // the dot
    const size_t dot = rest.find('.');
    modifiers_.push_back(rest.substr(0, dot));
    rest = dot == std::string_view::npos ? std::string_view{} : rest.substr(dot);
  }
  op.guard = context.program.always_row;
  if (parsed.has_guard) {
    op.guard = context.register_row(parsed.guard_reg);
    op.guard_flip = parsed.guard_negated ? 0xffffffff : 0;
    registers.reads.push_back(parsed.guard_reg);
  }
}

bool Decoding::sees(std::string_view modifier) {
  if (next_modifier() == modifier && !modifier.empty()) return true;
  offer(modifier);
  return false;
}

bool Decoding::take(std::string_view modifier) {
  if (!sees(modifier)) return false;
  ++at_;
  return true;
}

void Decoding::offer(std::string_view modifier, bool is_wanted) const {
  if (offered_ != nullptr) offered_->push_back({at_, std::string(modifier), is_wanted});
}

size_t Decoding::take_one_of(std::initializer_list<std::string_view> modifiers, const char* what) {
  const auto found = std::find(modifiers.begin(), modifiers.end(), next_modifier());
  if (found != modifiers.end() && !found->empty()) {
    ++at_;
    return static_cast<size_t>(found - modifiers.begin());
  }
  std::string wanted;
  for (const std::string_view modifier : modifiers) {
    offer(modifier, true);
    wanted += (wanted.empty() ? "." : ", .") + std::string(modifier);
  }
  unsupported(std::string(what) + (at_ < modifiers_.size() ? " ." + std::string(next_modifier()) : " missing") +
              " (one of " + wanted + " is wanted)");
}

Type Decoding::read_type() {
  const Type type = parse_type(next_modifier());
  if (type == Type::none)
    unsupported(at_ < modifiers_.size() ? "modifier ." + std::string(next_modifier()) : "without a type");
  ++at_;
  return type;
}

void Decoding::offer_all_types() const {
  for (size_t i = 1; i < std::size(kTypes); ++i) offer(kTypes[i].name, true);
}

Type Decoding::take_type() {
  if (parse_type(next_modifier()) == Type::none) offer_all_types();
  return read_type();
}

Type Decoding::take_type_of(std::initializer_list<Type> types) {
  if (parse_type(next_modifier()) == Type::none)
    for (const Type type : types) offer(type_name(type), true);
  const Type type = read_type();
  if (std::find(types.begin(), types.end(), type) == types.end()) unsupported("type ." + std::string(type_name(type)));
  return type;
}

Type Decoding::element_type() const {
  for (const std::string_view modifier : modifiers_)
    if (const Type type = parse_type(modifier); type != Type::none) return type;
  offer_all_types();
  unsupported("without a type");
}

void Decoding::finish() const {
  if (at_ < modifiers_.size()) unsupported("modifier ." + std::string(modifiers_[at_]));
  if (op.execute == nullptr) unsupported("in this form");
}

const ptx::Operand& Decoding::operand(size_t i) const {
  static const ptx::Operand kAny = [] {
    ptx::Operand any;
    any.kind = ptx::Operand::Kind::any;
    return any;
  }();
  if (is_probe()) return kAny;
  if (i >= instruction.operands.size()) malformed("operand " + std::to_string(i + 1) + " is missing");
  return instruction.operands[i];
}

void Decoding::require_operands(size_t at_least, size_t at_most) const {
  if (is_probe() || (num_operands() >= at_least && num_operands() <= at_most)) return;
  malformed(std::to_string(num_operands()) + " operands, " + std::to_string(at_least) +
            (at_most == at_least ? "" : " to " + std::to_string(at_most)) + " wanted");
}

uint32_t Decoding::destination(const ptx::Operand& operand, uint32_t bits) {
  if (operand.kind == ptx::Operand::Kind::sink || operand.kind == ptx::Operand::Kind::any)
    return context.scratch_row(bits);
  if (operand.kind != ptx::Operand::Kind::reg) malformed("a destination is not a register");
  if (context.register_bits(operand.reg) != bits)
    malformed("destination " + operand.name + " has " + std::to_string(context.register_bits(operand.reg)) + " bits, " +
              std::to_string(bits) + " wanted");
  registers.writes.push_back(operand.reg);
  return context.register_row(operand.reg);
}

uint32_t Decoding::source(const ptx::Operand& operand, uint32_t bits) {
  using Kind = ptx::Operand::Kind;
  if (operand.negated) unsupported("negated predicate operand " + operand.name);
  switch (operand.kind) {
    case Kind::reg:
      if (context.register_bits(operand.reg) != bits)
        malformed("operand " + operand.name + " has " + std::to_string(context.register_bits(operand.reg)) + " bits, " +
                  std::to_string(bits) + " wanted");
      registers.reads.push_back(operand.reg);
      return context.register_row(operand.reg);
    case Kind::immediate: return context.constant_row(bits, static_cast<uint64_t>(operand.value));
    case Kind::float_immediate:
      if (operand.float_bits != bits) malformed("floating-point constant of the wrong width");
      return context.constant_row(bits, static_cast<uint64_t>(operand.value));
    case Kind::special: {
      static const std::unordered_map<std::string, SpecialRegister> kSpecials = [] {
        using R = SpecialRegister;
        std::unordered_map<std::string, R> names = {{"%laneid", R::laneid},
                                                    {"%warpid", R::warpid},
                                                    {"%nwarpid", R::nwarpid},
                                                    {"%lanemask_eq", R::lanemask_eq},
                                                    {"%lanemask_lt", R::lanemask_lt},
                                                    {"%lanemask_le", R::lanemask_le},
                                                    {"%lanemask_gt", R::lanemask_gt},
                                                    {"%lanemask_ge", R::lanemask_ge},
                                                    {"%cluster_ctarank", R::cluster_ctarank},
                                                    {"%cluster_nctarank", R::cluster_nctarank},
                                                    {"%is_explicit_cluster", R::is_explicit_cluster},
                                                    {"%smid", R::smid},
                                                    {"%nsmid", R::nsmid},
                                                    {"%gridid", R::gridid},
                                                    {"%dynamic_smem_size", R::dynamic_smem_size},
                                                    {"%total_smem_size", R::total_smem_size}};
        const std::pair<const char*, R> vectors[] = {{"%tid", R::tid_x},
                                                     {"%ntid", R::ntid_x},
                                                     {"%ctaid", R::ctaid_x},
                                                     {"%nctaid", R::nctaid_x},
                                                     {"%clusterid", R::clusterid_x},
                                                     {"%nclusterid", R::nclusterid_x},
                                                     {"%cluster_ctaid", R::cluster_ctaid_x},
                                                     {"%cluster_nctaid", R::cluster_nctaid_x}};
        for (const auto& [name, first] : vectors)
          for (int i = 0; i < 3; ++i)
            names[std::string(name) + "." + "xyz"[i]] = static_cast<R>(static_cast<int>(first) + i);
        return names;
      }();
      const auto it = kSpecials.find(operand.name);
      if (it == kSpecials.end()) unsupported("special register " + operand.name);
      return context.special_row(it->second, bits);
    }
    case Kind::symbol: return context.symbol_row(operand.name, bits, 0);
    case Kind::any: return context.scratch_row(bits);
    default: malformed("an operand is not a register or constant");
  }
}

uint32_t Decoding::any_destination(const ptx::Operand& operand, uint32_t& bits) {
  if (operand.kind == ptx::Operand::Kind::reg) bits = context.register_bits(operand.reg);
  return destination(operand, bits);
}

uint32_t Decoding::any_source(const ptx::Operand& operand, uint32_t& bits) {
  if (operand.kind == ptx::Operand::Kind::sink) return context.scratch_row(bits);  // st of a vector may leave holes
  if (operand.kind == ptx::Operand::Kind::reg) bits = context.register_bits(operand.reg);
  return source(operand, bits);
}

std::vector<uint32_t> Decoding::source_list(const ptx::Operand& operand, uint32_t bits) {
  if (operand.kind != ptx::Operand::Kind::vector) return {source(operand, bits)};
  std::vector<uint32_t> rows;
  for (const ptx::Operand& item : operand.items) rows.push_back(source(item, bits));
  return rows;
}

std::vector<uint32_t> Decoding::destination_list(const ptx::Operand& operand, uint32_t bits) {
  if (operand.kind != ptx::Operand::Kind::vector) return {destination(operand, bits)};
  std::vector<uint32_t> rows;
  for (const ptx::Operand& item : operand.items) rows.push_back(destination(item, bits));
  return rows;
}

std::vector<uint32_t> Decoding::accumulator_list(const ptx::Operand& operand, uint32_t bits) {
  const size_t num_before = registers.writes.size();
  std::vector<uint32_t> rows = destination_list(operand, bits);
  registers.accumulators.assign(registers.writes.begin() + static_cast<ptrdiff_t>(num_before), registers.writes.end());
  return rows;
}

int64_t Decoding::immediate(size_t i) const {
  if (!is_immediate(i)) malformed("operand " + std::to_string(i + 1) + " must be an integer constant");
  return operand(i).value;
}

AddressOperand Decoding::address(const ptx::Operand& operand) {
  if (operand.kind == ptx::Operand::Kind::any) return {context.scratch_row(64), 64, 0};
  if (operand.kind != ptx::Operand::Kind::address || operand.items.empty()) malformed("an operand is not an address");
  const ptx::Operand& base = operand.items[0];
  AddressOperand result;
  result.offset = operand.value;
  if (base.kind == ptx::Operand::Kind::reg) {
    result.bits = context.register_bits(base.reg);
    if (result.bits != 32 && result.bits != 64) malformed("address " + base.name + " has neither 32 nor 64 bits");
    registers.reads.push_back(base.reg);
    result.row = context.register_row(base.reg);
  } else if (base.kind == ptx::Operand::Kind::symbol) {
    result.row = context.symbol_row(base.name, 64, operand.value);
    result.offset = 0;
  } else if (base.kind == ptx::Operand::Kind::immediate) {
    result.row = context.constant_row(64, static_cast<uint64_t>(base.value));
  } else {
    malformed("an address has no register, variable or constant as its base");
  }
  return result;
}

uint32_t Decoding::label(size_t i) const {
  if (operand(i).kind != ptx::Operand::Kind::label) malformed("'" + operand(i).name + "' is not a label");
  return static_cast<uint32_t>(operand(i).value);
}

void Decoding::unsupported(const std::string& what) const {
  throw EmulatorError(Fault::unsupported, "PTX line " + std::to_string(instruction.line) + ": `" + instruction.opcode +
                                              "`: not supported: " + what + " (PTX ISA, \"" + section_ + "\")");
}

void Decoding::malformed(const std::string& what) const {
  throw EmulatorError(Fault::invalid_ptx,
                      "PTX line " + std::to_string(instruction.line) + ": `" + instruction.opcode + "`: " + what);
}

void Decoding::require_target(std::initializer_list<Target> targets) const {
  if (std::find(targets.begin(), targets.end(), target()) != targets.end()) return;
  static constexpr const char* kNames[] = {"sm_90a", "sm_100a", "sm_103a"};
  unsupported(std::string("by the target ") + kNames[static_cast<size_t>(target())]);
}

}  // namespace opdeck::emu
