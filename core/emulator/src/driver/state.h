// SPDX-License-Identifier: Apache-2.0
// What the driver functions and the session functions share: one emulator a process, one lock.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../counters/profile.h"
#include "../machine/error.h"
#include "../machine/launch.h"
#include "../ptx/ast.h"
#include "driver_api.h"
#include "opdeck_emu.h"

namespace opdeck::emu {

inline constexpr int kNumDevices = 3;
// The devices in their order: sm_90a, sm_100a, sm_103a, the order of Target.
constexpr Target device_target(int device) { return static_cast<Target>(device); }
constexpr int target_device(Target target) { return static_cast<int>(target); }

struct Kernel {
  std::string name;
  std::string cubin_sha256;  // of the cubin, or of the PTX text when that was loaded
  Program program;
  std::array<int, kNumDevices> max_dynamic_shared_bytes{};  // attribute 8; 0: the default of 48 KiB
  bool non_portable_cluster = false;                        // attribute 14
};

struct Library {
  std::vector<std::unique_ptr<Kernel>> kernels;
  ptx::Module module;
};

struct Session {
  bool active = false;
  opdeck_emu_options options{};
  opdeck_emu_report report{};
  ProfileRows profile;
};

struct State {
  std::recursive_mutex mutex;
  std::unordered_map<std::string, std::string> ptx_by_sha256;
  std::unordered_map<Library*, std::unique_ptr<Library>> libraries;
  GlobalMemory memory;
  opdeck_emu_options default_options{};
  Session session;                  // of the thread that holds the lock
  opdeck_emu_report last_report{};  // of the session that ended last
  ProfileRows last_profile;
};

State& state();
std::string& last_error();  // of this thread

// Device attributes as cuDeviceGetAttribute numbers them. False when there is no such attribute.
bool device_attribute(int attribute, int device, int& value);

int to_cu_result(Fault fault);

// Decodes `ptx` into the kernels of every loaded library whose cubin has this hash. All or nothing.
void replace_programs(const std::string& cubin_sha256, const std::string& ptx);

// Runs `body`, which throws EmulatorError; the CUresult of what happened, with last_error set.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    last_error().clear();
    body();
    return 0;
  } catch (const EmulatorError& error) {
    last_error() = error.what();
    return to_cu_result(error.fault());
  } catch (const std::bad_alloc&) {
    last_error() = "the emulator is out of memory";
    return to_cu_result(Fault::out_of_memory);
  } catch (const std::exception& error) {
    last_error() = std::string("internal error of the emulator: ") + error.what();
    return to_cu_result(Fault::failed);
  }
}

}  // namespace opdeck::emu
