// SPDX-License-Identifier: Apache-2.0
// The functions that CuTe DSL host code imports, on top of the driver functions, so that JIT-compiled kernels run here
// when libopdeck_emu.so stands first in CUTE_DSL_LIBS: the eight of every object, and the three that only tvm-ffi's
// calls use. Exported objects in packs do not use these: they have a hidden shim of their own. Where no context is
// current, a launch makes the device of its kernel's target current.
#include <mutex>

#include "state.h"

#define EXPORT __attribute__((visibility("default")))

namespace opdeck::emu {
void make_current_for(void* kernel);
bool has_current_context();
}  // namespace opdeck::emu

extern "C" {

#define OPDECK_DECLARE(member, symbol, params) opdeck_cu_result symbol params;
OPDECK_DRIVER_FUNCTIONS(OPDECK_DECLARE)
#undef OPDECK_DECLARE

EXPORT int _cudaLibraryLoadData(void** library, const void* code, int* jit_options, void** jit_values,
                                unsigned num_jit_options, int* library_options, void** library_values,
                                unsigned num_library_options) {
  return cuLibraryLoadData(library, code, jit_options, jit_values, num_jit_options, library_options, library_values,
                           num_library_options);
}
EXPORT int _cudaLibraryGetKernel(void** kernel, void* library, const char* name) {
  return cuLibraryGetKernel(kernel, library, name);
}
EXPORT int _cudaGetDevice(int* device) {
  if (opdeck::emu::has_current_context()) return cuCtxGetDevice(device);
  *device = 0;
  return 0;
}
// The DSL sees one device, number 0; a kernel's target decides where it runs.
EXPORT int _cudaSetDevice(int) { return 0; }
EXPORT int _cudaDeviceGetAttribute(int* value, int attr, int device) {
  return cuDeviceGetAttribute(value, attr, device);
}
EXPORT int _cuKernelGetAttribute(int* value, int attr, void* kernel, int device) {
  return cuKernelGetAttribute(value, attr, kernel, device);
}
EXPORT int _cudaFuncSetAttribute(void* kernel, int attr, int value) {
  for (int device = 0; device < opdeck::emu::kNumDevices; ++device)
    if (const int result = cuKernelSetAttribute(attr, value, kernel, device)) return result;
  return 0;
}
// The DSL names one device; its kernel runs on the one of its target, so the attribute is set for all.
EXPORT int _cudaKernelSetAttributeForDevice(void* kernel, int attr, int value, int) {
  return _cudaFuncSetAttribute(kernel, attr, value);
}
EXPORT int _cudaLaunchKernelEx(const opdeck_cu_launch_config* config, void* kernel, void** params) {
  const int result = opdeck::emu::guarded([&] { opdeck::emu::make_current_for(kernel); });
  return result != 0 ? result : cuLaunchKernelEx(config, kernel, params, nullptr);
}

// Loads the library of a function at its first call. `library` is a zero until then; the DSL's own functions load it,
// and set up its kernels on a device. 0, or -1 with an error told.
EXPORT int cuda_dialect_init_library_once(void** library, int (*load)(void** library),
                                          int (*set_up)(void** library, int device),
                                          void (*tell_error)(const char* kind, const char* text)) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (*library != nullptr) return 0;
  void* loaded = nullptr;
  int result = load(&loaded);
  if (result == 0 && set_up != nullptr) result = set_up(&loaded, 0);
  if (result == 0) {
    *library = loaded;
    return 0;
  }
  tell_error("RuntimeError", opdeck_emu_last_error());
  return -1;
}
// Called when the process ends, and with it the emulator: nothing is left to unload.
EXPORT void cuda_dialect_unload_library_once(void**) {}

}  // extern "C"
