/* SPDX-License-Identifier: Apache-2.0
 *
 * device.c: from a device string, "cuda:N" | "emulator:ARCH" | "offline:ARCH", to a device of a driver.
 */
#include "driver.h"

#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  ATTR_NUM_SMS = 16,
  ATTR_CC_MAJOR = 75,
  ATTR_CC_MINOR = 76
}; /* CUdevice_attribute */

/* The arch-specific targets that kernels are built for. */
static const struct {
  const char *name;
  int32_t number;
} arches[] = {{"sm_90a", 90}, {"sm_100a", 100}, {"sm_103a", 103}};

enum {
  NUM_ARCHES = sizeof arches / sizeof arches[0]
};

static void set_arch(od_device *device, int32_t number) {
  device->arch_number = number;
  snprintf(device->arch, sizeof device->arch, "sm_%d", number);
  for (int arch_idx = 0; arch_idx < NUM_ARCHES; ++arch_idx)
    if (arches[arch_idx].number == number) snprintf(device->arch, sizeof device->arch, "%s", arches[arch_idx].name);
}

static opdeck_status read_arch_number(const char *name, const char *text, int32_t *number) {
  for (int arch_idx = 0; arch_idx < NUM_ARCHES; ++arch_idx) {
    if (strcmp(arches[arch_idx].name, text) != 0) continue;
    *number = arches[arch_idx].number;
    return OPDECK_OK;
  }
  return od_fail(OPDECK_INVALID_ARGUMENT, "desc.device: got \"%s\", want sm_90a|sm_100a|sm_103a behind the colon",
                 name);
}

static opdeck_status query_device(od_device *device) {
  const opdeck_driver_api *api = &device->driver->api;
  int major = 0;
  int minor = 0;
  opdeck_cu_result result = api->device_get_attribute(&major, ATTR_CC_MAJOR, device->ordinal);
  if (result == 0) result = api->device_get_attribute(&minor, ATTR_CC_MINOR, device->ordinal);
  if (result == 0) result = api->device_get_attribute(&device->num_sms, ATTR_NUM_SMS, device->ordinal);
  if (result != 0) return od_driver_fail(device->driver, "cuDeviceGetAttribute", result);
  set_arch(device, major * 10 + minor);
  return OPDECK_OK;
}

static opdeck_status get_device(od_device *device, int ordinal) {
  opdeck_cu_result result = device->driver->api.device_get(&device->ordinal, ordinal);
  if (result != 0) return od_driver_fail(device->driver, "cuDeviceGet", result);
  return query_device(device);
}

/* The primary context is retained and never released: it lives as long as the process, as the CUDA runtime's does. */
static opdeck_status retain_primary_ctx(od_device *device) {
  const opdeck_cu_result result = device->driver->api.device_primary_ctx_retain(&device->primary_ctx, device->ordinal);
  return result == 0 ? OPDECK_OK : od_driver_fail(device->driver, "cuDevicePrimaryCtxRetain", result);
}

static opdeck_status count_devices(const od_device *device, int *num_devices) {
  const opdeck_cu_result result = device->driver->api.device_get_count(num_devices);
  return result == 0 ? OPDECK_OK : od_driver_fail(device->driver, "cuDeviceGetCount", result);
}

static opdeck_status open_cuda(const char *name, const char *text, od_device *device) {
  char *end = NULL;
  errno = 0;
  const long ordinal = strtol(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || ordinal > INT_MAX)
    return od_fail(OPDECK_INVALID_ARGUMENT, "desc.device: got \"%s\", want a device number behind \"cuda:\"", name);
  opdeck_status status = od_driver_open(OD_DRIVER_CUDA, "libcuda.so.1", &device->driver);
  int num_devices = 0;
  if (status == OPDECK_OK) status = count_devices(device, &num_devices);
  if (status != OPDECK_OK) return status;
  if (ordinal >= num_devices || ordinal >= OD_MAX_DEVICES)
    return od_fail(OPDECK_NO_DEVICE, "desc.device: got \"%s\", but there are %d devices", name, num_devices);
  status = get_device(device, (int)ordinal);
  return status == OPDECK_OK ? retain_primary_ctx(device) : status;
}

static void find_emulator(const opdeck_ctx_desc *desc, char path[PATH_MAX]) {
  const char *given = desc->emulator_lib != NULL ? desc->emulator_lib : getenv("OPDECK_EMULATOR_LIB");
  if (given != NULL && given[0] != '\0') {
    snprintf(path, PATH_MAX, "%s", given);
    return;
  }
  char folder[PATH_MAX];
  od_library_folder(folder);
  if (snprintf(path, PATH_MAX, "%s/libopdeck_emu.so", folder) >= PATH_MAX) path[0] = '\0';
}

static opdeck_status open_emulator(const opdeck_ctx_desc *desc, const char *name, const char *arch, od_device *device) {
  int32_t wanted = 0;
  opdeck_status status = read_arch_number(name, arch, &wanted);
  char path[PATH_MAX];
  find_emulator(desc, path);
  if (status == OPDECK_OK) status = od_driver_open(OD_DRIVER_EMULATOR, path, &device->driver);
  int num_devices = 0;
  if (status == OPDECK_OK) status = count_devices(device, &num_devices);
  for (int ordinal = 0; status == OPDECK_OK && ordinal < num_devices; ++ordinal) {
    status = get_device(device, ordinal);
    if (status == OPDECK_OK && device->arch_number == wanted) return retain_primary_ctx(device);
  }
  if (status != OPDECK_OK) return status;
  return od_fail(OPDECK_NO_DEVICE, "desc.device: got \"%s\", but the emulator %s has no such device", name, path);
}

static opdeck_status open_offline(const char *name, const char *arch, od_device *device) {
  int32_t number = 0;
  opdeck_status status = read_arch_number(name, arch, &number);
  if (status == OPDECK_OK) status = od_driver_open(OD_DRIVER_NONE, "no driver", &device->driver);
  if (status == OPDECK_OK) set_arch(device, number);
  return status;
}

opdeck_status od_device_open(const opdeck_ctx_desc *desc, od_device *device) {
  const char *name = desc->device != NULL ? desc->device : getenv("OPDECK_DEVICE");
  memset(device, 0, sizeof *device);
  if (name == NULL)
    return od_fail(OPDECK_INVALID_ARGUMENT,
                   "desc.device: got NULL and no OPDECK_DEVICE, "
                   "want \"cuda:N\" or \"emulator:sm_90a|sm_100a|sm_103a\"");
  if (strncmp(name, "cuda:", 5) == 0) return open_cuda(name, name + 5, device);
  if (strncmp(name, "emulator:", 9) == 0) return open_emulator(desc, name, name + 9, device);
  if (strncmp(name, "offline:", 8) == 0) return open_offline(name, name + 8, device);
  return od_fail(OPDECK_INVALID_ARGUMENT,
                 "desc.device: got \"%s\", want \"cuda:N\", \"emulator:ARCH\" or \"offline:ARCH\"", name);
}
