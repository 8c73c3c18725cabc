// SPDX-License-Identifier: Apache-2.0
#include "pipes.h"

#include <cstddef>
#include <iterator>

namespace opdeck::emu {
namespace {

// The first row counts whose name is the opcode or is followed in it by a dot, and whose modifier, if there is one, is
// among the opcode's.
struct PipeRule {
  std::string_view name;
  std::string_view modifier;
  Pipe pipe;
};

constexpr PipeRule kPipeRules[] = {
    // Floating point by its type; what is left of these names is integer.
    {"add", "f32x2", Pipe::f32x2},
    {"sub", "f32x2", Pipe::f32x2},
    {"mul", "f32x2", Pipe::f32x2},
    {"fma", "f32x2", Pipe::f32x2},
    {"add", "f32", Pipe::fp32},
    {"sub", "f32", Pipe::fp32},
    {"mul", "f32", Pipe::fp32},
    {"fma", "f32", Pipe::fp32},
    {"mad", "f32", Pipe::fp32},
    {"abs", "f32", Pipe::fp32},
    {"neg", "f32", Pipe::fp32},
    {"add", "f64", Pipe::fp64},
    {"sub", "f64", Pipe::fp64},
    {"mul", "f64", Pipe::fp64},
    {"fma", "f64", Pipe::fp64},
    {"mad", "f64", Pipe::fp64},
    {"abs", "f64", Pipe::fp64},
    {"neg", "f64", Pipe::fp64},
    {"copysign", "f64", Pipe::fp64},
    {"copysign", "", Pipe::fp32},
    {"min", "f64", Pipe::fp64},
    {"max", "f64", Pipe::fp64},
    {"div", "f64", Pipe::fp64},
    {"rcp", "f64", Pipe::fp64},
    {"sqrt", "f64", Pipe::fp64},
    {"rsqrt", "f64", Pipe::fp64},
    {"fma", "", Pipe::half},
    {"add", "f16", Pipe::half},
    {"sub", "f16", Pipe::half},
    {"mul", "f16", Pipe::half},
    {"abs", "f16", Pipe::half},
    {"neg", "f16", Pipe::half},
    {"min", "f16", Pipe::half},
    {"max", "f16", Pipe::half},
    {"add", "f16x2", Pipe::half},
    {"sub", "f16x2", Pipe::half},
    {"mul", "f16x2", Pipe::half},
    {"abs", "f16x2", Pipe::half},
    {"neg", "f16x2", Pipe::half},
    {"min", "f16x2", Pipe::half},
    {"max", "f16x2", Pipe::half},
    {"add", "bf16", Pipe::half},
    {"sub", "bf16", Pipe::half},
    {"mul", "bf16", Pipe::half},
    {"abs", "bf16", Pipe::half},
    {"neg", "bf16", Pipe::half},
    {"min", "bf16", Pipe::half},
    {"max", "bf16", Pipe::half},
    {"add", "bf16x2", Pipe::half},
    {"sub", "bf16x2", Pipe::half},
    {"mul", "bf16x2", Pipe::half},
    {"abs", "bf16x2", Pipe::half},
    {"neg", "bf16x2", Pipe::half},
    {"min", "bf16x2", Pipe::half},
    {"max", "bf16x2", Pipe::half},
    {"ex2", "", Pipe::mufu},
    {"lg2", "", Pipe::mufu},
    {"rcp", "", Pipe::mufu},
    {"rsqrt", "", Pipe::mufu},
    {"sqrt", "", Pipe::mufu},
    {"sin", "", Pipe::mufu},
    {"cos", "", Pipe::mufu},
    {"tanh", "", Pipe::mufu},
    {"div", "f32", Pipe::mufu},

    {"min", "", Pipe::compare},
    {"max", "", Pipe::compare},
    {"setp", "", Pipe::compare},
    {"set", "", Pipe::compare},
    {"selp", "", Pipe::compare},
    {"slct", "", Pipe::compare},
    {"and", "pred", Pipe::compare},
    {"or", "pred", Pipe::compare},
    {"xor", "pred", Pipe::compare},
    {"not", "pred", Pipe::compare},

    {"add", "", Pipe::integer},
    {"addc", "", Pipe::integer},
    {"sub", "", Pipe::integer},
    {"subc", "", Pipe::integer},
    {"mul", "", Pipe::integer},
    {"mul24", "", Pipe::integer},
    {"mad", "", Pipe::integer},
    {"madc", "", Pipe::integer},
    {"mad24", "", Pipe::integer},
    {"div", "", Pipe::integer},
    {"rem", "", Pipe::integer},
    {"sad", "", Pipe::integer},
    {"abs", "", Pipe::integer},
    {"neg", "", Pipe::integer},
    {"and", "", Pipe::integer},
    {"or", "", Pipe::integer},
    {"xor", "", Pipe::integer},
    {"not", "", Pipe::integer},
    {"cnot", "", Pipe::integer},
    {"lop3", "", Pipe::integer},
    {"shl", "", Pipe::integer},
    {"shr", "", Pipe::integer},
    {"shf", "", Pipe::integer},
    {"bfe", "", Pipe::integer},
    {"bfi", "", Pipe::integer},
    {"bfind", "", Pipe::integer},
    {"bmsk", "", Pipe::integer},
    {"brev", "", Pipe::integer},
    {"clz", "", Pipe::integer},
    {"popc", "", Pipe::integer},
    {"fns", "", Pipe::integer},
    {"prmt", "", Pipe::integer},
    {"szext", "", Pipe::integer},
    {"dp2a", "", Pipe::integer},
    {"dp4a", "", Pipe::integer},
    {"cvt", "", Pipe::convert},

    {"mov", "", Pipe::move},
    {"cvta", "", Pipe::move},
    {"mapa", "", Pipe::move},
    {"getctarank", "", Pipe::move},
    {"isspacep", "", Pipe::move},
    {"createpolicy", "", Pipe::move},

    {"ld", "shared", Pipe::shared_memory},
    {"ld", "shared::cta", Pipe::shared_memory},
    {"ld", "shared::cluster", Pipe::shared_memory},
    {"st", "shared", Pipe::shared_memory},
    {"st", "shared::cta", Pipe::shared_memory},
    {"st", "shared::cluster", Pipe::shared_memory},
    {"st.async", "", Pipe::shared_memory},
    {"ldmatrix", "", Pipe::shared_memory},
    {"stmatrix", "", Pipe::shared_memory},
    {"ld", "param", Pipe::constant_memory},
    {"ld", "param::entry", Pipe::constant_memory},
    {"ld", "const", Pipe::constant_memory},
    {"ld", "", Pipe::global_memory},
    {"ldu", "", Pipe::global_memory},
    {"st", "", Pipe::global_memory},
    {"st.bulk", "", Pipe::shared_memory},
    {"prefetch", "", Pipe::global_memory},
    {"applypriority", "", Pipe::global_memory},
    {"prefetchu", "", Pipe::global_memory},
    {"atom", "", Pipe::atomic},
    {"red", "", Pipe::atomic},
    {"red.async", "", Pipe::atomic},
    {"multimem", "", Pipe::global_memory},

    {"tcgen05.ld", "", Pipe::tmem},
    {"tcgen05.st", "", Pipe::tmem},
    {"tcgen05.mma", "", Pipe::mma},
    {"tcgen05.cp", "", Pipe::mma},
    {"tcgen05.shift", "", Pipe::mma},
    {"tcgen05", "", Pipe::sync},
    {"wgmma.mma_async", "", Pipe::mma},
    {"wgmma", "", Pipe::sync},
    {"mma", "", Pipe::mma},

    {"cp.async.bulk.commit_group", "", Pipe::sync},
    {"cp.async.bulk.wait_group", "", Pipe::sync},
    {"cp.async.bulk", "", Pipe::tma},
    {"cp.reduce.async.bulk", "", Pipe::tma},
    {"cp.async.commit_group", "", Pipe::sync},
    {"cp.async.wait_group", "", Pipe::sync},
    {"cp.async.wait_all", "", Pipe::sync},
    {"cp.async.mbarrier", "", Pipe::sync},
    {"cp.async", "", Pipe::global_memory},
    {"clusterlaunchcontrol.try_cancel", "", Pipe::sync},
    {"clusterlaunchcontrol.query_cancel", "", Pipe::integer},
    {"tensormap", "", Pipe::tma},

    {"shfl", "", Pipe::shuffle},
    {"vote", "", Pipe::shuffle},
    {"match", "", Pipe::shuffle},
    {"redux", "", Pipe::shuffle},
    {"elect", "", Pipe::shuffle},
    {"activemask", "", Pipe::shuffle},
    {"movmatrix", "", Pipe::shuffle},

    {"bra", "", Pipe::control},
    {"brx", "", Pipe::control},
    {"ret", "", Pipe::control},
    {"exit", "", Pipe::control},
    {"trap", "", Pipe::control},
    {"brkpt", "", Pipe::control},
    {"pmevent", "", Pipe::control},
    {"nanosleep", "", Pipe::control},
    {"setmaxnreg", "", Pipe::control},

    {"bar", "", Pipe::sync},
    {"barrier", "", Pipe::sync},
    {"mbarrier", "", Pipe::sync},
    {"fence", "", Pipe::sync},
    {"membar", "", Pipe::sync},
    {"griddepcontrol", "", Pipe::sync},
};

constexpr const char* kNames[] = {"fp32",          "f32x2",           "fp64",   "half", "mufu",
                                  "integer",       "compare",         "convert", "move", "shared_memory",
                                  "global_memory", "constant_memory", "atomic", "tmem", "mma",
                                  "tma",           "shuffle",         "control", "sync"};
static_assert(std::size(kNames) == static_cast<size_t>(Pipe::count));

bool has_modifier(std::string_view opcode, std::string_view modifier) {
  while (true) {
    const size_t dot = opcode.find('.');
    if (opcode.substr(0, dot) == modifier) return true;
    if (dot == std::string_view::npos) return false;
    opcode = opcode.substr(dot + 1);
  }
}

}  // namespace

const char* pipe_name(Pipe pipe) { return kNames[static_cast<size_t>(pipe)]; }

Pipe find_pipe(std::string_view opcode) {
  for (const PipeRule& rule : kPipeRules) {
    if (opcode.substr(0, rule.name.size()) != rule.name) continue;
    if (opcode.size() > rule.name.size() && opcode[rule.name.size()] != '.') continue;
    if (rule.modifier.empty() || has_modifier(opcode, rule.modifier)) return rule.pipe;
  }
  return Pipe::count;
}

}  // namespace opdeck::emu
