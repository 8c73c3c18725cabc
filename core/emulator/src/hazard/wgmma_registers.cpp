// SPDX-License-Identifier: Apache-2.0
#include "wgmma_registers.h"

#include <algorithm>
#include <string_view>

#include "detector.h"

namespace opdeck::emu {
namespace {

constexpr std::string_view kMma = "wgmma.mma_async.sync.aligned.";
constexpr uint32_t kFragmentBits = 32;  // descriptors have 64, predicates 1

bool is_mma(const ptx::Instruction& instruction) { return instruction.opcode.rfind(kMma, 0) == 0; }

std::string shape_of(const ptx::Instruction& mma) {
  const size_t end = mma.opcode.find('.', kMma.size());
  return mma.opcode.substr(kMma.size(), end - kMma.size());
}

const WgmmaRegisterUser& user_at(const Program& program, uint32_t op_idx) {
  return program.wgmma_register_users[program.wgmma_register_user_of[op_idx]];
}

Flow guard_and_execute(Warp& warp, const Op& op) {
  const WgmmaRegisterUser& user = user_at(warp.launch.program, warp.pc);
  if (ClusterHazards* hazards = hazards_of(warp)) hazards->use_wgmma_registers(warp, user);
  return user.execute(warp, op);
}

// The places of the registers of all wgmmas in Program::wgmma_registers, by register.
std::vector<uint32_t> place_registers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses) {
  std::vector<uint32_t> places(kernel.registers.size(), Program::kNoWgmmaRegister);
  const auto place = [&](uint32_t reg) {
    if (kernel.registers[reg].bits != kFragmentBits || places[reg] != Program::kNoWgmmaRegister) return;
    places[reg] = static_cast<uint32_t>(program.wgmma_registers.size());
    program.wgmma_registers.push_back(kernel.registers[reg].name);
  };
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    if (!is_mma(kernel.instructions[i])) continue;
    std::for_each(uses[i].reads.begin(), uses[i].reads.end(), place);
    std::for_each(uses[i].writes.begin(), uses[i].writes.end(), place);
  }
  return places;
}

}  // namespace

void mark_wgmma_registers(Program& program, const ptx::Kernel& kernel, const std::vector<RegisterUses>& uses) {
  if (std::none_of(kernel.instructions.begin(), kernel.instructions.end(), is_mma)) return;
  const std::vector<uint32_t> places = place_registers(program, kernel, uses);
  const auto placed = [&](const std::vector<uint32_t>& registers) {
    std::vector<uint32_t> result;
    for (const uint32_t reg : registers)
      if (places[reg] != Program::kNoWgmmaRegister) result.push_back(places[reg]);
    return result;
  };
  program.wgmma_register_user_of.assign(program.ops.size(), 0);
  for (uint32_t i = 0; i < kernel.instructions.size(); ++i) {
    WgmmaRegisterUser user{program.ops[i].execute, placed(uses[i].reads), placed(uses[i].writes), {},
                           kernel.instructions[i].opcode.rfind("mov.", 0) == 0};
    if (is_mma(kernel.instructions[i])) {
      user.shape = shape_of(kernel.instructions[i]);
    } else {
      if (user.read.empty() && user.written.empty()) continue;
      program.ops[i].execute = &guard_and_execute;
    }
    program.wgmma_register_user_of[i] = static_cast<uint32_t>(program.wgmma_register_users.size());
    program.wgmma_register_users.push_back(std::move(user));
  }
}

void ClusterHazards::fail_wgmma_register(const std::string& kind, uint32_t place, const std::string& text) const {
  fail(kind, "register " + launch_.program.wgmma_registers[place] + " " + text);
}

// What an instruction other than wgmma does. The letter of the ISA forbids it to read A as well.
void ClusterHazards::use_wgmma_registers(Warp& warp, const WgmmaRegisterUser& user) {
  WarpState& s = state(warp);
  const auto use = [&](uint32_t place, bool writes) {
    WgmmaRegister& r = s.wgmma_registers[place];
    const bool harms = writes || r.is_accumulator || level_ == HazardLevel::strict;
    if (harms && r.in_flight > s.retired_wgmma)
      fail_wgmma_register("wgmma-register-in-flight", place,
                          std::string("is ") + (writes ? "written" : "read") + " while " +
                              describe(Epoch(s.wgmma.agent, r.in_flight), r.site) + " may still " +
                              (r.is_accumulator ? "write" : "read") + " it (no wgmma.wait_group has retired its group)");
    if (!user.only_moves || level_ == HazardLevel::strict) r.used_before_fence = s.next_wgmma_fence;
  };
  for (const uint32_t place : user.read) use(place, false);
  for (const uint32_t place : user.written) use(place, true);
}

void ClusterHazards::fence_wgmma(Warp& warp) { ++state(warp).next_wgmma_fence; }

// Before a warp takes part in a wgmma.mma_async.
void ClusterHazards::check_wgmma_registers(Warp& warp) {
  const WarpState& s = state(warp);
  const WgmmaRegisterUser& user = user_at(launch_.program, warp.pc);
  if (s.next_wgmma_fence == 1) fail("missing-wgmma-fence", "no wgmma.fence stands before the warp's first wgmma.mma_async");
  const auto check = [&](uint32_t place, bool is_accumulator) {
    const WgmmaRegister& r = s.wgmma_registers[place];
    if (r.used_before_fence == s.next_wgmma_fence)
      fail_wgmma_register("missing-wgmma-fence", place,
                          "was used by another instruction, and no wgmma.fence stands between that and this wgmma.mma_async");
    if (r.in_flight <= s.retired_wgmma || (!r.is_accumulator && !is_accumulator)) return;
    if (r.is_accumulator && is_accumulator && user_at(launch_.program, r.site.op_idx()).shape == user.shape) return;
    fail_wgmma_register("wgmma-register-in-flight", place,
                        std::string("is ") + (is_accumulator ? "an accumulator" : "a part of A") + " of this wgmma while " +
                            describe(Epoch(s.wgmma.agent, r.in_flight), r.site) + " may still use it otherwise");
  };
  for (const uint32_t place : user.read) check(place, false);
  for (const uint32_t place : user.written) check(place, true);
}

// The wgmma of that time is issued: its registers are in flight.
void ClusterHazards::hold_wgmma_registers(Warp& warp, Epoch now) {
  WarpState& s = state(warp);
  const WgmmaRegisterUser& user = user_at(launch_.program, warp.pc);
  for (const uint32_t place : user.read) s.wgmma_registers[place] = {now.time(), 0, site(warp), false};
  for (const uint32_t place : user.written) s.wgmma_registers[place] = {now.time(), 0, site(warp), true};
}

}  // namespace opdeck::emu
