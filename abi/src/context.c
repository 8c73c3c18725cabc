/* SPDX-License-Identifier: Apache-2.0
 *
 * context.c: contexts, their packs and the listing of kernels (the opdeck_ctx_* functions of opdeck.h).
 */
#include "context.h"

#include "text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first check of each function on a context; `other` is its other pointer. */
static opdeck_status require(const opdeck_ctx *ctx, const char *other_name, const void *other) {
  od_clear_error();
  if (ctx == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  return other != NULL ? OPDECK_OK : od_fail(OPDECK_INVALID_ARGUMENT, "%s: got NULL", other_name);
}

opdeck_status opdeck_ctx_create(const opdeck_ctx_desc *desc, opdeck_ctx **ctx) {
  od_clear_error();
  if (ctx == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  *ctx = NULL;
  if (desc == NULL) return od_fail(OPDECK_INVALID_ARGUMENT, "desc: got NULL");
  opdeck_status status = od_check_struct_size("desc", desc->struct_size, sizeof *desc);
  if (status != OPDECK_OK) return status;
  opdeck_ctx *made = calloc(1, sizeof *made);
  if (made == NULL) return od_fail(OPDECK_INTERNAL, "out of memory");
  atomic_init(&made->num_refs, 1);
  pthread_mutex_init(&made->lock, NULL);
  status = od_device_open(desc, &made->device);
  if (status == OPDECK_OK && made->device.driver->kind == OD_DRIVER_EMULATOR)
    status = od_read_emulator_options(desc, &made->emulator_options);
  if (status == OPDECK_OK)
    *ctx = made;
  else
    od_ctx_release(made);
  return status;
}

void od_ctx_retain(opdeck_ctx *ctx) { atomic_fetch_add(&ctx->num_refs, 1); }

void od_ctx_release(opdeck_ctx *ctx) {
  if (atomic_fetch_sub(&ctx->num_refs, 1) != 1) return;
  for (int32_t pack_idx = 0; pack_idx < ctx->num_packs; ++pack_idx) od_pack_close(ctx->packs[pack_idx]);
  pthread_mutex_destroy(&ctx->lock);
  free(ctx);
}

void opdeck_ctx_destroy(opdeck_ctx *ctx) {
  od_clear_error();
  if (ctx != NULL) od_ctx_release(ctx);
}

opdeck_status opdeck_ctx_device_info(opdeck_ctx *ctx, opdeck_device_info *info) {
  opdeck_status status = require(ctx, "info", info);
  if (status == OPDECK_OK) status = od_check_struct_size("info", info->struct_size, sizeof *info);
  if (status != OPDECK_OK) return status;
  info->is_emulator = ctx->device.driver->kind == OD_DRIVER_EMULATOR;
  info->arch = ctx->device.arch;
  info->num_sms = ctx->device.num_sms;
  info->driver_version = ctx->device.driver->version;
  return OPDECK_OK;
}

int32_t od_ctx_num_packs(opdeck_ctx *ctx) {
  pthread_mutex_lock(&ctx->lock);
  const int32_t num_packs = ctx->num_packs;
  pthread_mutex_unlock(&ctx->lock);
  return num_packs;
}

/* Takes over the caller's reference to the pack. */
static opdeck_status add_pack(opdeck_ctx *ctx, od_pack *pack) {
  pthread_mutex_lock(&ctx->lock);
  int32_t pack_idx = 0;
  while (pack_idx < ctx->num_packs && ctx->packs[pack_idx] != pack) ++pack_idx;
  const int is_new = pack_idx == ctx->num_packs && pack_idx < OD_MAX_PACKS;
  const int is_full = pack_idx == OD_MAX_PACKS;
  if (is_new) ctx->packs[ctx->num_packs++] = pack;
  pthread_mutex_unlock(&ctx->lock);
  if (!is_new) od_pack_close(pack);
  return is_full ? od_fail(OPDECK_PACK, "%d packs are loaded already, the most a context holds", OD_MAX_PACKS)
                 : OPDECK_OK;
}

static opdeck_status load_pack(opdeck_ctx *ctx, const char *path) {
  od_pack *pack = NULL;
  const opdeck_status status = od_pack_open(ctx->device.driver, path, &pack);
  return status == OPDECK_OK ? add_pack(ctx, pack) : status;
}

opdeck_status opdeck_ctx_load_pack(opdeck_ctx *ctx, const char *path) {
  const opdeck_status status = require(ctx, "path", path);
  return status == OPDECK_OK ? load_pack(ctx, path) : status;
}

/* Loads a pack that may not fit; why not is added to `skipped`. */
static void try_pack(opdeck_ctx *ctx, const char *path, od_text *skipped) {
  if (load_pack(ctx, path) == OPDECK_OK) return;
  od_text_add(skipped, "%sskipped %s", skipped->needed_bytes == 1 ? "" : "\n", opdeck_last_error());
}

static int is_pack_name(const struct dirent *entry) {
  static const char suffix[] = ".opdeck.so";
  const size_t length = strlen(entry->d_name);
  return length >= sizeof suffix && strcmp(entry->d_name + length - (sizeof suffix - 1), suffix) == 0;
}

/* All packs of a folder, by name; a path that is no folder is taken for a pack. */
static void try_folder(opdeck_ctx *ctx, const char *folder, od_text *skipped) {
  struct dirent **entries = NULL;
  const int num_entries = scandir(folder, &entries, is_pack_name, alphasort);
  if (num_entries < 0) {
    try_pack(ctx, folder, skipped);
    return;
  }
  for (int entry_idx = 0; entry_idx < num_entries; ++entry_idx) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, entries[entry_idx]->d_name) < (int)sizeof path)
      try_pack(ctx, path, skipped);
    free(entries[entry_idx]);
  }
  free(entries);
}

static void try_list(opdeck_ctx *ctx, const char *colon_separated, od_text *skipped) {
  while (colon_separated != NULL && colon_separated[0] != '\0') {
    const size_t length = strcspn(colon_separated, ":");
    char path[PATH_MAX];
    if (length > 0 && snprintf(path, sizeof path, "%.*s", (int)length, colon_separated) < (int)sizeof path)
      try_folder(ctx, path, skipped);
    colon_separated += length + (colon_separated[length] == ':');
  }
}

opdeck_status opdeck_ctx_load_default_packs(opdeck_ctx *ctx) {
  const opdeck_status status = require(ctx, "ctx", ctx);
  if (status != OPDECK_OK) return status;
  char message[4096];
  od_text skipped = od_text_in(message, sizeof message);
  try_list(ctx, getenv("OPDECK_PACK_PATH"), &skipped);
  char folder[PATH_MAX];
  char packs[PATH_MAX];
  od_library_folder(folder);
  if (snprintf(packs, sizeof packs, "%s/opdeck-packs", folder) < (int)sizeof packs) {
    DIR *open_folder = opendir(packs); /* it need not be there */
    if (open_folder != NULL) {
      closedir(open_folder);
      try_folder(ctx, packs, &skipped);
    }
  }
  return od_fail(OPDECK_OK, "%s", message);
}

opdeck_status opdeck_ctx_num_kernels(opdeck_ctx *ctx, uint32_t *num_kernels) {
  const opdeck_status status = require(ctx, "num_kernels", num_kernels);
  if (status != OPDECK_OK) return status;
  const int32_t num_packs = od_ctx_num_packs(ctx);
  *num_kernels = 0;
  for (int32_t pack_idx = 0; pack_idx < num_packs; ++pack_idx)
    *num_kernels += (uint32_t)ctx->packs[pack_idx]->table.num_variants;
  return OPDECK_OK;
}

void od_fill_kernel_info(const od_pack *pack, int32_t variant_idx, opdeck_kernel_info *info) {
  const opdeck_pack_variant *variant = &pack->table.variants[variant_idx];
  info->smem_bytes = variant->smem_bytes;
  info->variant = variant->id;
  info->family = pack->table.families[variant->family_idx].name;
  info->arch = variant->arch;
  info->fusion = variant->fusion;
  info->config = variant->config;
  info->cubin_sha256 = variant->cubin_sha256;
  info->pack = pack->path;
  info->num_registers = variant->num_registers;
  info->num_threads = variant->num_threads;
}

opdeck_status opdeck_ctx_kernel_info(opdeck_ctx *ctx, uint32_t kernel_idx, opdeck_kernel_info *info) {
  opdeck_status status = require(ctx, "info", info);
  if (status == OPDECK_OK) status = od_check_struct_size("info", info->struct_size, sizeof *info);
  if (status != OPDECK_OK) return status;
  const int32_t num_packs = od_ctx_num_packs(ctx);
  uint32_t left = kernel_idx;
  for (int32_t pack_idx = 0; pack_idx < num_packs; ++pack_idx) {
    const od_pack *pack = ctx->packs[pack_idx];
    if (left < (uint32_t)pack->table.num_variants) {
      od_fill_kernel_info(pack, (int32_t)left, info);
      return OPDECK_OK;
    }
    left -= (uint32_t)pack->table.num_variants;
  }
  return od_fail(OPDECK_INVALID_ARGUMENT, "kernel_idx: got %u, want less than %u", (unsigned)kernel_idx,
                 (unsigned)(kernel_idx - left));
}

opdeck_status opdeck_ctx_last_report(opdeck_ctx *ctx, opdeck_launch_report *report) {
  opdeck_status status = require(ctx, "report", report);
  if (status == OPDECK_OK) status = od_check_struct_size("report", report->struct_size, sizeof *report);
  if (status != OPDECK_OK) return status;
  pthread_mutex_lock(&ctx->lock);
  *report = ctx->last_report;
  pthread_mutex_unlock(&ctx->lock);
  report->struct_size = sizeof *report;
  return OPDECK_OK;
}
