// SPDX-License-Identifier: Apache-2.0
// Vectors for the inner loops of mma_gemm.cpp and aligned_gemm.cpp, which are templates over the number of lanes: 4 on
// any machine, 8 where an x86-64 has AVX2. (A 128 x 128 x 16 product on an EPYC core, November 2026: gemm_accumulate
// 9 us with AVX2 and 44 us without, gemm_accumulate_aligned 52 and 231.)
#pragma once

#include <cstdint>

namespace opdeck::emu {

// f32, s32 and u32 vectors; the ...At types may stand at any multiple of 4 bytes and alias other types' memory.
template <uint32_t lanes>
struct Vectors {
  typedef float Floats __attribute__((vector_size(lanes * 4)));
  typedef int32_t Ints __attribute__((vector_size(lanes * 4)));
  typedef uint32_t Words __attribute__((vector_size(lanes * 4)));
  typedef Floats FloatsAt __attribute__((aligned(4), may_alias));
  typedef Ints IntsAt __attribute__((aligned(4), may_alias));
};

#if defined(__x86_64__)
#define OPDECK_EMU_AVX2 __attribute__((target("avx2")))
inline bool has_avx2() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}
#endif

}  // namespace opdeck::emu
