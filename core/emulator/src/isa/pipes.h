// SPDX-License-Identifier: Apache-2.0
// The pipe class of every opcode, as data: which unit of an SM an instruction mostly occupies. One table for the
// counters (src/counters) and for whoever lists the instruction set.
#pragma once

#include <cstdint>
#include <string_view>

namespace opdeck::emu {

enum class Pipe : uint8_t {
  fp32,             // add, mul, fma of one fp32
  f32x2,            // ... of a pair
  fp64,
  half,             // 16-bit floating point
  mufu,             // ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh
  integer,          // integer arithmetic, logic, shifts, permutes
  compare,          // comparisons, selections, minima and maxima
  convert,
  move,             // no unit: most of them vanish in SASS
  shared_memory,    // ld, st, ldmatrix, stmatrix
  global_memory,    // ld, st, cp.async; generic and local addresses too
  constant_memory,  // constants and kernel parameters
  atomic,
  tmem,             // tcgen05.ld, st
  mma,              // issue of MMAs, and of the copies that are in order with them
  tma,              // issue of bulk and tensor copies
  shuffle,          // lanes of a warp talk to each other
  control,
  sync,             // barriers, mbarriers, fences, waits, allocation
  count
};

const char* pipe_name(Pipe pipe);

// Pipe::count where no row of the table fits.
Pipe find_pipe(std::string_view opcode);

}  // namespace opdeck::emu
