// SPDX-License-Identifier: Apache-2.0
// What cuLibraryLoadData is given: PTX text, a cubin (ELF), or a fatbin around one. Called by driver.cpp.
// Source: the ELF-64 format; the fatbin container as the CUDA compilers write it.
// Limits: compressed fatbins are refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace opdeck::emu {

struct Image {
  std::string_view ptx;                  // the text itself, when the image is PTX
  std::vector<std::string_view> cubins;  // else: every cubin in it
};

// Throws EmulatorError for what is none of these, and for one that reaches past the bytes given.
Image parse_image(std::string_view bytes);

// `code` comes without a length: the formats say how long they are, and the readable memory around it bounds them. It
// may also be the wrapper that points to a fatbin.
Image parse_image(const void* code);

}  // namespace opdeck::emu
