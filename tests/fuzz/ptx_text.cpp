// SPDX-License-Identifier: Apache-2.0
// PTX text as a caller registers or loads it: parsed, and every kernel in it decoded. An EmulatorError is an answer;
// anything else is a failure.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "isa/decode.h"
#include "ptx/parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace opdeck::emu;
  try {
    const ptx::Module module = ptx::parse_module({reinterpret_cast<const char*>(data), num_bytes});
    for (const ptx::Kernel& kernel : module.kernels) decode_kernel(module, kernel);
  } catch (const EmulatorError&) {
  }
  return 0;
}
