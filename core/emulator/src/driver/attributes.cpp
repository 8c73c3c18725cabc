// SPDX-License-Identifier: Apache-2.0
// Device attributes and error codes. Source: CUDA driver API, CUdevice_attribute and CUresult.
#include "../machine/address_space.h"
#include "state.h"

namespace opdeck::emu {

bool device_attribute(int attribute, int device, int& value) {
  struct Attribute {
    int id;
    int values[kNumDevices];  // sm_90a, sm_100a, sm_103a
  };
  constexpr int kOptIn = static_cast<int>(kMaxDynamicSharedBytes);
  constexpr int kPerSm = kOptIn + static_cast<int>(kReservedSharedBytes);
  static constexpr Attribute kAttributes[] = {
      {1, {1024, 1024, 1024}},  // threads a block
      {2, {1024, 1024, 1024}},  // block x, y, z
      {3, {1024, 1024, 1024}},
      {4, {64, 64, 64}},
      {5, {2147483647, 2147483647, 2147483647}},  // grid x, y, z
      {6, {65535, 65535, 65535}},
      {7, {65535, 65535, 65535}},
      {8, {49152, 49152, 49152}},              // shared memory a block
      {9, {65536, 65536, 65536}},              // constant memory
      {10, {32, 32, 32}},                      // warp size
      {12, {65536, 65536, 65536}},             // registers a block
      {13, {1980000, 1965000, 1920000}},       // clock, kHz
      {16, {132, 148, 148}},                   // multiprocessors
      {38, {52428800, 132644864, 132644864}},  // L2 bytes
      {39, {2048, 2048, 2048}},                // threads a multiprocessor
      {41, {1, 1, 1}},                         // unified addressing
      {75, {9, 10, 10}},                       // compute capability
      {76, {0, 0, 3}},
      {81, {kPerSm, kPerSm, kPerSm}},  // shared memory a multiprocessor
      {82, {65536, 65536, 65536}},     // registers a multiprocessor
      {95, {1, 1, 1}},                 // cooperative launch
      {97, {kOptIn, kOptIn, kOptIn}},  // shared memory a block, opt-in
      {106, {32, 32, 32}},             // blocks a multiprocessor
      {111, {1024, 1024, 1024}},       // reserved shared memory a block
      {115, {1, 1, 1}},                // memory pools
      {120, {1, 1, 1}},                // clusters
      {127, {1, 1, 1}},                // tensor maps
  };
  constexpr int kNumAttributes = 160;
  if (attribute < 1 || attribute >= kNumAttributes) return false;
  value = 0;
  for (const Attribute& entry : kAttributes)
    if (entry.id == attribute) value = entry.values[device];
  return true;
}

int to_cu_result(Fault fault) {
  switch (fault) {
    case Fault::invalid_value:
    case Fault::invalid_launch: return 1;
    case Fault::out_of_memory: return 2;
    case Fault::no_binary: return 209;
    case Fault::invalid_ptx: return 218;
    case Fault::not_found: return 500;
    case Fault::illegal_address: return 700;
    case Fault::timeout: return 702;
    case Fault::illegal_instruction: return 715;
    case Fault::misaligned: return 716;
    case Fault::failed: return 719;
    case Fault::unsupported: return 801;
  }
  return 999;
}

}  // namespace opdeck::emu
