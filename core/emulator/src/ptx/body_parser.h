// SPDX-License-Identifier: Apache-2.0
// The parser's shared pieces: declarations, numbers, kernel bodies. Called by parser.cpp.
#pragma once

#include <string>
#include <vector>

#include "../machine/error.h"
#include "ast.h"
#include "lexer.h"

namespace opdeck::emu::ptx {

[[noreturn]] void fail(const Token& at, const std::string& what);
void expect(Lexer& tokens, std::string_view text);
Token expect_word(Lexer& tokens);
uint64_t parse_unsigned(Lexer& tokens);
// A token such as 42, 0x2a, 052, 0b101, with an optional U.
uint64_t integer_value(const Token& token);

// `[.align N] .type name[n][m]...` as parameters and variables write it.
struct Declarator {
  std::string name;
  uint32_t align_bytes = 1;
  uint32_t elem_bytes = 0;
  uint64_t size_bytes = 0;
  bool unsized = false;  // `name[]`
};
Declarator parse_declarator(Lexer& tokens);

// From the state space's token to the ';'. `is_extern` is the linkage written before it.
std::vector<Variable> parse_variables(Lexer& tokens, bool is_extern);

// From '{' to its '}'.
void parse_body(Lexer& tokens, Kernel& kernel);

// Bits of `.b32`, `.pred`, ...; 0 when the word is no type.
uint16_t type_bits(std::string_view word);

}  // namespace opdeck::emu::ptx
