/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.h: drivers (libcuda.so.1, libopdeck_emu.so, or none) and the device of a context.
 */
#ifndef OPDECK_DRIVER_H
#define OPDECK_DRIVER_H

#include "driver_api.h"
#include "opdeck.h"
#include "opdeck_emu.h"

#include <limits.h>

typedef enum od_driver_kind {
  OD_DRIVER_CUDA,
  OD_DRIVER_EMULATOR,
  OD_DRIVER_NONE /* "offline:ARCH": listing, planning and explaining, no launch */
} od_driver_kind;

typedef struct od_emulator_api {
  uint32_t (*version)(void);
  int (*register_ptx)(const char *sha256_hex, const char *ptx, size_t len);
  int (*begin)(const opdeck_emu_tensor *tensors, uint32_t num_tensors, const opdeck_emu_options *options);
  int (*end)(opdeck_emu_report *report);
  const char *(*last_error)(void);
} od_emulator_api;

/* One a library, open until the process ends: primary contexts and a driver's threads outlive our contexts. */
typedef struct od_driver {
  opdeck_driver_api api;
  od_emulator_api emulator; /* of OD_DRIVER_EMULATOR */
  od_driver_kind kind;
  int version;
  struct od_driver *next;
  char library[PATH_MAX];
} od_driver;

/* The process's one driver of this library, opened on first use. `library` is a path or a name that dlopen finds. */
opdeck_status od_driver_open(od_driver_kind kind, const char *library, od_driver **driver);

enum {
  OD_ARCH_BYTES = 16,
  OD_MAX_DEVICES = 64 /* of a driver: the bits of a mask in loader.h */
};

typedef struct od_device {
  od_driver *driver;
  opdeck_cu_device ordinal;
  opdeck_cu_context primary_ctx;
  int32_t arch_number; /* 90, 100, 103 */
  int32_t num_sms;
  char arch[OD_ARCH_BYTES]; /* "sm_100a" */
} od_device;

/* Opens desc->device, else OPDECK_DEVICE's. */
opdeck_status od_device_open(const opdeck_ctx_desc *desc, od_device *device);

/* Reports a failed driver call: the emulator's own text where it has one, else the CUDA error's name. */
opdeck_status od_driver_fail(const od_driver *driver, const char *call, opdeck_cu_result result);

/* Folder of the library that holds this code, "." where it cannot be told. */
void od_library_folder(char folder[PATH_MAX]);

#endif
