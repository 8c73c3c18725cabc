// SPDX-License-Identifier: Apache-2.0
#include "effects.h"

#include <algorithm>
#include <string>

#include "pipes.h"

namespace opdeck::emu {
namespace {

struct EffectRule {
  std::string_view name;  // the opcode, or what is followed in it by a dot
  Effect effect;
};

constexpr EffectRule kEffectRules[] = {
    {"ld", Effect::none},
    {"ldu", Effect::none},
    {"prefetch", Effect::none},
    {"prefetchu", Effect::none},
    {"atom", Effect::none},
    {"red.async", Effect::some},
    {"red", Effect::none},
    {"mbarrier.test_wait", Effect::none},
    {"mbarrier.try_wait", Effect::may_wait},
    {"fence", Effect::none},
    {"membar", Effect::none},
    {"bra", Effect::none},
    {"brx", Effect::none},
    {"nanosleep", Effect::none},
    {"bar.warp", Effect::may_wait},
    {"ldmatrix", Effect::may_wait},
    {"activemask", Effect::none},
    {"shfl", Effect::may_wait},
    {"vote", Effect::may_wait},
    {"match", Effect::may_wait},
    {"redux", Effect::may_wait},
    {"elect", Effect::may_wait},
};

// Units that only compute.
constexpr Pipe kComputing[] = {Pipe::fp32,    Pipe::f32x2,   Pipe::fp64,    Pipe::half, Pipe::mufu,
                               Pipe::integer, Pipe::compare, Pipe::convert, Pipe::move, Pipe::constant_memory};

bool is_clock(const ptx::Operand& operand) {
  return operand.kind == ptx::Operand::Kind::special &&
         (operand.name.starts_with("%clock") || operand.name.starts_with("%globaltimer"));
}

}  // namespace

Effect effect_of(const ptx::Instruction& instruction) {
  const std::string_view opcode = instruction.opcode;
  if (std::any_of(instruction.operands.begin(), instruction.operands.end(), is_clock)) return Effect::some;
  for (const EffectRule& rule : kEffectRules)
    if (opcode.starts_with(rule.name) && (opcode.size() == rule.name.size() || opcode[rule.name.size()] == '.'))
      return rule.effect;
  const bool computes = std::find(std::begin(kComputing), std::end(kComputing), find_pipe(opcode)) != std::end(kComputing);
  return computes ? Effect::none : Effect::some;
}

bool looks_at_memory(std::string_view opcode) {
  const Pipe pipe = find_pipe(opcode);
  return pipe == Pipe::shared_memory || pipe == Pipe::global_memory || pipe == Pipe::atomic ||
         opcode.starts_with("mbarrier.");
}

}  // namespace opdeck::emu
