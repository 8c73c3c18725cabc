// SPDX-License-Identifier: Apache-2.0
#include "lexer.h"

#include <string>

#include "../machine/error.h"

namespace opdeck::emu::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' || c == '.';
}
bool is_word(char c) { return is_word_start(c) || is_digit(c); }

}  // namespace

void Lexer::skip_blank() {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    const char following = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
    if (c == '\n') {
      ++line_;
      ++pos_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v' || c == '\0') {
      ++pos_;
    } else if (c == '/' && following == '/') {
      while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
    } else if (c == '/' && following == '*') {
      const uint32_t first_line = line_;
      pos_ += 2;
      while (pos_ + 1 < text_.size() && !(text_[pos_] == '*' && text_[pos_ + 1] == '/')) line_ += text_[pos_++] == '\n';
      if (pos_ + 1 >= text_.size())
        throw EmulatorError(Fault::invalid_ptx, "PTX line " + std::to_string(first_line) + ": comment is not closed");
      pos_ += 2;
    } else {
      return;
    }
  }
}

void Lexer::skip_line(uint32_t line) {
  while (current_.kind != Token::Kind::end && current_.line == line) advance();
}

void Lexer::advance() {
  skip_blank();
  current_ = Token{Token::Kind::end, {}, line_};
  if (pos_ >= text_.size()) return;
  const size_t first = pos_;
  const char c = text_[pos_];
  if (is_word_start(c)) {
    current_.kind = Token::Kind::word;
    while (pos_ < text_.size()) {
      if (is_word(text_[pos_])) {
        ++pos_;
      } else if (text_[pos_] == ':' && pos_ + 2 < text_.size() && text_[pos_ + 1] == ':' && is_word(text_[pos_ + 2])) {
        pos_ += 2;
      } else {
        break;
      }
    }
  } else if (is_digit(c)) {
    current_.kind = Token::Kind::number;
    while (pos_ < text_.size() && (is_word(text_[pos_]) && text_[pos_] != '$' && text_[pos_] != '%')) ++pos_;
  } else if (c == '"') {
    current_.kind = Token::Kind::string;
    ++pos_;
    while (pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\n') pos_ += text_[pos_] == '\\' ? 2 : 1;
    if (pos_ >= text_.size() || text_[pos_] != '"')
      throw EmulatorError(Fault::invalid_ptx, "PTX line " + std::to_string(line_) + ": string is not closed");
    ++pos_;
  } else {
    current_.kind = Token::Kind::punctuation;
    ++pos_;
  }
  current_.text = text_.substr(first, pos_ - first);
}

}  // namespace opdeck::emu::ptx
