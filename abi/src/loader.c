/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.c: opens packs and loads their kernels. Called by context.c (od_pack_open, _close) and plan.c.
 *
 * The host code that CuTe DSL exports keeps its kernel handle in a static variable, so an open pack serves one driver:
 * a second driver gets a private copy of the file. A copy also serves a file that was replaced since a pack of that
 * path was opened, as dlopen would return the old one.
 */
#include "loader.h"

#include "object_check.h"
#include "pack_check.h"
#include "text.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t packs_lock = PTHREAD_MUTEX_INITIALIZER;
static od_pack *packs; /* of all drivers */

static int is_same_file(const od_pack *pack, const struct stat *file) {
  return pack->file_device == file->st_dev && pack->file_inode == file->st_ino &&
         pack->file_mtime.tv_sec == file->st_mtim.tv_sec && pack->file_mtime.tv_nsec == file->st_mtim.tv_nsec;
}

static od_pack *find_open(const od_driver *driver, const struct stat *file) {
  for (od_pack *pack = packs; pack != NULL; pack = pack->next)
    if (pack->driver == driver && is_same_file(pack, file)) return pack;
  return NULL;
}

/* Whether dlopen of this file would return an object that is open already. */
static int is_object_taken(const char *path, const struct stat *file) {
  for (const od_pack *pack = packs; pack != NULL; pack = pack->next)
    if (strcmp(pack->path, path) == 0 || (pack->file_device == file->st_dev && pack->file_inode == file->st_ino))
      return 1;
  return 0;
}

static opdeck_status copy_bytes(const char *path, int to_fd, off_t num_bytes) {
  const int from_fd = open(path, O_RDONLY | O_CLOEXEC);
  if (from_fd < 0) return od_fail(OPDECK_PACK, "%s: %s", path, strerror(errno));
  ssize_t num_sent = 1;
  off_t done = 0;
  while (done < num_bytes && num_sent > 0) num_sent = sendfile(to_fd, from_fd, &done, (size_t)(num_bytes - done));
  const int error = errno;
  close(from_fd);
  return num_sent > 0 ? OPDECK_OK : od_fail(OPDECK_PACK, "%s: cannot copy: %s", path, strerror(error));
}

/* Opens a copy in memory. Its file stays open: dlopen knows objects by name, and this one's holds the file's number. */
static opdeck_status open_private_copy(od_pack *pack, off_t num_bytes) {
  pack->private_fd = memfd_create("opdeck-pack", MFD_CLOEXEC);
  if (pack->private_fd < 0) return od_fail(OPDECK_PACK, "%s: memfd_create: %s", pack->path, strerror(errno));
  const opdeck_status status = copy_bytes(pack->path, pack->private_fd, num_bytes);
  if (status != OPDECK_OK) return status;
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", pack->private_fd);
  pack->object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  return pack->object != NULL ? OPDECK_OK : od_fail(OPDECK_PACK, "%s: %s", pack->path, dlerror());
}

static opdeck_status open_object(od_pack *pack, const struct stat *file) {
  if (is_object_taken(pack->path, file)) return open_private_copy(pack, file->st_size);
  pack->object = dlopen(pack->path, RTLD_NOW | RTLD_LOCAL);
  return pack->object != NULL ? OPDECK_OK : od_fail(OPDECK_PACK, "%s", dlerror());
}

static opdeck_status read_table(od_pack *pack) {
  opdeck_pack_v1_fn get_table = NULL;
  *(void **)&get_table = dlsym(pack->object, "opdeck_pack_v1");
  if (get_table == NULL) return od_fail(OPDECK_PACK, "%s: not a pack: it has no opdeck_pack_v1", pack->path);
  pack->table.struct_size = sizeof pack->table;
  if (get_table(&pack->driver->api, &pack->table) != 0)
    return od_fail(OPDECK_VERSION, "%s: the pack was built for other tables than those of this libopdeck %d.%d",
                   pack->path, OPDECK_VERSION_MAJOR, OPDECK_VERSION_MINOR);
  return od_pack_check(pack->path, &pack->table);
}

static opdeck_status fill_pack(od_pack *pack, const struct stat *file) {
  opdeck_status status = od_check_object(pack->path);
  if (status == OPDECK_OK) status = open_object(pack, file);
  if (status == OPDECK_OK) status = read_table(pack);
  if (status != OPDECK_OK) return status;
  pack->states = calloc((size_t)pack->table.num_variants, sizeof *pack->states);
  return pack->states != NULL ? OPDECK_OK : od_fail(OPDECK_INTERNAL, "out of memory");
}

static void free_pack(od_pack *pack) {
  for (int32_t variant_idx = 0; pack->states != NULL && variant_idx < pack->table.num_variants; ++variant_idx)
    if (pack->states[variant_idx].is_library_loaded)
      pack->driver->api.library_unload(pack->states[variant_idx].library);
  free(pack->states);
  if (pack->object != NULL) dlclose(pack->object);
  if (pack->private_fd >= 0) close(pack->private_fd);
  pthread_mutex_destroy(&pack->lock);
  free(pack);
}

static opdeck_status open_new(od_driver *driver, const char *path, const struct stat *file, od_pack **pack) {
  od_pack *made = calloc(1, sizeof *made);
  if (made == NULL) return od_fail(OPDECK_INTERNAL, "out of memory");
  pthread_mutex_init(&made->lock, NULL);
  made->driver = driver;
  made->private_fd = -1;
  made->file_device = file->st_dev;
  made->file_inode = file->st_ino;
  made->file_mtime = file->st_mtim;
  made->num_users = 1;
  snprintf(made->path, sizeof made->path, "%s", path);
  const opdeck_status status = fill_pack(made, file);
  if (status != OPDECK_OK) {
    free_pack(made);
    return status;
  }
  made->next = packs;
  packs = made;
  *pack = made;
  return OPDECK_OK;
}

opdeck_status od_pack_open(od_driver *driver, const char *path, od_pack **pack) {
  char resolved[PATH_MAX];
  struct stat file;
  if (realpath(path, resolved) == NULL || stat(resolved, &file) != 0)
    return od_fail(OPDECK_PACK, "%s: %s", path, strerror(errno));
  if (!S_ISREG(file.st_mode)) return od_fail(OPDECK_PACK, "%s: not a file", path);
  pthread_mutex_lock(&packs_lock);
  opdeck_status status = OPDECK_OK;
  *pack = find_open(driver, &file);
  if (*pack != NULL)
    ++(*pack)->num_users;
  else
    status = open_new(driver, resolved, &file, pack);
  pthread_mutex_unlock(&packs_lock);
  return status;
}

void od_pack_close(od_pack *pack) {
  pthread_mutex_lock(&packs_lock);
  if (--pack->num_users == 0) {
    od_pack **link = &packs;
    while (*link != pack) link = &(*link)->next;
    *link = pack->next;
    free_pack(pack);
  }
  pthread_mutex_unlock(&packs_lock);
}

opdeck_status od_enter_device(const od_device *device, od_saved_ctx *saved) {
  const opdeck_driver_api *api = &device->driver->api;
  opdeck_cu_device current = -1;
  saved->is_changed = 0;
  /* Any context of the device will do: a library's kernel runs in each, and the caller's stream may be of its own. */
  if (api->ctx_get_device(&current) == 0 && current == device->ordinal) return OPDECK_OK;
  opdeck_cu_result result = api->ctx_get_current(&saved->ctx);
  if (result != 0) return od_driver_fail(device->driver, "cuCtxGetCurrent", result);
  result = api->ctx_set_current(device->primary_ctx);
  if (result != 0) return od_driver_fail(device->driver, "cuCtxSetCurrent", result);
  saved->is_changed = 1;
  return OPDECK_OK;
}

void od_leave_device(const od_device *device, const od_saved_ctx *saved) {
  if (saved->is_changed) device->driver->api.ctx_set_current(saved->ctx);
}

/* The exported loaders take an array of pointers to their arguments; the last one is the result. */
static opdeck_status load_library(od_pack *pack, int32_t variant_idx) {
  const opdeck_pack_variant *variant = &pack->table.variants[variant_idx];
  od_variant_state *state = &pack->states[variant_idx];
  const od_driver *driver = pack->driver;
  if (driver->kind == OD_DRIVER_EMULATOR &&
      driver->emulator.register_ptx(variant->cubin_sha256, variant->ptx, variant->ptx_bytes) != 0)
    return od_fail(OPDECK_EMULATOR, "%s: the emulator refuses its PTX: %s", variant->id, driver->emulator.last_error());
  opdeck_cu_library *library = &state->library;
  int32_t result = 0;
  variant->cuda_init((void *[]){&library, &result});
  if (result != 0) return od_driver_fail(driver, "cuLibraryLoadData", result);
  state->is_library_loaded = 1;
  return OPDECK_OK;
}

static opdeck_status load_to_device(od_pack *pack, int32_t variant_idx, const od_device *device) {
  const opdeck_pack_variant *variant = &pack->table.variants[variant_idx];
  opdeck_cu_library *library = &pack->states[variant_idx].library;
  int32_t ordinal = device->ordinal;
  int32_t result = 0;
  variant->cuda_load_to_device((void *[]){&library, &ordinal, &result});
  if (result != 0) return od_driver_fail(device->driver, "loading the kernel to the device", result);
  atomic_fetch_or_explicit(&pack->states[variant_idx].ready_devices, UINT64_C(1) << ordinal, memory_order_release);
  return OPDECK_OK;
}

static opdeck_status prepare_in_ctx(od_pack *pack, int32_t variant_idx, const od_device *device) {
  pthread_mutex_lock(&pack->lock);
  opdeck_status status = OPDECK_OK;
  if (!pack->states[variant_idx].is_library_loaded) status = load_library(pack, variant_idx);
  if (status == OPDECK_OK && !od_variant_is_ready(pack, variant_idx, device->ordinal))
    status = load_to_device(pack, variant_idx, device);
  pthread_mutex_unlock(&pack->lock);
  return status;
}

opdeck_status od_variant_prepare(od_pack *pack, int32_t variant_idx, const od_device *device) {
  if (device->driver->kind == OD_DRIVER_NONE)
    return od_fail(OPDECK_NO_DRIVER, "the context is offline (%s): it plans, but loads and launches nothing",
                   device->arch);
  if (od_variant_is_ready(pack, variant_idx, device->ordinal)) return OPDECK_OK;
  od_saved_ctx saved;
  opdeck_status status = od_enter_device(device, &saved);
  if (status != OPDECK_OK) return status;
  status = prepare_in_ctx(pack, variant_idx, device);
  od_leave_device(device, &saved);
  return status;
}
