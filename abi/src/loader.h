/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.h: packs, opened once a driver and shared by the contexts on it.
 */
#ifndef OPDECK_LOADER_H
#define OPDECK_LOADER_H

#include "driver.h"
#include "pack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

/* What has been loaded of one variant: its library once a driver, then its kernel's attributes once a device. */
typedef struct od_variant_state {
  opdeck_cu_library library;
  int is_library_loaded;               /* guarded by the pack's lock */
  atomic_uint_least64_t ready_devices; /* bit N: device N < OD_MAX_DEVICES may launch */
} od_variant_state;

typedef struct od_pack {
  opdeck_pack_table table;
  od_variant_state *states; /* table.num_variants */
  od_driver *driver;
  pthread_mutex_t lock; /* of the states */
  void *object;         /* of dlopen */
  int private_fd;       /* a copy's file, open as long as the copy; else -1 */
  dev_t file_device;    /* device, inode and time of change tell files apart */
  ino_t file_inode;
  struct timespec file_mtime;
  int num_users; /* contexts; guarded by the list's lock */
  struct od_pack *next;
  char path[PATH_MAX];
} od_pack;

/* Opens the pack on the driver, or takes another reference to one that is open already. */
opdeck_status od_pack_open(od_driver *driver, const char *path, od_pack **pack);
/* Drops a reference; the last one unloads the pack's kernels. */
void od_pack_close(od_pack *pack);

static inline int od_variant_is_ready(od_pack *pack, int32_t variant_idx, opdeck_cu_device device) {
  return (int)(atomic_load_explicit(&pack->states[variant_idx].ready_devices, memory_order_acquire) >> device & 1);
}

/* Loads a variant for the device, unless that has been done. */
opdeck_status od_variant_prepare(od_pack *pack, int32_t variant_idx, const od_device *device);

/* Makes the device's context current where another device's or none is; restore with the same `saved`. */
typedef struct od_saved_ctx {
  opdeck_cu_context ctx;
  int is_changed;
} od_saved_ctx;
opdeck_status od_enter_device(const od_device *device, od_saved_ctx *saved);
void od_leave_device(const od_device *device, const od_saved_ctx *saved);

#endif
