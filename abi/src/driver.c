/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.c: opens drivers with dlopen and fills their tables; called by device.c.
 * Source: CUDA Driver API, cuGetProcAddress_v2 (symbols of CUDA 12.0, the first with every function of the table).
 */
#include "driver.h"

#include "object_check.h"
#include "text.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  CUDA_VERSION_WANTED = 12000,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_STUB_LIBRARY = 34
};

/* cuGetProcAddress_v2's parameters: symbol, address, CUDA version, flags, status. */
typedef opdeck_cu_result (*get_proc_address_fn)(const char *, void **, int, uint64_t, int *);

static pthread_mutex_t drivers_lock = PTHREAD_MUTEX_INITIALIZER;
static od_driver *drivers;

void od_library_folder(char folder[PATH_MAX]) {
  Dl_info info;
  snprintf(folder, PATH_MAX, ".");
  /* A function pointer becomes an object pointer through a union: ISO C has no cast for it. */
  const union {
    void (*function)(char *);
    void *address;
  } self = {od_library_folder};
  if (dladdr(self.address, &info) == 0 || info.dli_fname == NULL) return;
  const char *slash = strrchr(info.dli_fname, '/');
  if (slash != NULL) snprintf(folder, PATH_MAX, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
}

opdeck_status od_driver_fail(const od_driver *driver, const char *call, opdeck_cu_result result) {
  if (driver->kind == OD_DRIVER_EMULATOR) {
    const char *text = driver->emulator.last_error();
    if (text != NULL && text[0] != '\0') return od_fail(OPDECK_EMULATOR, "%s: %s", call, text);
  }
  const char *name = NULL;
  const char *text = NULL;
  driver->api.get_error_name(result, &name);
  driver->api.get_error_string(result, &text);
  return od_fail(OPDECK_DRIVER, "%s: %s (%d): %s", call, name == NULL ? "unknown error" : name, result,
                 text == NULL ? "no text" : text);
}

/* A name as cuGetProcAddress wants it: cuMemAlloc_v2 is "cuMemAlloc" of CUDA 12.0. */
static void *find_cuda_symbol(get_proc_address_fn get_proc_address, const char *symbol) {
  char base[64];
  snprintf(base, sizeof base, "%s", symbol);
  char *suffix = strstr(base, "_v2");
  if (suffix != NULL) *suffix = '\0';
  void *address = NULL;
  if (get_proc_address(base, &address, CUDA_VERSION_WANTED, 0, NULL) != 0) return NULL;
  return address;
}

static opdeck_status fill_table(od_driver *driver, void *library) {
  get_proc_address_fn get_proc_address = NULL;
  if (driver->kind == OD_DRIVER_CUDA) {
    *(void **)&get_proc_address = dlsym(library, "cuGetProcAddress_v2");
    if (get_proc_address == NULL)
      return od_fail(OPDECK_VERSION, "%s: got a CUDA driver without cuGetProcAddress_v2, want CUDA 12.0 or later",
                     driver->library);
  }
#define FILL(member, symbol, params)                                                                    \
  *(void **)&driver->api.member =                                                                       \
      get_proc_address != NULL ? find_cuda_symbol(get_proc_address, #symbol) : dlsym(library, #symbol); \
  if (driver->api.member == NULL)                                                                       \
    return od_fail(OPDECK_VERSION, "%s: the driver has no %s; want CUDA 12.0 or later", driver->library, #symbol);
  OPDECK_DRIVER_FUNCTIONS(FILL)
#undef FILL
  return OPDECK_OK;
}

static opdeck_status fill_emulator(od_driver *driver, void *library) {
  *(void **)&driver->emulator.version = dlsym(library, "opdeck_emu_version");
  *(void **)&driver->emulator.register_ptx = dlsym(library, "opdeck_emu_register_ptx");
  *(void **)&driver->emulator.begin = dlsym(library, "opdeck_emu_begin");
  *(void **)&driver->emulator.end = dlsym(library, "opdeck_emu_end");
  *(void **)&driver->emulator.last_error = dlsym(library, "opdeck_emu_last_error");
  const od_emulator_api *emulator = &driver->emulator;
  if (emulator->version == NULL || emulator->register_ptx == NULL || emulator->begin == NULL || emulator->end == NULL ||
      emulator->last_error == NULL)
    return od_fail(OPDECK_NO_DRIVER, "%s: not an opdeck emulator: it lacks functions of opdeck_emu.h", driver->library);
  if (emulator->version() != OPDECK_EMU_VERSION)
    return od_fail(OPDECK_VERSION, "%s: got an emulator of interface version %u, want %d", driver->library,
                   (unsigned)emulator->version(), OPDECK_EMU_VERSION);
  return OPDECK_OK;
}

static opdeck_status start(od_driver *driver) {
  const opdeck_cu_result result = driver->api.init(0);
  if (result == CUDA_ERROR_NO_DEVICE) return od_fail(OPDECK_NO_DEVICE, "%s: there is no GPU", driver->library);
  if (result == CUDA_ERROR_STUB_LIBRARY)
    return od_fail(OPDECK_NO_DRIVER, "%s is the toolkit's stub, not a driver", driver->library);
  if (result != 0) return od_driver_fail(driver, "cuInit", result);
  const opdeck_cu_result version_result = driver->api.driver_get_version(&driver->version);
  return version_result == 0 ? OPDECK_OK : od_driver_fail(driver, "cuDriverGetVersion", version_result);
}

static opdeck_status open_library(od_driver *driver) {
  if (driver->kind == OD_DRIVER_NONE) return OPDECK_OK;
  if (driver->kind == OD_DRIVER_EMULATOR && strchr(driver->library, '/') != NULL &&
      od_check_object(driver->library) != OPDECK_OK)
    return od_fail(OPDECK_NO_DRIVER, "cannot open the driver: %s", opdeck_last_error());
  void *library = dlopen(driver->library, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return od_fail(OPDECK_NO_DRIVER, "cannot open the driver: %s", dlerror());
  opdeck_status status = driver->kind == OD_DRIVER_EMULATOR ? fill_emulator(driver, library) : OPDECK_OK;
  if (status == OPDECK_OK) status = fill_table(driver, library);
  if (status == OPDECK_OK) status = start(driver);
  if (status != OPDECK_OK) dlclose(library);
  return status;
}

static opdeck_status open_new(od_driver_kind kind, const char *library, od_driver **driver) {
  od_driver *made = calloc(1, sizeof *made);
  if (made == NULL) return od_fail(OPDECK_INTERNAL, "out of memory");
  made->api.struct_size = sizeof made->api;
  made->kind = kind;
  snprintf(made->library, sizeof made->library, "%s", library);
  const opdeck_status status = open_library(made);
  if (status != OPDECK_OK) {
    free(made);
    return status;
  }
  made->next = drivers;
  drivers = made;
  *driver = made;
  return OPDECK_OK;
}

opdeck_status od_driver_open(od_driver_kind kind, const char *library, od_driver **driver) {
  char resolved[PATH_MAX];
  const char *name = strchr(library, '/') != NULL && realpath(library, resolved) != NULL ? resolved : library;
  pthread_mutex_lock(&drivers_lock);
  od_driver *found = drivers;
  while (found != NULL && (found->kind != kind || strcmp(found->library, name) != 0)) found = found->next;
  *driver = found;
  const opdeck_status status = found == NULL ? open_new(kind, name, driver) : OPDECK_OK;
  pthread_mutex_unlock(&drivers_lock);
  return status;
}
