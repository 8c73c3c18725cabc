// SPDX-License-Identifier: Apache-2.0
// Module level: directives, variables, kernel headers. Bodies are in body_parser.cpp.
#include "parser.h"

#include "body_parser.h"

namespace opdeck::emu::ptx {
namespace {

constexpr uint32_t kMaxParameterBytes = 32764;  // PTX ISA, "Kernel Function Parameters"

class ModuleParser {
 public:
  explicit ModuleParser(std::string_view text) : tokens_(text) {}

  Module parse() {
    while (tokens_.peek().kind != Token::Kind::end) parse_top_level();
    if (module_.target.empty()) throw EmulatorError(Fault::invalid_ptx, "PTX has no .target directive");
    return std::move(module_);
  }

 private:
  void parse_top_level() {
    const Token token = tokens_.peek();
    if (token.is(".version")) {
      tokens_.next();
      module_.version = std::string(tokens_.next().text);
    } else if (token.is(".target")) {
      tokens_.next();
      module_.target = std::string(tokens_.next().text);
      tokens_.skip_line(token.line);
    } else if (token.is(".address_size")) {
      tokens_.next();
      const Token size = tokens_.next();
      if (!size.is("64")) fail(size, "only .address_size 64 is supported");
    } else if (token.is(".file")) {
      parse_file();
    } else if (token.is(".pragma") || token.is(".alias")) {
      while (tokens_.peek().kind != Token::Kind::end && !tokens_.next().is(";")) {
      }
    } else if (token.is(".section")) {
      skip_section();
    } else if (token.is(".visible") || token.is(".weak") || token.is(".extern") || token.is(".common")) {
      linkage_extern_ = token.is(".extern");
      tokens_.next();
    } else if (token.is(".entry")) {
      parse_kernel();
    } else if (token.is(".func")) {
      skip_function();
    } else if (token.is(".global") || token.is(".const") || token.is(".shared")) {
      for (Variable& v : parse_variables(tokens_, linkage_extern_)) module_.variables.push_back(std::move(v));
      linkage_extern_ = false;
    } else {
      fail(token, "unexpected '" + std::string(token.text) + "'");
    }
  }

  // `.file number "name"`, and perhaps a time and a size.
  void parse_file() {
    const Token directive = tokens_.next();
    const auto number = static_cast<uint32_t>(parse_unsigned(tokens_));
    const Token name = tokens_.next();
    if (name.kind != Token::Kind::string) fail(name, "a file name is missing");
    module_.files[number] = std::string(name.text.substr(1, name.text.size() - 2));
    tokens_.skip_line(directive.line);
  }

  void skip_braces() {
    int depth = 0;
    do {
      const Token token = tokens_.next();
      if (token.kind == Token::Kind::end) fail(token, "'}' is missing");
      depth += token.is("{") ? 1 : token.is("}") ? -1 : 0;
    } while (depth != 0);
  }

  void skip_section() {
    while (!tokens_.peek().is("{")) {
      if (tokens_.next().kind == Token::Kind::end) fail(tokens_.peek(), "'{' is missing after .section");
    }
    skip_braces();
  }

  // Declarations (of vprintf and the like) and bodies alike; a call to one is refused where it is decoded.
  void skip_function() {
    while (!tokens_.peek().is(";") && !tokens_.peek().is("{")) {
      if (tokens_.next().kind == Token::Kind::end) fail(tokens_.peek(), ".func has no body and no ';'");
    }
    if (tokens_.peek().is("{")) return skip_braces();
    tokens_.next();
  }

  void parse_kernel() {
    Kernel kernel;
    kernel.line = tokens_.next().line;
    kernel.name = std::string(expect_word(tokens_).text);
    if (tokens_.peek().is("(")) parse_parameters(kernel);
    while (!tokens_.peek().is("{")) parse_kernel_directive(kernel);
    parse_body(tokens_, kernel);
    linkage_extern_ = false;
    module_.kernels.push_back(std::move(kernel));
  }

  void parse_parameters(Kernel& kernel) {
    expect(tokens_, "(");
    while (!tokens_.peek().is(")")) {
      const Token at = tokens_.peek();
      expect(tokens_, ".param");
      const Declarator d = parse_declarator(tokens_);
      Parameter p;
      p.name = d.name;
      p.size_bytes = static_cast<uint32_t>(d.size_bytes);
      p.align_bytes = d.align_bytes;
      p.offset_bytes = (kernel.parameter_bytes + p.align_bytes - 1) / p.align_bytes * p.align_bytes;
      if (uint64_t{p.offset_bytes} + p.size_bytes > kMaxParameterBytes)
        fail(at, "the parameters of kernel " + kernel.name + " take more than " + std::to_string(kMaxParameterBytes) +
                     " bytes");
      kernel.parameter_bytes = p.offset_bytes + p.size_bytes;
      kernel.parameters.push_back(std::move(p));
      if (!tokens_.peek().is(")")) expect(tokens_, ",");
    }
    tokens_.next();
  }

  void parse_kernel_directive(Kernel& kernel) {
    const Token token = tokens_.next();
    if (token.is(".reqntid")) {
      kernel.required_threads = parse_extents();
    } else if (token.is(".maxntid")) {
      kernel.maximum_threads = parse_extents();
    } else if (token.is(".reqnctapercluster")) {
      kernel.required_cluster = parse_extents();
    } else if (token.is(".explicitcluster")) {
      kernel.explicit_cluster = true;
    } else if (token.is(".minnctapersm") || token.is(".maxnreg") || token.is(".maxclusterrank") ||
               token.is(".maxnctapersm")) {
      parse_unsigned(tokens_);  // occupancy hints: no meaning for results
    } else if (token.is(".blocksareclusters")) {
      fail(token, ".blocksareclusters is not supported");
    } else if (token.is(".pragma")) {
      while (!tokens_.next().is(";")) {
        if (tokens_.peek().kind == Token::Kind::end) fail(token, ".pragma is not closed");
      }
    } else {
      fail(token, "unexpected '" + std::string(token.text) + "' before the body of kernel " + kernel.name);
    }
  }

  std::array<uint32_t, 3> parse_extents() {
    std::array<uint32_t, 3> extents{1, 1, 1};
    for (size_t i = 0; i < 3; ++i) {
      extents[i] = static_cast<uint32_t>(parse_unsigned(tokens_));
      if (!tokens_.peek().is(",")) break;
      tokens_.next();
    }
    return extents;
  }

  Lexer tokens_;
  Module module_;
  bool linkage_extern_ = false;
};

}  // namespace

Module parse_module(std::string_view text) { return ModuleParser(text).parse(); }

}  // namespace opdeck::emu::ptx
