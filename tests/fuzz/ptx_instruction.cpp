// SPDX-License-Identifier: Apache-2.0
// One instruction with modifiers and operands that the input chooses, so that every decode function is reached with wrong
// ones. An input of "TARGET OPCODE\n" and bytes says where to begin (instruction_seeds.py has a form of each instruction
// for each modifier), any other picks a name of the table. The next try follows what the decoder's answer asks for: a
// modifier of its list, its number of operands, a register of its width.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "isa/decode.h"
#include "ptx/parser.h"

namespace {

using namespace opdeck::emu;

constexpr size_t kNumTypes = 21;  // which stand first
const char* const kModifiers[] = {
    ".b8", ".b16", ".b32", ".b64", ".b128", ".u8", ".u16", ".u32", ".u64", ".s8", ".s16", ".s32", ".s64", ".f16",
    ".f16x2", ".bf16", ".bf16x2", ".f32", ".f32x2", ".f64", ".tf32", ".pred", ".sync", ".aligned", ".shared",
    ".shared::cta", ".shared::cluster", ".global", ".local", ".param", ".const", ".rn", ".rz", ".rna", ".ftz", ".sat",
    ".satfinite", ".relu", ".approx", ".wide", ".lo", ".hi", ".v2", ".v4", ".v8", ".x1", ".x2", ".x4", ".x64", ".x128",
    ".32x32b", ".16x256b", ".trans", ".cta_group::1", ".cta_group::2", ".kind::f16", ".kind::mxf4", ".kind::i8",
    ".block_scale", ".tile", ".mbarrier::complete_tx::bytes", ".bulk_group", ".multicast::cluster", ".release",
    ".acquire", ".relaxed", ".cluster", ".cta", ".gpu", ".sys", ".eq", ".lt", ".and", ".or", ".xor", ".add", ".min",
    ".max", ".cas", ".exch", ".inc", ".noinc", ".read", ".pack::16b", ".level::evict_first", ".L2::cache_hint",
    ".m64n64k16", ".m16n8k16", ".row", ".col", ".cc", ".x", ".::", "."};
const char* const kOperands[] = {
    "%r0", "%r1", "%rd0", "%rd1", "%h0", "%f0", "%p0", "%q0", "%b0", "_", "0", "1", "-1", "64", "18446744073709551615",
    "0f3f800000", "0d3ff0000000000000", "%tid.x", "%laneid", "[%r0]", "[%rd0+16]", "[%rd0-1]", "[buffer]", "[argument]",
    "[missing]", "[]", "[8]", "[%rd0, {%r0, %r1}]", "[%rd0, {}]", "[%rd0, {%r0,%r0,%r0,%r0,%r0,%r0}]", "{}", "{%r0}",
    "{%r0, %r1}", "{%r0, %r1, %r0, %r1}", "{%h0, %h0}", "{%rd0, %rd1}", "{_, _}", "{%f0,%f0,%f0,%f0,%f0,%f0,%f0,%f0}",
    "!%p0", "%p0|%p1", "%r0|%p0", "_|_", "here", "table", "buffer", "argument", "%nothing", "({%r0}, {%r1})", "{{%r0}}",
    "[{%r0}]", "[[%r0]]", "{here}"};

class Choices {
 public:
  Choices(const uint8_t* data, size_t num_bytes) : at_(data), end_(data + num_bytes) {}
  size_t below(size_t num_choices) {
    size_t value = at_ < end_ ? *at_++ : 0;
    if (num_choices > 256) value = value << 8 | (at_ < end_ ? *at_++ : 0);
    return value % num_choices;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

// The decoder's answer; empty where it took the instruction.
std::string decode(const std::string& target, const std::string& instruction) {
  const std::string text = ".version 8.8\n.target " + target +
                           "\n.address_size 64\n.extern .shared .align 16 .b8 buffer[];\n"
                           ".visible .entry k(.param .u64 argument) {\n.reg .pred %p<2>; .reg .b16 %h<2>;\n"
                           ".reg .b32 %r<2>; .reg .f32 %f<2>; .reg .b64 %rd<2>; .reg .b128 %q<2>; .reg .b8 %b<2>;\n"
                           "table: .branchtargets here, here;\nhere:\n" + instruction + ";\nret;\n}\n";
  try {
    const ptx::Module module = ptx::parse_module(text);
    decode_kernel(module, module.kernels.at(0));
  } catch (const EmulatorError& error) {
    return error.what();
  }
  return {};
}

// One of the modifiers of "... (one of .a, .b is wanted)"; empty where the answer has no such list.
std::string wanted_modifier(const std::string& answer, Choices& choices) {
  const size_t list = answer.find("(one of ");
  if (list == std::string::npos) {
    const bool asks_type = answer.find("without a type") != std::string::npos;
    return asks_type ? kModifiers[choices.below(kNumTypes)] : "";
  }
  std::vector<std::string> wanted;
  const size_t end = answer.find(" is wanted", list);
  for (size_t at = answer.find('.', list); at < end;) {
    const size_t stop = std::min(answer.find(',', at), end);
    wanted.push_back(answer.substr(at, stop - at));
    at = answer.find('.', stop);
  }
  return wanted.empty() ? "" : wanted[choices.below(wanted.size())];
}

std::string any_operand(Choices& choices) { return kOperands[choices.below(std::size(kOperands))]; }

// "2 operands, 3 wanted", "operand 3 is missing", "destination %r0 has 32 bits, 64 wanted"; else any other operand.
void follow(const std::string& answer, Choices& choices, std::vector<std::string>& operands) {
  const size_t wanted = answer.rfind(" wanted");
  const size_t number = wanted == std::string::npos ? wanted : answer.rfind(' ', wanted - 1);
  const int value = number == std::string::npos ? 0 : std::atoi(answer.c_str() + number);
  if (answer.find(" is missing") != std::string::npos) return operands.push_back(any_operand(choices));
  if (answer.find(" operands, ") != std::string::npos && value < 16) {
    while (operands.size() < static_cast<size_t>(value)) operands.push_back(any_operand(choices));
    return operands.resize(static_cast<size_t>(value));
  }
  if (operands.empty()) return;
  const auto register_of = [](int bits) {
    switch (bits) {
      case 1: return "%p0";
      case 8: return "%b0";
      case 16: return "%h0";
      case 64: return "%rd0";
      case 128: return "%q0";
      default: return "%r0";
    }
  };
  const bool asks_width = answer.find(" bits, ") != std::string::npos;
  for (std::string& operand : operands)
    if (asks_width && answer.find(" " + operand + " has ") != std::string::npos) {
      operand = register_of(value);
      return;
    }
  operands[choices.below(operands.size())] = any_operand(choices);
}

std::string join(const std::vector<std::string>& operands) {
  std::string text;
  for (const std::string& operand : operands) text += (text.empty() ? " " : ", ") + operand;
  return text;
}

// Where the tries begin.
struct Start {
  std::string target, opcode;
};

// Of "TARGET OPCODE\n"; num_bytes is what that takes, 0 where the input begins otherwise.
Start named_start(std::string_view input, size_t& num_bytes) {
  const size_t end = input.substr(0, 256).find('\n'), blank = input.find(' ');
  num_bytes = 0;
  if (input.rfind("sm_", 0) != 0 || end == std::string_view::npos || blank > end) return {};
  num_bytes = end + 1;
  return {std::string(input.substr(0, blank)), std::string(input.substr(blank + 1, end - blank - 1))};
}

Start chosen_start(Choices& choices) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, entry] : instruction_table()) all.push_back(name);
    return all;
  }();
  const char* const targets[] = {"sm_90a", "sm_100a", "sm_103a"};
  Start start;
  start.target = targets[choices.below(3)];
  start.opcode = names[choices.below(names.size() < 257 ? 257 : names.size()) % names.size()];
  return start;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  size_t num_read = 0;
  Start start = named_start({reinterpret_cast<const char*>(data), num_bytes}, num_read);
  Choices choices(data + num_read, num_bytes - num_read);
  if (num_read == 0) start = chosen_start(choices);
  std::string& opcode = start.opcode;
  for (size_t i = choices.below(4); i > 1; --i) opcode += kModifiers[choices.below(std::size(kModifiers))];
  std::vector<std::string> operands(choices.below(6));
  for (std::string& operand : operands) operand = any_operand(choices);
  for (int i = 0; i < 16; ++i) {
    const std::string answer = decode(start.target, opcode + join(operands));
    if (answer.empty()) break;
    const std::string modifier = wanted_modifier(answer, choices);
    opcode += modifier;
    if (modifier.empty()) follow(answer, choices, operands);
  }
  return 0;
}
