// SPDX-License-Identifier: Apache-2.0
// Vectors for the inner loops of mma_gemm.cpp and aligned_gemm.cpp, which are templates over the number of lanes: 4 on
// any machine, 8 where an x86-64 has AVX2, 16 where it has AVX-512. (A 64 x 128 x 16 product on an EPYC core with all of
// them, November 2026: gemm_accumulate 6.2, 2.4 and 1.6 us, gemm_accumulate_aligned 35, 13 and 5.9.)
#pragma once

#include <cstdint>

namespace opdeck::emu {

// f32, s32, u32, f64 and s64 vectors; the ...At types may stand at any multiple of 4 bytes and alias other types' memory.
template <uint32_t lanes>
struct Vectors {
  typedef float Floats __attribute__((vector_size(lanes * 4)));
  typedef int32_t Ints __attribute__((vector_size(lanes * 4)));
  typedef uint32_t Unsigneds __attribute__((vector_size(lanes * 4)));
  typedef double Doubles __attribute__((vector_size(lanes * 8)));
  typedef int64_t Longs __attribute__((vector_size(lanes * 8)));
  typedef Floats FloatsAt __attribute__((aligned(4), may_alias));
  typedef Ints IntsAt __attribute__((aligned(4), may_alias));
};

#if defined(__x86_64__)
#define OPDECK_EMU_AVX2 __attribute__((target("avx2")))
#define OPDECK_EMU_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
// The unit tests build with fewer, for the code that other processors run.
#ifndef OPDECK_EMU_MAX_LANES
#define OPDECK_EMU_MAX_LANES 16
#endif
inline bool has_avx2() {
  static const bool yes = OPDECK_EMU_MAX_LANES >= 8 && __builtin_cpu_supports("avx2");
  return yes;
}
inline bool has_avx512() {
  static const bool yes = OPDECK_EMU_MAX_LANES >= 16 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return yes;
}
#endif

}  // namespace opdeck::emu
