// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "body_parser.h"

namespace opdeck::emu::ptx {
namespace {

// Far above what kernels declare; they bound the memory that a corrupt text can ask for.
constexpr uint64_t kMaxAlignBytes = 1 << 20;
constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 28;

}  // namespace

void fail(const Token& at, const std::string& what) {
  throw EmulatorError(Fault::invalid_ptx, "PTX line " + std::to_string(at.line) + ": " + what);
}

void expect(Lexer& tokens, std::string_view text) {
  const Token token = tokens.next();
  if (token.is(text)) return;
  fail(token, "expected '" + std::string(text) + "', got '" + std::string(token.text) + "'");
}

Token expect_word(Lexer& tokens) {
  const Token token = tokens.next();
  if (token.kind != Token::Kind::word) fail(token, "expected a name, got '" + std::string(token.text) + "'");
  return token;
}

uint64_t integer_value(const Token& token) {
  std::string digits(token.text);
  if (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) digits.pop_back();
  int base = 10;
  size_t start = 0;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) {
    base = 16;
    start = 2;
  } else if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'b' || digits[1] == 'B')) {
    base = 2;
    start = 2;
  } else if (digits.size() > 1 && digits[0] == '0') {
    base = 8;
    start = 1;
  }
  uint64_t value = 0;
  if (start >= digits.size()) fail(token, "'" + std::string(token.text) + "' is not an integer");
  for (size_t i = start; i < digits.size(); ++i) {
    const char c = digits[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : 99;
    if (digit >= base) fail(token, "'" + std::string(token.text) + "' is not an integer");
    value = value * static_cast<uint64_t>(base) + static_cast<uint64_t>(digit);
  }
  return value;
}

uint64_t parse_unsigned(Lexer& tokens) {
  const Token token = tokens.next();
  if (token.kind != Token::Kind::number) fail(token, "expected a number, got '" + std::string(token.text) + "'");
  return integer_value(token);
}

uint16_t type_bits(std::string_view word) {
  if (word == ".pred") return 1;
  if (word == ".f16x2" || word == ".bf16x2") return 32;
  if (word == ".bf16") return 16;
  if (word == ".tf32") return 32;
  if (word.size() < 3 || word[0] != '.' || std::strchr("busf", word[1]) == nullptr) return 0;
  const std::string_view digits = word.substr(2);
  for (const uint16_t bits : {8, 16, 32, 64, 128}) {
    if (digits == std::to_string(bits)) return bits;
  }
  return 0;
}

Declarator parse_declarator(Lexer& tokens) {
  Declarator d;
  bool aligned = false;
  while (true) {
    const Token token = tokens.next();
    if (token.is(".align")) {
      const uint64_t align_bytes = parse_unsigned(tokens);
      aligned = true;
      if (align_bytes == 0 || (align_bytes & (align_bytes - 1)) != 0 || align_bytes > kMaxAlignBytes)
        fail(token, ".align is " + std::to_string(align_bytes) + ", want a power of two up to " +
                        std::to_string(kMaxAlignBytes));
      d.align_bytes = static_cast<uint32_t>(align_bytes);
    } else if (token.is(".ptr") || token.is(".global") || token.is(".shared") || token.is(".const")) {
      continue;  // pointer attributes of a parameter
    } else if (token.is(".v2") || token.is(".v4")) {
      fail(token, "vector variables are not supported");
    } else if (const uint16_t bits = type_bits(token.text); bits >= 8) {
      d.elem_bytes = bits / 8;
    } else if (token.kind == Token::Kind::word && token.text[0] != '.' && d.elem_bytes != 0) {
      d.name = std::string(token.text);
      break;
    } else {
      fail(token, "expected a type and a name, got '" + std::string(token.text) + "'");
    }
  }
  if (!aligned) d.align_bytes = d.elem_bytes;
  d.size_bytes = d.elem_bytes;
  while (tokens.peek().is("[")) {
    tokens.next();
    if (tokens.peek().is("]")) {
      d.unsized = true;
      d.size_bytes = 0;
    } else {
      const Token at = tokens.peek();
      const uint64_t num_elems = parse_unsigned(tokens);
      if (num_elems > kMaxVariableBytes || d.size_bytes * num_elems > kMaxVariableBytes)
        fail(at, "array is larger than " + std::to_string(kMaxVariableBytes) + " bytes");
      d.size_bytes *= num_elems;
    }
    expect(tokens, "]");
  }
  return d;
}

namespace {

StateSpace state_space(const Token& token) {
  if (token.is(".shared")) return StateSpace::shared;
  if (token.is(".global")) return StateSpace::global;
  if (token.is(".const")) return StateSpace::constant;
  if (token.is(".local")) return StateSpace::local;
  fail(token, "expected a state space, got '" + std::string(token.text) + "'");
}

uint64_t initial_value(Lexer& tokens, uint32_t elem_bytes) {
  const bool negative = tokens.peek().is("-");
  if (negative) tokens.next();
  const Token token = tokens.next();
  if (token.kind != Token::Kind::number) fail(token, "initial values must be numbers");
  const std::string_view text = token.text;
  if (text.size() == 10 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F') && elem_bytes == 4)
    return integer_value(Token{Token::Kind::number, std::string("0x").append(text.substr(2)), token.line});
  const uint64_t value = integer_value(token);
  return negative ? 0 - value : value;
}

}  // namespace

std::vector<Variable> parse_variables(Lexer& tokens, bool is_extern) {
  const StateSpace space = state_space(tokens.next());
  std::vector<Variable> variables;
  do {
    const Declarator d = parse_declarator(tokens);
    Variable v;
    v.name = d.name;
    v.space = space;
    v.align_bytes = d.align_bytes;
    v.size_bytes = d.size_bytes;
    v.is_extern = is_extern && d.unsized;
    if (tokens.peek().is("=")) {
      tokens.next();
      const bool list = tokens.peek().is("{");
      if (list) tokens.next();
      do {
        const Token at = tokens.peek();
        const uint64_t value = initial_value(tokens, d.elem_bytes);
        for (uint32_t b = 0; b < d.elem_bytes; ++b)
          v.initial_bytes.push_back(b < sizeof value ? static_cast<uint8_t>(value >> (8 * b)) : uint8_t{0});
        if (!d.unsized && v.initial_bytes.size() > v.size_bytes)
          fail(at, "variable " + v.name + " has more initial values than elements");
      } while (list && tokens.peek().is(",") && (tokens.next(), true));
      if (list) expect(tokens, "}");
      if (d.unsized) v.size_bytes = v.initial_bytes.size();
    }
    variables.push_back(std::move(v));
  } while (tokens.peek().is(",") && (tokens.next(), true));
  expect(tokens, ";");
  return variables;
}

}  // namespace opdeck::emu::ptx
