// SPDX-License-Identifier: Apache-2.0
// The one exception type of the emulator: every refusal (PTX, decode, execution) is thrown as this and caught at
// the C boundary (src/driver), where it becomes a CUresult and the text of opdeck_emu_last_error.
#pragma once

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace opdeck::emu {

enum class Fault : uint8_t {
  invalid_value,        // CUDA_ERROR_INVALID_VALUE
  invalid_ptx,          // CUDA_ERROR_INVALID_PTX
  unsupported,          // CUDA_ERROR_NOT_SUPPORTED: an instruction or modifier the emulator or the target lacks
  no_binary,            // CUDA_ERROR_NO_BINARY_FOR_GPU
  not_found,            // CUDA_ERROR_NOT_FOUND
  out_of_memory,        // CUDA_ERROR_OUT_OF_MEMORY
  invalid_launch,       // CUDA_ERROR_INVALID_VALUE for a launch configuration
  illegal_address,      // CUDA_ERROR_ILLEGAL_ADDRESS
  misaligned,           // CUDA_ERROR_MISALIGNED_ADDRESS
  illegal_instruction,  // CUDA_ERROR_ILLEGAL_INSTRUCTION: operands that the instruction forbids
  timeout,              // CUDA_ERROR_LAUNCH_TIMEOUT: deadlock or watchdog
  failed                // CUDA_ERROR_LAUNCH_FAILED
};

class EmulatorError : public std::runtime_error {
 public:
  EmulatorError(Fault fault, const std::string& text) : std::runtime_error(text), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

// As addresses and lane masks stand in messages.
inline std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace opdeck::emu
