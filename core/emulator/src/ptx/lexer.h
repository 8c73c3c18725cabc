// SPDX-License-Identifier: Apache-2.0
// Splits PTX text into tokens. Called by parser.cpp. Source: PTX ISA, "Syntax".
// A word keeps its dots and double colons: `cp.async.bulk.shared::cta`, `%tid.x`, `.reg` are one token each.
#pragma once

#include <cstdint>
#include <string_view>

namespace opdeck::emu::ptx {

struct Token {
  enum class Kind : uint8_t { end, word, number, string, punctuation };
  Kind kind = Kind::end;
  std::string_view text;
  uint32_t line = 0;

  bool is(std::string_view s) const { return text == s && kind != Kind::string; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  const Token& peek() const { return current_; }
  Token next() {
    const Token token = current_;
    advance();
    return token;
  }
  // Skips what is left of a line (of directives whose contents are of no interest).
  void skip_line(uint32_t line);

 private:
  void advance();
  void skip_blank();

  std::string_view text_;
  size_t pos_ = 0;
  uint32_t line_ = 1;
  Token current_;
};

}  // namespace opdeck::emu::ptx
