/* SPDX-License-Identifier: Apache-2.0
 *
 * shim.c: what every pack links besides its kernels: opdeck_pack_v1, and the eight CUDA runtime calls that the host
 * code exported by CuTe DSL imports, each mapped to the driver call of the same meaning.
 *
 * Called by the pack's exported objects; the driver's table comes from libopdeck (driver.c). All but opdeck_pack_v1 is
 * hidden: the DSL's own runtime library exports the same names in the same process.
 * Source: CUDA Runtime API and Driver API references; attribute numbers and cudaLaunchConfig_t equal CUDA 12's
 * CUfunction_attribute, CUdevice_attribute and CUlaunchConfig. Returns are CUresults, of which 0 is success in both.
 */
#include "pack.h"

#define EXPORTED __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

static const opdeck_driver_api *driver;

EXPORTED int opdeck_pack_v1(const opdeck_driver_api *driver_api, opdeck_pack_table *table) {
  if (driver_api->struct_size != sizeof *driver_api || table->struct_size != sizeof *table) return 1;
  driver = driver_api;
  *table = opdeck_pack_contents;
  return 0;
}

HIDDEN int _cudaLibraryLoadData(opdeck_cu_library *library, const void *code, int *jit_options, void **jit_values,
                                unsigned num_jit_options, int *library_options, void **library_values,
                                unsigned num_library_options);
HIDDEN int _cudaLibraryGetKernel(opdeck_cu_kernel *kernel, opdeck_cu_library library, const char *name);
HIDDEN int _cudaGetDevice(int *device);
HIDDEN int _cudaDeviceGetAttribute(int *value, int attr, int device);
HIDDEN int _cuKernelGetAttribute(int *value, int attr, opdeck_cu_kernel kernel, int device);
HIDDEN int _cudaFuncSetAttribute(opdeck_cu_kernel kernel, int attr, int value);
HIDDEN int _cudaKernelSetAttributeForDevice(opdeck_cu_kernel kernel, int attr, int value, int device);
HIDDEN int _cudaLaunchKernelEx(const opdeck_cu_launch_config *config, opdeck_cu_kernel kernel, void **args);

int _cudaLibraryLoadData(opdeck_cu_library *library, const void *code, int *jit_options, void **jit_values,
                         unsigned num_jit_options, int *library_options, void **library_values,
                         unsigned num_library_options) {
  return driver->library_load_data(library, code, jit_options, jit_values, num_jit_options, library_options,
                                   library_values, num_library_options);
}

int _cudaLibraryGetKernel(opdeck_cu_kernel *kernel, opdeck_cu_library library, const char *name) {
  return driver->library_get_kernel(kernel, library, name);
}

int _cudaGetDevice(int *device) { return driver->ctx_get_device(device); }

int _cudaDeviceGetAttribute(int *value, int attr, int device) {
  return driver->device_get_attribute(value, attr, device);
}

int _cuKernelGetAttribute(int *value, int attr, opdeck_cu_kernel kernel, int device) {
  return driver->kernel_get_attribute(value, attr, kernel, device);
}

int _cudaFuncSetAttribute(opdeck_cu_kernel kernel, int attr, int value) {
  opdeck_cu_device device;
  const opdeck_cu_result result = driver->ctx_get_device(&device);
  return result != 0 ? result : driver->kernel_set_attribute(attr, value, kernel, device);
}

int _cudaKernelSetAttributeForDevice(opdeck_cu_kernel kernel, int attr, int value, int device) {
  return driver->kernel_set_attribute(attr, value, kernel, device);
}

int _cudaLaunchKernelEx(const opdeck_cu_launch_config *config, opdeck_cu_kernel kernel, void **args) {
  return driver->launch_kernel_ex(config, kernel, args, NULL);
}
