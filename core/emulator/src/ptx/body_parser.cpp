// SPDX-License-Identifier: Apache-2.0
// Kernel bodies: scopes, registers, labels, instructions and their operands.
#include "body_parser.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>

namespace opdeck::emu::ptx {
namespace {

// Far above what kernels use; they bound the memory and the stack that a corrupt text can ask for.
constexpr size_t kMaxRegisters = 1'000'000;
constexpr uint32_t kMaxOperandDepth = 8;

// Names of one `{ }`: registers are found while parsing (they are declared first), labels afterwards.
struct Scope {
  Scope* parent = nullptr;
  std::unordered_map<std::string, uint32_t> registers;
  std::unordered_map<std::string, uint32_t> labels;  // -> instruction index
  std::unordered_map<std::string, Operand> branch_tables;

  const uint32_t* find_register(const std::string& name) const {
    for (const Scope* s = this; s != nullptr; s = s->parent) {
      const auto it = s->registers.find(name);
      if (it != s->registers.end()) return &it->second;
    }
    return nullptr;
  }
  const uint32_t* find_label(const std::string& name) const {
    for (const Scope* s = this; s != nullptr; s = s->parent) {
      const auto it = s->labels.find(name);
      if (it != s->labels.end()) return &it->second;
    }
    return nullptr;
  }
  const Operand* find_branch_table(const std::string& name) const {
    for (const Scope* s = this; s != nullptr; s = s->parent) {
      const auto it = s->branch_tables.find(name);
      if (it != s->branch_tables.end()) return &it->second;
    }
    return nullptr;
  }
};

class BodyParser {
 public:
  BodyParser(Lexer& tokens, Kernel& kernel) : tokens_(tokens), kernel_(kernel) {}

  void parse() {
    open_scope(nullptr);
    expect(tokens_, "{");
    while (scope_ != nullptr) parse_statement();
    resolve_labels();
  }

 private:
  void open_scope(Scope* parent) {
    scopes_.push_back(std::make_unique<Scope>());
    scope_ = scopes_.back().get();
    scope_->parent = parent;
  }

  void parse_statement() {
    const Token token = tokens_.peek();
    if (token.kind == Token::Kind::end) fail(token, "'}' is missing at the end of kernel " + kernel_.name);
    if (token.is("{")) {
      tokens_.next();
      open_scope(scope_);
    } else if (token.is("}")) {
      tokens_.next();
      scope_ = scope_->parent;
    } else if (token.is(";")) {
      tokens_.next();
    } else if (token.is(".reg")) {
      parse_registers();
    } else if (token.is(".shared") || token.is(".local") || token.is(".global") || token.is(".const")) {
      for (Variable& v : parse_variables(tokens_, false)) kernel_.variables.push_back(std::move(v));
    } else if (token.is(".loc")) {
      tokens_.next();
      source_file_ = static_cast<uint32_t>(parse_unsigned(tokens_));
      source_line_ = static_cast<uint32_t>(parse_unsigned(tokens_));
      tokens_.skip_line(token.line);
    } else if (token.is(".pragma")) {
      while (!tokens_.next().is(";")) {
        if (tokens_.peek().kind == Token::Kind::end) fail(token, ".pragma is not closed");
      }
    } else if (token.kind == Token::Kind::word && token.text[0] == '.') {
      fail(token, "directive " + std::string(token.text) + " is not supported in a kernel");
    } else {
      parse_label_or_instruction();
    }
  }

  void parse_registers() {
    tokens_.next();
    const Token type = tokens_.next();
    const uint16_t bits = type_bits(type.text);
    if (bits == 0) fail(type, "register type '" + std::string(type.text) + "' is not supported");
    do {
      const std::string name(expect_word(tokens_).text);
      if (tokens_.peek().is("<")) {
        const Token at = tokens_.next();
        const uint64_t count = parse_unsigned(tokens_);
        if (count > kMaxRegisters - std::min(kMaxRegisters, kernel_.registers.size()))
          fail(at, "more than " + std::to_string(kMaxRegisters) + " registers");
        expect(tokens_, ">");
        for (uint64_t i = 0; i < count; ++i) declare_register(name + std::to_string(i), bits);
      } else {
        declare_register(name, bits);
      }
    } while (tokens_.peek().is(",") && (tokens_.next(), true));
    expect(tokens_, ";");
  }

  void declare_register(const std::string& name, uint16_t bits) {
    scope_->registers[name] = static_cast<uint32_t>(kernel_.registers.size());
    kernel_.registers.push_back({name, bits});
  }

  void parse_label_or_instruction() {
    Instruction instruction;
    if (tokens_.peek().is("@")) parse_guard(instruction);
    const Token opcode = expect_word(tokens_);
    if (!instruction.has_guard && tokens_.peek().is(":")) {
      tokens_.next();
      if (tokens_.peek().is(".branchtargets")) return parse_branch_targets(std::string(opcode.text));
      if (!scope_->labels.emplace(opcode.text, static_cast<uint32_t>(kernel_.instructions.size())).second)
        fail(opcode, "label " + std::string(opcode.text) + " is defined twice");
      return;
    }
    instruction.opcode = std::string(opcode.text);
    instruction.line = opcode.line;
    instruction.source_file = source_file_;
    instruction.source_line = source_line_;
    if (!tokens_.peek().is(";")) {
      do {
        instruction.operands.push_back(parse_operand());
      } while (tokens_.peek().is(",") && (tokens_.next(), true));
    }
    expect(tokens_, ";");
    kernel_.instructions.push_back(std::move(instruction));
    instruction_scopes_.push_back(scope_);
  }

  // `name: .branchtargets a, b;`, the table of a brx.idx. The labels are resolved where the table is used.
  void parse_branch_targets(const std::string& name) {
    tokens_.next();
    Operand table;
    table.kind = Operand::Kind::vector;
    do {
      Operand label;
      label.kind = Operand::Kind::symbol;
      label.name = std::string(expect_word(tokens_).text);
      table.items.push_back(std::move(label));
    } while (tokens_.peek().is(",") && (tokens_.next(), true));
    expect(tokens_, ";");
    scope_->branch_tables[name] = std::move(table);
  }

  void parse_guard(Instruction& instruction) {
    tokens_.next();
    instruction.has_guard = true;
    if (tokens_.peek().is("!")) {
      tokens_.next();
      instruction.guard_negated = true;
    }
    const Token name = expect_word(tokens_);
    const uint32_t* reg = scope_->find_register(std::string(name.text));
    if (reg == nullptr || kernel_.registers[*reg].bits != 1)
      fail(name, "guard '" + std::string(name.text) + "' is not a declared predicate");
    instruction.guard_reg = *reg;
  }

  Operand parse_operand() {
    Operand operand = parse_primary();
    if (!tokens_.peek().is("|")) return operand;
    tokens_.next();
    Operand pair;
    pair.kind = Operand::Kind::pair;
    pair.items = {std::move(operand), parse_primary()};
    return pair;
  }

  // Operands nest by recursion; no instruction of PTX has more than two levels.
  Operand parse_primary() {
    const Token token = tokens_.peek();
    if (depth_ == kMaxOperandDepth) fail(token, "operands are nested too deeply");
    ++depth_;
    Operand operand = parse_nested(token);
    --depth_;
    return operand;
  }

  Operand parse_nested(const Token& token) {
    if (token.is("{")) return parse_list(Operand::Kind::vector, "{", "}");
    if (token.is("[")) return parse_list(Operand::Kind::address, "[", "]");
    if (token.is("(")) return parse_list(Operand::Kind::vector, "(", ")");
    if (token.is("!")) {
      tokens_.next();
      Operand operand = parse_primary();
      operand.negated = true;
      return operand;
    }
    if (token.is("-") || token.kind == Token::Kind::number) return parse_number();
    if (token.kind == Token::Kind::word) return parse_name();
    fail(token, "unexpected '" + std::string(token.text) + "' in an operand");
  }

  // `{a, b}` and `[base+offset, {coordinates}]`; for an address the offset of the base goes to `value`.
  Operand parse_list(Operand::Kind kind, std::string_view open, std::string_view close) {
    expect(tokens_, open);
    Operand list;
    list.kind = kind;
    while (!tokens_.peek().is(close)) {
      list.items.push_back(parse_operand());
      if (kind == Operand::Kind::address && list.items.size() == 1) list.value = parse_offset();
      if (!tokens_.peek().is(close)) expect(tokens_, ",");
    }
    tokens_.next();
    return list;
  }

  int64_t parse_offset() {
    uint64_t offset = 0;
    while (tokens_.peek().is("+") || tokens_.peek().is("-")) {
      if (tokens_.peek().is("+")) tokens_.next();
      offset += static_cast<uint64_t>(parse_number().value);
    }
    return static_cast<int64_t>(offset);
  }

  Operand parse_number() {
    bool negative = false;
    while (tokens_.peek().is("-")) {
      tokens_.next();
      negative = !negative;
    }
    const Token token = tokens_.next();
    if (token.kind != Token::Kind::number) fail(token, "expected a number, got '" + std::string(token.text) + "'");
    Operand operand;
    const std::string_view text = token.text;
    const char marker = text.size() > 2 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
    if ((marker == 'f' && text.size() == 10) || (marker == 'd' && text.size() == 18)) {
      operand.kind = Operand::Kind::float_immediate;
      operand.float_bits = marker == 'f' ? 32 : 64;
      const std::string hex = "0x" + std::string(text.substr(2));
      operand.value = static_cast<int64_t>(integer_value(Token{Token::Kind::number, hex, token.line}));
      if (negative) operand.value ^= int64_t(uint64_t{1} << (operand.float_bits - 1));
    } else if (text.find('.') != std::string_view::npos) {
      fail(token, "write floating-point constants as 0f or 0d");
    } else {
      operand.kind = Operand::Kind::immediate;
      const uint64_t value = integer_value(token);
      operand.value = static_cast<int64_t>(negative ? 0 - value : value);
    }
    return operand;
  }

  Operand parse_name() {
    const Token token = tokens_.next();
    Operand operand;
    operand.name = std::string(token.text);
    if (operand.name == "_") return operand;
    if (const uint32_t* reg = scope_->find_register(operand.name)) {
      operand.kind = Operand::Kind::reg;
      operand.reg = *reg;
    } else if (operand.name[0] == '%') {
      operand.kind = Operand::Kind::special;
    } else {
      operand.kind = Operand::Kind::symbol;
    }
    return operand;
  }

  // A symbol operand that names a label of an enclosing scope becomes one; the rest are variables, which the decoder
  // looks up.
  void resolve_labels() {
    for (size_t i = 0; i < kernel_.instructions.size(); ++i) {
      for (Operand& operand : kernel_.instructions[i].operands) {
        if (operand.kind != Operand::Kind::symbol) continue;
        if (const Operand* table = instruction_scopes_[i]->find_branch_table(operand.name)) operand = *table;
        resolve_label(*instruction_scopes_[i], operand);
        for (Operand& item : operand.items) resolve_label(*instruction_scopes_[i], item);
      }
    }
  }

  static void resolve_label(const Scope& scope, Operand& operand) {
    const uint32_t* target = operand.kind == Operand::Kind::symbol ? scope.find_label(operand.name) : nullptr;
    if (target == nullptr) return;
    operand.kind = Operand::Kind::label;
    operand.value = *target;
  }

  Lexer& tokens_;
  Kernel& kernel_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> instruction_scopes_;
  Scope* scope_ = nullptr;
  uint32_t source_file_ = 0, source_line_ = 0;
  uint32_t depth_ = 0;  // of operands
};

}  // namespace

void parse_body(Lexer& tokens, Kernel& kernel) { BodyParser(tokens, kernel).parse(); }

}  // namespace opdeck::emu::ptx
