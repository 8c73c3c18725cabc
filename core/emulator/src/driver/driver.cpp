// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's functions (the list is abi/src/driver_api.h). Called by libopdeck, by exported objects' shims and
// by anything else that takes libopdeck_emu.so for libcuda.so. Launches run to their end before they return.
#include <algorithm>
#include <cstring>

#include "../isa/decode.h"
#include "../machine/address_space.h"
#include "../ptx/parser.h"
#include "image.h"
#include "sha256.h"
#include "state.h"

namespace opdeck::emu {
namespace {

constexpr int kDriverVersion = 13040;
constexpr uint32_t kDefaultDynamicSharedBytes = 48 * 1024;
constexpr uint32_t kPortableClusterCtas = 8;
constexpr std::array<uint32_t, 3> kMaxGrid{0x7fffffff, 65535, 65535};

struct Context {
  int device;
};
Context contexts[kNumDevices] = {{0}, {1}, {2}};
thread_local Context* current_context = nullptr;

[[noreturn]] void invalid(const std::string& text) { throw EmulatorError(Fault::invalid_value, text); }

void check_device(int device) {
  if (device < 0 || device >= kNumDevices) invalid("device " + std::to_string(device) + " is not in 0 .. 2");
}

Library* load_library(const void* code) {
  if (code == nullptr) invalid("cuLibraryLoadData: code is NULL");
  const Image image = parse_image(code);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  auto library = std::make_unique<Library>();
  std::string sha256, text;
  if (!image.ptx.empty()) {
    text = std::string(image.ptx);
    sha256 = sha256_hex(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  } else {
    for (const std::string_view cubin : image.cubins) {
      const std::string hash = sha256_hex(reinterpret_cast<const uint8_t*>(cubin.data()), cubin.size());
      sha256 += (sha256.empty() ? "" : ", ") + hash;
      const auto it = s.ptx_by_sha256.find(hash);
      if (it == s.ptx_by_sha256.end()) continue;
      text = it->second;
      sha256 = hash;
      break;
    }
    if (text.empty())
      throw EmulatorError(Fault::no_binary,
                          "no PTX is registered for the cubin with SHA-256 " + sha256 + " (opdeck_emu_register_ptx)");
  }
  library->module = ptx::parse_module(text);
  for (const ptx::Kernel& kernel : library->module.kernels) {
    auto created = std::make_unique<Kernel>();
    created->name = kernel.name;
    created->cubin_sha256 = sha256;
    created->program = decode_kernel(library->module, kernel);
    library->kernels.push_back(std::move(created));
  }
  Library* const handle = library.get();
  s.libraries[handle] = std::move(library);
  return handle;
}

Kernel& find_kernel(void* handle) {
  for (const auto& [key, library] : state().libraries)
    for (const auto& kernel : library->kernels)
      if (kernel.get() == handle) return *kernel;
  invalid("the kernel handle is not one of a loaded library");
}

std::string extents(const std::array<uint32_t, 3>& e) {
  return std::to_string(e[0]) + "x" + std::to_string(e[1]) + "x" + std::to_string(e[2]);
}

// Cut where it is far beyond every limit, so that it does not wrap around.
uint64_t product(const std::array<uint32_t, 3>& e) {
  return std::min(uint64_t{e[0]} * e[1], uint64_t{UINT32_MAX}) * e[2];
}

[[noreturn]] void invalid_launch(const Kernel& kernel, const std::string& text) {
  throw EmulatorError(Fault::invalid_launch, "launch of " + kernel.name + ": " + text);
}

void read_attributes(const Kernel& kernel, const opdeck_cu_launch_config& config, LaunchShape& shape) {
  constexpr int kIgnore = 0, kCooperative = 2, kCluster = 4, kClusterPolicy = 5, kProgrammatic = 6, kPriority = 8,
                kPreferredCluster = 11;
  if (config.attrs == nullptr && config.num_attrs != 0) invalid_launch(kernel, "attrs is NULL");
  for (uint32_t i = 0; i < config.num_attrs; ++i) {
    const opdeck_cu_launch_attr& attribute = config.attrs[i];
    switch (attribute.id) {
      case kIgnore:
      case kCooperative:
      case kClusterPolicy:
      case kProgrammatic:  // launches are serial: nothing to overlap
      case kPriority:
      case kPreferredCluster: break;  // a wish for larger clusters, which a GPU may leave unmet
      case kCluster:
        shape.cluster = {attribute.value.cluster_dim.x, attribute.value.cluster_dim.y, attribute.value.cluster_dim.z};
        break;
      default: invalid_launch(kernel, "launch attribute " + std::to_string(attribute.id) + " is not supported");
    }
  }
}

LaunchShape read_shape(const Kernel& kernel, const opdeck_cu_launch_config& config) {
  LaunchShape shape;
  shape.grid = {config.grid_x, config.grid_y, config.grid_z};
  shape.block = {config.block_x, config.block_y, config.block_z};
  shape.dynamic_shared_bytes = config.smem_bytes;
  const Program& program = kernel.program;
  if (program.required_cluster[0] != 0) shape.cluster = program.required_cluster;
  read_attributes(kernel, config, shape);
  for (size_t i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.grid[i] > kMaxGrid[i]) invalid_launch(kernel, "grid " + extents(shape.grid));
    if (shape.cluster[i] == 0 || shape.grid[i] % shape.cluster[i] != 0)
      invalid_launch(kernel, "grid " + extents(shape.grid) + " is not a multiple of cluster " + extents(shape.cluster));
  }
  if (program.required_cluster[0] != 0 && shape.cluster != program.required_cluster)
    invalid_launch(
        kernel, "cluster " + extents(shape.cluster) + ", .reqnctapercluster is " + extents(program.required_cluster));
  const uint32_t cluster_limit = kernel.non_portable_cluster ? LaunchShape::kMaxClusterCtas : kPortableClusterCtas;
  if (product(shape.cluster) > cluster_limit)
    invalid_launch(kernel,
                   "cluster " + extents(shape.cluster) + " has more than " + std::to_string(cluster_limit) + " CTAs");
  const uint64_t num_threads = product(shape.block);
  if (num_threads == 0 || num_threads > LaunchShape::kMaxThreads || shape.block[2] > 64)
    invalid_launch(kernel, "block " + extents(shape.block));
  if (program.required_threads[0] != 0 && shape.block != program.required_threads)
    invalid_launch(kernel, "block " + extents(shape.block) + ", .reqntid is " + extents(program.required_threads));
  const auto& most = program.maximum_threads;
  if (most[0] != 0 && num_threads > uint64_t{most[0]} * most[1] * most[2])
    invalid_launch(kernel, "block " + extents(shape.block) + ", .maxntid is " + extents(most));
  return shape;
}

void check_shared_memory(const Kernel& kernel, int device, const LaunchShape& shape) {
  const uint32_t static_bytes = kernel.program.static_shared_end - kReservedSharedBytes;
  const auto limit =
      std::max<uint32_t>(static_cast<uint32_t>(kernel.max_dynamic_shared_bytes[static_cast<size_t>(device)]),
                         kDefaultDynamicSharedBytes - std::min(static_bytes, kDefaultDynamicSharedBytes));
  if (shape.dynamic_shared_bytes > limit)
    invalid_launch(kernel, std::to_string(shape.dynamic_shared_bytes) + " bytes of dynamic shared memory, " +
                               std::to_string(limit) + " are allowed (attribute 8, MAX_DYNAMIC_SHARED_SIZE_BYTES)");
  if (static_bytes + uint64_t{shape.dynamic_shared_bytes} > kMaxDynamicSharedBytes)
    invalid_launch(kernel, std::to_string(static_bytes + uint64_t{shape.dynamic_shared_bytes}) +
                               " bytes of shared memory, a block has " + std::to_string(kMaxDynamicSharedBytes));
}

void add_to_report(opdeck_emu_report& report, const Kernel& kernel, const LaunchCounters& counters) {
  ++report.num_launches;
  report.num_ctas += counters.num_ctas;
  report.warp_instructions += counters.warp_instructions;
  report.mma_macs += counters.mma_macs;
  report.tma_load_bytes += counters.tma_load_bytes;
  report.tma_store_bytes += counters.tma_store_bytes;
  report.hb_fingerprint += counters.hb_fingerprint;
  std::snprintf(report.cubin_sha256, sizeof report.cubin_sha256, "%s", kernel.cubin_sha256.c_str());
  std::snprintf(report.kernel_name, sizeof report.kernel_name, "%s", kernel.name.c_str());
}

void launch_kernel(const opdeck_cu_launch_config* config, void* handle, void** params) {
  if (config == nullptr) invalid("cuLaunchKernelEx: config is NULL");
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Kernel& kernel = find_kernel(handle);
  if (current_context == nullptr) invalid("cuLaunchKernelEx: no context is current");
  const int device = current_context->device;
  if (device_target(device) != kernel.program.target)
    throw EmulatorError(Fault::no_binary, "kernel " + kernel.name + " is for device " +
                                              std::to_string(target_device(kernel.program.target)) +
                                              " of the emulator, the current one is " + std::to_string(device));
  const LaunchShape shape = read_shape(kernel, *config);
  check_shared_memory(kernel, device, shape);
  const opdeck_emu_options& options = s.session.active ? s.session.options : s.default_options;
  std::unique_ptr<LaunchProfile> profile;
  if (options.profile != 0) profile = std::make_unique<LaunchProfile>(kernel.program);
  Grid grid(profile ? profile->program() : kernel.program, shape, s.memory, options);
  grid.profile = profile.get();
  grid.parameters.assign(kernel.program.parameter_bytes, 0);
  for (size_t i = 0; i < kernel.program.parameters.size(); ++i) {
    if (params == nullptr || params[i] == nullptr)
      invalid_launch(kernel, "parameter " + std::to_string(i) + " is NULL");
    const ParameterSlot& slot = kernel.program.parameters[i];
    std::memcpy(grid.parameters.data() + slot.offset_bytes, params[i], slot.size_bytes);
  }
  s.memory.set_variables(kernel.program.variables);
  const auto report = [&] {
    if (profile) profile->append_to(s.session.profile, s.session.report.num_launches);
    add_to_report(s.session.report, kernel, grid.counters);
  };
  try {
    grid.run();
  } catch (...) {
    report();
    throw;
  }
  report();
}

int kernel_attribute(const Kernel& kernel, int attribute, int device) {
  const Program& program = kernel.program;
  const auto& threads = program.required_threads[0] != 0 ? program.required_threads : program.maximum_threads;
  switch (attribute) {
    case 0: return threads[0] != 0 ? static_cast<int>(threads[0] * threads[1] * threads[2]) : 1024;
    case 1: return static_cast<int>(program.static_shared_end - kReservedSharedBytes);
    case 3: return static_cast<int>(program.local_bytes);
    case 5:
    case 6: return device == 0 ? 90 : device == 1 ? 100 : 103;
    case 8:
      return kernel.max_dynamic_shared_bytes[static_cast<size_t>(device)] != 0
                 ? kernel.max_dynamic_shared_bytes[static_cast<size_t>(device)]
                 : static_cast<int>(kDefaultDynamicSharedBytes);
    case 14: return kernel.non_portable_cluster ? 1 : 0;
    case 2:
    case 4:
    case 7:
    case 9:
    case 10:
    case 11:
    case 12:
    case 13:
    case 15: return 0;
    default: invalid("kernel attribute " + std::to_string(attribute));
  }
}

void set_kernel_attribute(Kernel& kernel, int attribute, int value, int device) {
  if (attribute == 8) {
    const int limit =
        static_cast<int>(kMaxDynamicSharedBytes - (kernel.program.static_shared_end - kReservedSharedBytes));
    if (value < 0 || value > limit)
      invalid("kernel " + kernel.name + ": dynamic shared memory of " + std::to_string(value) + " bytes, at most " +
              std::to_string(limit) + " are possible");
    kernel.max_dynamic_shared_bytes[static_cast<size_t>(device)] = value;
  } else if (attribute == 14) {
    kernel.non_portable_cluster = value != 0;
  } else if (attribute != 9) {  // 9: the preferred carve-out, a hint
    invalid("kernel attribute " + std::to_string(attribute) + " cannot be set");
  }
}

struct ErrorName {
  int code;
  const char *name, *text;
};
constexpr ErrorName kErrorNames[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"}};

const ErrorName& error_name(int code) {
  for (const ErrorName& entry : kErrorNames)
    if (entry.code == code) return entry;
  invalid("error code " + std::to_string(code));
}

}  // namespace

void replace_programs(const std::string& cubin_sha256, const std::string& ptx) {
  const ptx::Module module = ptx::parse_module(ptx);
  std::vector<std::pair<Kernel*, Program>> decoded;
  for (const auto& [key, library] : state().libraries) {
    for (const auto& kernel : library->kernels) {
      if (kernel->cubin_sha256 != cubin_sha256) continue;
      const auto is_it = [&](const ptx::Kernel& candidate) { return candidate.name == kernel->name; };
      const auto found = std::find_if(module.kernels.begin(), module.kernels.end(), is_it);
      if (found == module.kernels.end()) invalid("the new PTX has no kernel '" + kernel->name + "'");
      decoded.emplace_back(kernel.get(), decode_kernel(module, *found));
    }
  }
  for (auto& [kernel, program] : decoded) kernel->program = std::move(program);
}

// For dsl_runtime.cpp: makes the device of a kernel current where no context is.
void make_current_for(void* kernel) {
  const std::lock_guard lock(state().mutex);
  if (current_context == nullptr) current_context = &contexts[target_device(find_kernel(kernel).program.target)];
}
bool has_current_context() { return current_context != nullptr; }

}  // namespace opdeck::emu

using namespace opdeck::emu;

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT opdeck_cu_result cuInit(unsigned flags) {
  return guarded([&] {
    if (flags != 0) invalid("cuInit: flags must be 0");
  });
}

EXPORT opdeck_cu_result cuDriverGetVersion(int* version) {
  return guarded([&] { *version = kDriverVersion; });
}
EXPORT opdeck_cu_result cuDeviceGetCount(int* count) {
  return guarded([&] { *count = kNumDevices; });
}
EXPORT opdeck_cu_result cuDeviceGet(opdeck_cu_device* device, int ordinal) {
  return guarded([&] {
    check_device(ordinal);
    *device = ordinal;
  });
}
EXPORT opdeck_cu_result cuDeviceGetAttribute(int* value, int attr, opdeck_cu_device device) {
  return guarded([&] {
    check_device(device);
    if (!device_attribute(attr, device, *value)) invalid("device attribute " + std::to_string(attr));
  });
}

EXPORT opdeck_cu_result cuCtxGetCurrent(opdeck_cu_context* ctx) {
  return guarded([&] { *ctx = current_context; });
}
EXPORT opdeck_cu_result cuCtxSetCurrent(opdeck_cu_context ctx) {
  return guarded([&] {
    if (ctx != nullptr && (ctx < static_cast<void*>(contexts) || ctx >= static_cast<void*>(contexts + kNumDevices)))
      invalid("cuCtxSetCurrent: not a context of the emulator");
    current_context = static_cast<Context*>(ctx);
  });
}
EXPORT opdeck_cu_result cuCtxGetDevice(opdeck_cu_device* device) {
  return guarded([&] {
    if (current_context == nullptr) invalid("cuCtxGetDevice: no context is current");
    *device = current_context->device;
  });
}
EXPORT opdeck_cu_result cuDevicePrimaryCtxRetain(opdeck_cu_context* ctx, opdeck_cu_device device) {
  return guarded([&] {
    check_device(device);
    *ctx = &contexts[device];
  });
}

EXPORT opdeck_cu_result cuGetErrorName(opdeck_cu_result error, const char** text) {
  *text = nullptr;
  const std::string kept = last_error();  // asking about an error is no new one
  const int result = guarded([&] { *text = error_name(error).name; });
  last_error() = kept;
  return result;
}
EXPORT opdeck_cu_result cuGetErrorString(opdeck_cu_result error, const char** text) {
  *text = nullptr;
  const std::string kept = last_error();
  const int result = guarded([&] { *text = error_name(error).text; });
  last_error() = kept;
  return result;
}

EXPORT opdeck_cu_result cuLibraryLoadData(opdeck_cu_library* library, const void* code, int*, void**, unsigned, int*,
                                          void**, unsigned) {
  return guarded([&] { *library = load_library(code); });
}
EXPORT opdeck_cu_result cuLibraryUnload(opdeck_cu_library library) {
  return guarded([&] {
    const std::lock_guard lock(state().mutex);
    if (state().libraries.erase(static_cast<Library*>(library)) == 0) invalid("cuLibraryUnload: unknown library");
  });
}
EXPORT opdeck_cu_result cuLibraryGetKernel(opdeck_cu_kernel* kernel, opdeck_cu_library library, const char* name) {
  return guarded([&] {
    const std::lock_guard lock(state().mutex);
    const auto it = state().libraries.find(static_cast<Library*>(library));
    if (it == state().libraries.end()) invalid("cuLibraryGetKernel: unknown library");
    for (const auto& candidate : it->second->kernels) {
      if (candidate->name != name) continue;
      *kernel = candidate.get();
      return;
    }
    throw EmulatorError(Fault::not_found, std::string("the library has no kernel '") + name + "'");
  });
}
EXPORT opdeck_cu_result cuKernelGetAttribute(int* value, int attr, opdeck_cu_kernel kernel, opdeck_cu_device device) {
  return guarded([&] {
    check_device(device);
    const std::lock_guard lock(state().mutex);
    *value = kernel_attribute(find_kernel(kernel), attr, device);
  });
}
EXPORT opdeck_cu_result cuKernelSetAttribute(int attr, int value, opdeck_cu_kernel kernel, opdeck_cu_device device) {
  return guarded([&] {
    check_device(device);
    const std::lock_guard lock(state().mutex);
    set_kernel_attribute(find_kernel(kernel), attr, value, device);
  });
}

EXPORT opdeck_cu_result cuLaunchKernelEx(const opdeck_cu_launch_config* config, opdeck_cu_kernel kernel, void** params,
                                         void** extra) {
  return guarded([&] {
    if (extra != nullptr) invalid("cuLaunchKernelEx: extra is not supported");
    launch_kernel(config, kernel, params);
  });
}

EXPORT opdeck_cu_result cuMemAlloc_v2(opdeck_cu_deviceptr* ptr, size_t bytes) {
  return guarded([&] {
    const std::lock_guard lock(state().mutex);
    *ptr = state().memory.allocate(bytes, "device allocation of " + std::to_string(bytes) + " bytes");
    if (*ptr == 0) throw EmulatorError(Fault::out_of_memory, "cuMemAlloc of " + std::to_string(bytes) + " bytes");
  });
}
EXPORT opdeck_cu_result cuMemFree_v2(opdeck_cu_deviceptr ptr) {
  return guarded([&] {
    const std::lock_guard lock(state().mutex);
    if (ptr == 0) return;
    state().memory.check_red_zones();
    if (!state().memory.free(ptr)) invalid("cuMemFree: not the start of an allocation");
  });
}
EXPORT opdeck_cu_result cuMemcpyHtoDAsync_v2(opdeck_cu_deviceptr dst, const void* src, size_t bytes, opdeck_cu_stream) {
  return guarded([&] {
    const std::lock_guard lock(state().mutex);
    if (!state().memory.in_heap(dst, bytes)) invalid("cuMemcpyHtoD: the destination is outside device allocations");
    std::memcpy(reinterpret_cast<void*>(dst), src, bytes);
  });
}
EXPORT opdeck_cu_result cuMemcpyDtoHAsync_v2(void* dst, opdeck_cu_deviceptr src, size_t bytes, opdeck_cu_stream) {
  return guarded([&] {
    const std::lock_guard lock(state().mutex);
    if (!state().memory.in_heap(src, bytes)) invalid("cuMemcpyDtoH: the source is outside device allocations");
    std::memcpy(dst, reinterpret_cast<const void*>(src), bytes);
  });
}
EXPORT opdeck_cu_result cuStreamSynchronize(opdeck_cu_stream) {
  return guarded([] {});
}

}  // extern "C"
