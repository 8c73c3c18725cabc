/* SPDX-License-Identifier: Apache-2.0
 *
 * test_context.c: contexts, devices, packs and the listing of kernels; every error of theirs.
 */
#include "fmha_problem.h"

#include <stdlib.h>

static void test_version_and_names(void) {
  CHECK(opdeck_version() == (OPDECK_VERSION_MAJOR << 16 | OPDECK_VERSION_MINOR));
  CHECK(strcmp(opdeck_status_name(OPDECK_WORKSPACE), "WORKSPACE") == 0);
  CHECK(strcmp(opdeck_status_name((opdeck_status)99), "unknown status") == 0);
  CHECK(strcmp(opdeck_last_error(), "") == 0);
}

static opdeck_status create(const char *device, const char *schedule, int32_t hazards) {
  opdeck_ctx *ctx = NULL;
  const opdeck_ctx_desc desc = {sizeof desc, hazards, device, schedule, FAKE_EMULATOR};
  const opdeck_status status = opdeck_ctx_create(&desc, &ctx);
  CHECK((status == OPDECK_OK) == (ctx != NULL));
  opdeck_ctx *made = ctx;
  if (made != NULL) opdeck_ctx_destroy(made);
  return status;
}

static void test_desc_is_checked(void) {
  opdeck_ctx *ctx = NULL;
  opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = "emulator:sm_100a", .emulator_lib = FAKE_EMULATOR};
  CHECK_STATUS(opdeck_ctx_create(&desc, NULL), OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  CHECK_STATUS(opdeck_ctx_create(NULL, &ctx), OPDECK_INVALID_ARGUMENT, "desc: got NULL");
  desc.struct_size = 4;
  CHECK_STATUS(opdeck_ctx_create(&desc, &ctx), OPDECK_INVALID_ARGUMENT, "desc.struct_size: got 4, want 32");
  desc.struct_size = sizeof desc + 8;
  CHECK_STATUS(opdeck_ctx_create(&desc, &ctx), OPDECK_VERSION, "newer than this libopdeck");
  desc.struct_size = sizeof desc;
  desc.emulator_lib = "/nowhere/libopdeck_emu.so";
  CHECK_STATUS(opdeck_ctx_create(&desc, &ctx), OPDECK_NO_DRIVER, "/nowhere/libopdeck_emu.so");
  desc.emulator_lib = TEXT_FILE;
  CHECK_STATUS(opdeck_ctx_create(&desc, &ctx), OPDECK_NO_DRIVER, "it is no ELF object");
  desc.emulator_lib = FAKE_PACK;
  CHECK_STATUS(opdeck_ctx_create(&desc, &ctx), OPDECK_NO_DRIVER, "not an opdeck emulator");
  CHECK(ctx == NULL);
  opdeck_ctx_destroy(NULL);
}

static void test_device_strings(void) {
  static const char *const bad[] = {
      "",      "cuda", "cuda:",     "cuda:x",         "cuda:-1",       "cuda:0x", "cuda:99999999999999999999",
      "gpu:0", "cpu",  "emulator:", "emulator:sm_80", "offline:sm_100"};
  for (size_t bad_idx = 0; bad_idx < sizeof bad / sizeof bad[0]; ++bad_idx)
    CHECK_STATUS(create(bad[bad_idx], NULL, 0), OPDECK_INVALID_ARGUMENT, "desc.device: got \"");
  unsetenv("OPDECK_DEVICE");
  CHECK_STATUS(create(NULL, NULL, 0), OPDECK_INVALID_ARGUMENT, "no OPDECK_DEVICE");
  setenv("OPDECK_DEVICE", "emulator:sm_103a", 1);
  CHECK_OK(create(NULL, NULL, 0));
  CHECK_OK(create("offline:sm_90a", NULL, 0));
  unsetenv("OPDECK_DEVICE");
}

static void test_emulator_options(void) {
  static const char *const good[] = {"eager", "lazy", "random", "random:0", "random:18446744073709551615"};
  static const char *const bad[] = {
      "", "Eager", "random:", "random:-1", "random:x", "random:1x", "random:99999999999999999999"};
  for (size_t good_idx = 0; good_idx < sizeof good / sizeof good[0]; ++good_idx)
    CHECK_OK(create("emulator:sm_100a", good[good_idx], 0));
  for (size_t bad_idx = 0; bad_idx < sizeof bad / sizeof bad[0]; ++bad_idx)
    CHECK_STATUS(create("emulator:sm_100a", bad[bad_idx], 0), OPDECK_INVALID_ARGUMENT, "desc.schedule: got \"");
  CHECK_STATUS(create("emulator:sm_100a", NULL, -1), OPDECK_INVALID_ARGUMENT, "desc.hazards: got -1");
  CHECK_STATUS(create("emulator:sm_100a", NULL, 4), OPDECK_INVALID_ARGUMENT, "desc.hazards: got 4");
  setenv("OPDECK_SCHEDULE", "sometimes", 1);
  CHECK_STATUS(create("emulator:sm_100a", NULL, 0), OPDECK_INVALID_ARGUMENT, "OPDECK_SCHEDULE: got \"sometimes\"");
  unsetenv("OPDECK_SCHEDULE");
  setenv("OPDECK_HAZARDS", "maybe", 1);
  CHECK_STATUS(create("emulator:sm_100a", NULL, 0), OPDECK_INVALID_ARGUMENT, "OPDECK_HAZARDS: got \"maybe\"");
  CHECK_OK(create("emulator:sm_100a", NULL, OPDECK_HAZARDS_ON)); /* the argument beats the environment */
  unsetenv("OPDECK_HAZARDS");
}

static void test_device_info(void) {
  opdeck_ctx *ctx = create_ctx("emulator:sm_103a");
  opdeck_device_info info = {.struct_size = sizeof info};
  CHECK_OK(opdeck_ctx_device_info(ctx, &info));
  CHECK(info.is_emulator == 1 && info.num_sms == 148 && info.driver_version == 13000);
  CHECK(strcmp(info.arch, "sm_103a") == 0);
  CHECK_STATUS(opdeck_ctx_device_info(ctx, NULL), OPDECK_INVALID_ARGUMENT, "info: got NULL");
  CHECK_STATUS(opdeck_ctx_device_info(NULL, &info), OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  info.struct_size = 0;
  CHECK_STATUS(opdeck_ctx_device_info(ctx, &info), OPDECK_INVALID_ARGUMENT, "info.struct_size: got 0");
  opdeck_ctx_destroy(ctx);
}

static void test_listing(void) {
  opdeck_ctx *ctx = create_ctx("offline:sm_100a");
  uint32_t num_kernels = 0;
  CHECK_OK(opdeck_ctx_num_kernels(ctx, &num_kernels));
  CHECK(num_kernels == 7);
  CHECK_OK(opdeck_ctx_load_pack(ctx, FAKE_PACK)); /* again: changes nothing */
  CHECK_OK(opdeck_ctx_num_kernels(ctx, &num_kernels));
  CHECK(num_kernels == 7);
  opdeck_kernel_info info = {.struct_size = sizeof info};
  CHECK_OK(opdeck_ctx_kernel_info(ctx, 3, &info));
  CHECK(strcmp(info.variant, "fmha_alibi") == 0 && strcmp(info.family, "fmha_fwd") == 0);
  CHECK(strcmp(info.arch, "sm_100a") == 0 && strcmp(info.fusion, "alibi") == 0);
  CHECK(strcmp(info.config, "tile_m=128 tile_n=128") == 0 && strlen(info.cubin_sha256) == 64);
  CHECK(info.smem_bytes == 1024 && info.num_registers == 168 && info.num_threads == 512);
  CHECK(strcmp(strrchr(info.pack, '/'), strrchr(FAKE_PACK, '/')) == 0);
  CHECK_STATUS(opdeck_ctx_kernel_info(ctx, 7, &info), OPDECK_INVALID_ARGUMENT, "kernel_idx: got 7, want less than 7");
  CHECK_STATUS(opdeck_ctx_kernel_info(ctx, 0, NULL), OPDECK_INVALID_ARGUMENT, "info: got NULL");
  CHECK_STATUS(opdeck_ctx_num_kernels(ctx, NULL), OPDECK_INVALID_ARGUMENT, "num_kernels: got NULL");
  CHECK_STATUS(opdeck_ctx_num_kernels(NULL, &num_kernels), OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  opdeck_launch_report report = {.struct_size = sizeof report, .num_ctas = 9};
  CHECK_OK(opdeck_ctx_last_report(ctx, &report));
  CHECK(report.num_ctas == 0 && report.struct_size == sizeof report);
  CHECK_STATUS(opdeck_ctx_last_report(ctx, NULL), OPDECK_INVALID_ARGUMENT, "report: got NULL");
  opdeck_ctx_destroy(ctx);
}

static void test_packs_that_do_not_fit(void) {
  opdeck_ctx *ctx = create_ctx("emulator:sm_100a");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, NULL), OPDECK_INVALID_ARGUMENT, "path: got NULL");
  CHECK_STATUS(opdeck_ctx_load_pack(NULL, FAKE_PACK), OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, "/nowhere.opdeck.so"), OPDECK_PACK, "/nowhere.opdeck.so: No such file");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, "/"), OPDECK_PACK, "not a file");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, TEXT_FILE), OPDECK_PACK, "it is no ELF object");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, FAKE_EMULATOR), OPDECK_PACK, "not a pack: it has no opdeck_pack_v1");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, BAD_PACK_ABI), OPDECK_VERSION, "got pack ABI 7, want 5");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, BAD_PACK_TRIPLE), OPDECK_VERSION, "got host code for vax-dec-ultrix, want ");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, BAD_PACK_FIELD), OPDECK_PACK,
               "variant fmha_bf16: a rule names no_such, which is no field of fmha_fwd");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, BAD_PACK_RANK), OPDECK_PACK, "rank of argument row 0 (q) is not legal");
  CHECK_STATUS(opdeck_ctx_load_pack(ctx, BAD_PACK_SOURCE), OPDECK_PACK, "variant copy_f32: parameter 0 has source -1");
  uint32_t num_kernels = 0;
  CHECK_OK(opdeck_ctx_num_kernels(ctx, &num_kernels));
  CHECK(num_kernels == 7);
  opdeck_ctx_destroy(ctx);
}

/* dlopen would map a pack that was cut short, and reading beyond its end is a SIGBUS. */
static void test_packs_that_were_cut_short(void) {
  static char bytes[1 << 20];
  const char *cut_path = WRITABLE_FOLDER "/cut.opdeck.so";
  opdeck_ctx *ctx = create_ctx("emulator:sm_100a");
  FILE *whole = fopen(FAKE_PACK, "rb");
  const size_t num_bytes = whole == NULL ? 0 : fread(bytes, 1, sizeof bytes, whole);
  CHECK(num_bytes > 4096 && num_bytes < sizeof bytes);
  if (whole != NULL) fclose(whole);
  const size_t cut_bytes[] = {0, 3, 10, 64, 200, 4096, num_bytes / 2, num_bytes - 1};
  for (size_t cut_idx = 0; cut_idx < sizeof cut_bytes / sizeof cut_bytes[0]; ++cut_idx) {
    FILE *cut = fopen(cut_path, "wb");
    CHECK(cut != NULL && fwrite(bytes, 1, cut_bytes[cut_idx], cut) == cut_bytes[cut_idx]);
    if (cut != NULL) fclose(cut);
    CHECK_STATUS(opdeck_ctx_load_pack(ctx, cut_path), OPDECK_PACK,
                 cut_bytes[cut_idx] < 4 ? "it is no ELF object" : "the file was cut short");
  }
  remove(cut_path);
  opdeck_ctx_destroy(ctx);
}

static void test_default_packs(void) {
  opdeck_ctx *ctx = NULL;
  const opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = "offline:sm_100a"};
  CHECK_OK(opdeck_ctx_create(&desc, &ctx));
  setenv("OPDECK_PACK_PATH", "::" FAKE_PACK ":/nowhere:" BAD_PACK_ABI, 1);
  CHECK(opdeck_ctx_load_default_packs(ctx) == OPDECK_OK);
  CHECK(strstr(opdeck_last_error(), "skipped /nowhere: No such file") != NULL);
  CHECK(strstr(opdeck_last_error(), "got pack ABI 7, want 5") != NULL);
  uint32_t num_kernels = 0;
  CHECK_OK(opdeck_ctx_num_kernels(ctx, &num_kernels));
  CHECK(num_kernels == 7);
  opdeck_ctx_destroy(ctx);
  /* A folder: every *.opdeck.so in it, the good pack among the bad ones. */
  CHECK_OK(opdeck_ctx_create(&desc, &ctx));
  setenv("OPDECK_PACK_PATH", PACK_FOLDER, 1);
  CHECK(opdeck_ctx_load_default_packs(ctx) == OPDECK_OK);
  CHECK(strstr(opdeck_last_error(), "vax-dec-ultrix") != NULL);
  CHECK_OK(opdeck_ctx_num_kernels(ctx, &num_kernels));
  CHECK(num_kernels == 7);
  unsetenv("OPDECK_PACK_PATH");
  CHECK_STATUS(opdeck_ctx_load_default_packs(NULL), OPDECK_INVALID_ARGUMENT, "ctx: got NULL");
  opdeck_ctx_destroy(ctx);
}

int main(void) {
  test_version_and_names();
  test_desc_is_checked();
  test_device_strings();
  test_emulator_options();
  test_device_info();
  test_listing();
  test_packs_that_do_not_fit();
  test_packs_that_were_cut_short();
  test_default_packs();
  return check_exit_status();
}
