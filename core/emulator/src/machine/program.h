// SPDX-License-Identifier: Apache-2.0
// A decoded kernel: compact operations whose operands are register-file rows, ready to run.
// Made by src/isa/decoder.cpp, run by scheduler.cpp.
//
// Every operand is a row of the warp's register file, one entry a lane: registers, immediates (broadcast once when
// the warp starts) and special registers (constant for a warp) look alike to an operation. Rows hold 32 entries of 1,
// 2, 4, 8 or 16 bytes; a predicate row is one 32-bit lane mask.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../tensor/outcome.h"

namespace opdeck::emu {

class Warp;
struct Op;

// What the warp does after an operation.
enum class Flow : uint8_t {
  next,     // goes on behind the operation
  jump,     // the operation has set the program counter
  blocked,  // the operation could not complete; it is executed again later
  exited    // the lanes of the current group ended
};
using Execute = Flow (*)(Warp&, const Op&);

struct Op {
  Execute execute = nullptr;
  uint32_t dst = 0, a = 0, b = 0, c = 0, d = 0;  // byte offsets of rows
  uint32_t guard = 0;                            // predicate row
  uint32_t guard_flip = 0;                       // all ones for `@!p`
  int64_t immediate = 0;
  const void* detail = nullptr;  // operands that do not fit, owned by Program::details
};

enum class SpecialRegister : uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  lanemask_eq,
  lanemask_lt,
  lanemask_le,
  lanemask_gt,
  lanemask_ge,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  cluster_ctarank,
  cluster_nctarank,
  is_explicit_cluster,
  smid,
  nsmid,
  gridid,
  dynamic_smem_size,
  total_smem_size,
  shared_address,
  count
};

// A row that is filled when a warp starts.
struct PresetRow {
  enum class Kind : uint8_t { constant, special };
  Kind kind = Kind::constant;
  SpecialRegister special = SpecialRegister::tid_x;
  uint32_t row = 0;
  uint32_t elem_bytes = 4;
  uint64_t value = 0;  // constant; offset for SpecialRegister::shared_address
};

struct ParameterSlot {
  uint32_t offset_bytes = 0, size_bytes = 0;
};

// What an instruction changes besides registers (isa/effects.h).
enum class Effect : uint8_t {
  none,
  may_wait,  // nothing, but it may have to wait for something
  some
};

// Where each instruction stands, for reports.
struct SourcePlace {
  uint32_t ptx_line = 0;
  std::string source;  // "FILE:LINE", "" where the PTX does not tell
  std::string text;    // opcode as written

  std::string line_text() const {
    return "PTX line " + std::to_string(ptx_line) + (source.empty() ? "" : " (" + source + ")");
  }
};

// An instruction that reads registers which tcgen05.ld writes (hazard/tmem_consumers.h).
struct TmemConsumer {
  Execute execute;
  std::vector<uint32_t> loads;  // op indices
};

// A byte of a register that an instruction writes, undefined where one of the sources is. Bytes here are places in
// Program::followed_bytes.
struct FollowedWrite {
  static constexpr uint32_t kDefined = UINT32_MAX;
  uint32_t byte;
  std::array<uint32_t, 2> sources;
};

// An instruction that names registers which are not proven to be written before they are used
// (hazard/unproven_registers.h).
struct RegisterFollower {
  Execute execute;
  uint32_t guard_row, guard_flip;
  std::vector<uint32_t> guards;  // the guard, where it is one of them
  std::vector<uint32_t> used;
  std::vector<uint32_t> accumulators;  // used where the instruction adds to them
  std::vector<FollowedWrite> written;
};

// An instruction that names registers of some wgmma (hazard/wgmma_registers.h). The lists are places in
// Program::wgmma_registers.
struct WgmmaRegisterUser {
  Execute execute;
  std::vector<uint32_t> read, written;
  std::string shape;  // of a wgmma
  bool only_moves = false;
};

struct Program {
  std::string name;
  Target target = Target::sm_100a;
  std::vector<Op> ops;
  std::vector<SourcePlace> places;  // one an op
  std::vector<Effect> effects;      // one an op
  std::vector<PresetRow> presets;
  std::vector<std::shared_ptr<const void>> details;
  uint32_t register_file_bytes = 0;
  std::vector<ParameterSlot> parameters;
  uint32_t parameter_bytes = 0;
  struct Variable {
    std::string name;
    uint64_t address, size_bytes;
  };
  std::vector<Variable> variables;  // .global and .const
  uint32_t static_shared_end = 0;   // shared offset behind the static variables (and the reserved bytes)
  uint32_t dynamic_shared_align = 16;
  uint32_t local_bytes = 0;  // a thread
  // The narrowest stores, at most 4 bytes: what hazard checks tell apart.
  uint32_t narrowest_shared_bytes = 4, narrowest_global_bytes = 4;
  std::vector<TmemConsumer> tmem_consumers;
  std::vector<uint32_t> tmem_consumer_of;  // by op, where there is one
  // There is an instruction through which clusters may communicate in a run: atomics, reductions and strong accesses of
  // global memory, fences for other clusters, clusterlaunchcontrol.
  bool clusters_communicate = false;
  std::vector<std::string> followed_bytes;  // the register of each
  std::vector<RegisterFollower> followers;
  static constexpr uint32_t kNoFollower = UINT32_MAX;
  std::vector<uint32_t> follower_of;  // by op; empty where no register is followed
  std::vector<std::string> wgmma_registers;
  static constexpr uint32_t kNoWgmmaRegister = UINT32_MAX;
  std::vector<WgmmaRegisterUser> wgmma_register_users;
  std::vector<uint32_t> wgmma_register_user_of;  // by op, where there is one; empty where no wgmma is
  uint32_t always_row = 0;            // a predicate that holds in all lanes
  std::array<uint32_t, 3> required_threads{}, maximum_threads{}, required_cluster{};
};

}  // namespace opdeck::emu
