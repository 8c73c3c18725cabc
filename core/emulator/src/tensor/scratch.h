// SPDX-License-Identifier: Apache-2.0
// Uninitialised scratch arrays of the matrix code. Called by mma_gemm.cpp, operand_panel.cpp, umma.cpp, wgmma.cpp.
#pragma once

#include <cstddef>
#include <memory>

namespace opdeck::emu {

template <class Element>
using Scratch = std::unique_ptr<Element[]>;

template <class Element>
Scratch<Element> make_scratch(size_t num_elems) {
  return std::make_unique_for_overwrite<Element[]>(num_elems);
}

}  // namespace opdeck::emu
