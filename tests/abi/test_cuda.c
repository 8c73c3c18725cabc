/* SPDX-License-Identifier: Apache-2.0
 *
 * test_cuda.c: the CUDA side, on a fake libcuda.so.1 with two devices (found by LD_LIBRARY_PATH): the current context,
 * one pack on two devices and on two drivers, a pack that was replaced.
 */
#include "fmha_problem.h"

#include <stdio.h>
#include <unistd.h>

static fake_log *cuda;
static opdeck_cu_result (*get_current)(opdeck_cu_context *);
static opdeck_cu_result (*set_current)(opdeck_cu_context);
static opdeck_cu_result (*retain)(opdeck_cu_context *, opdeck_cu_device);

static void init_on(fmha_problem *fmha, int32_t device_type, int32_t device_id) {
  init_fmha(fmha);
  for (int arg = 0; arg < 5; ++arg) {
    fmha->tensors[arg].device_type = device_type;
    fmha->tensors[arg].device_id = device_id;
  }
}

static opdeck_plan *create_plan(opdeck_ctx *ctx, const fmha_problem *fmha) {
  opdeck_plan *plan = NULL;
  CHECK_OK(opdeck_plan_create(ctx, &fmha->problem, &plan));
  return plan;
}

static void test_devices(void) {
  opdeck_ctx *ctx = NULL;
  const opdeck_ctx_desc desc = {.struct_size = sizeof desc, .device = "cuda:2"};
  CHECK_STATUS(opdeck_ctx_create(&desc, &ctx), OPDECK_NO_DEVICE,
               "desc.device: got \"cuda:2\", but there are 2 devices");
  ctx = create_ctx("cuda:1");
  opdeck_device_info info = {.struct_size = sizeof info};
  CHECK_OK(opdeck_ctx_device_info(ctx, &info));
  CHECK(strcmp(info.arch, "sm_100a") == 0 && info.is_emulator == 0);
  fmha_problem fmha;
  init_on(&fmha, OPDECK_DEVICE_CUDA, 0);
  opdeck_plan *plan = NULL;
  CHECK_STATUS(opdeck_plan_create(ctx, &fmha.problem, &plan), OPDECK_INVALID_ARGUMENT,
               "q: got a tensor on cuda:0, want cuda:1");
  init_fmha(&fmha);
  CHECK_STATUS(opdeck_plan_create(ctx, &fmha.problem, &plan), OPDECK_INVALID_ARGUMENT,
               "q: got device_type 1, want 2 (CUDA)");
  opdeck_ctx_destroy(ctx);
}

/* Launches on `device` with `before` current; afterwards it is current again. */
static void launch_from(int device, opdeck_cu_context before) {
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", device);
  opdeck_ctx *ctx = create_ctx(name);
  fmha_problem fmha;
  init_on(&fmha, OPDECK_DEVICE_CUDA, device);
  opdeck_plan *plan = create_plan(ctx, &fmha);
  cuda->expected_device = device;
  set_current(before);
  CHECK_OK(opdeck_plan_launch(plan, &fmha.problem, NULL, 0, NULL));
  opdeck_cu_context after = &after;
  get_current(&after);
  CHECK(after == before);
  set_current(NULL);
  opdeck_plan_destroy(plan);
  opdeck_ctx_destroy(ctx);
}

static void test_current_ctx(void) {
  opdeck_cu_context contexts[2];
  retain(&contexts[0], 0);
  retain(&contexts[1], 1);
  for (int device = 0; device < 2; ++device) {
    launch_from(device, NULL);
    launch_from(device, contexts[0]);
    launch_from(device, contexts[1]);
  }
  CHECK(cuda->num_launches == 6 && cuda->num_wrong_ctx == 0);
}

/* Two devices share a library and set their kernels' attributes each; an emulator beside them has its own copy. */
static void test_shared_pack(void) {
  fake_log *emulator = find_log(FAKE_EMULATOR);
  opdeck_ctx *ctxs[3] = {create_ctx("cuda:0"), create_ctx("cuda:1"), create_ctx("emulator:sm_100a")};
  fmha_problem problems[3];
  opdeck_plan *plans[3];
  init_on(&problems[0], OPDECK_DEVICE_CUDA, 0);
  init_on(&problems[1], OPDECK_DEVICE_CUDA, 1);
  init_on(&problems[2], OPDECK_DEVICE_CPU, 0);
  cuda->num_library_loads = cuda->num_library_unloads = cuda->num_kernel_attributes = cuda->num_launches = 0;
  emulator->expected_device = 1;
  for (int idx = 0; idx < 3; ++idx) plans[idx] = create_plan(ctxs[idx], &problems[idx]);
  for (int round = 0; round < 2; ++round) {
    for (int idx = 0; idx < 3; ++idx) {
      cuda->expected_device = idx;
      CHECK_OK(opdeck_plan_launch(plans[idx], &problems[idx].problem, NULL, 0, NULL));
    }
  }
  CHECK(cuda->num_library_loads == 1 && cuda->num_kernel_attributes == 2 && cuda->num_launches == 4);
  CHECK(emulator->num_library_loads == 1 && emulator->num_launches == 2 && emulator->num_outside_session == 0);
  CHECK(cuda->num_wrong_ctx == 0 && emulator->num_wrong_ctx == 0);
  for (int idx = 0; idx < 3; ++idx) {
    opdeck_plan_destroy(plans[idx]);
    opdeck_ctx_destroy(ctxs[idx]);
  }
  CHECK(cuda->num_library_unloads == 1 && emulator->num_library_unloads == 1);
}

static void copy_file(const char *from, const char *to) {
  char command[3000];
  snprintf(command, sizeof command, "cp '%s' '%s.new' && mv '%s.new' '%s'", from, to, to, to);
  CHECK(system(command) == 0);
}

/* A pack rebuilt at the same path while the old one is open is the new one to those who load it now. */
static void test_replaced_pack(void) {
  char path[1024];
  snprintf(path, sizeof path, "%s/replaced.opdeck.so", WRITABLE_FOLDER);
  copy_file(FAKE_PACK, path);
  opdeck_ctx *old = create_ctx("offline:sm_100a");
  CHECK_OK(opdeck_ctx_load_pack(old, path));
  copy_file(BAD_PACK_ABI, path);
  CHECK_STATUS(opdeck_ctx_load_pack(old, path), OPDECK_VERSION, "got pack ABI 7");
  copy_file(FAKE_PACK, path);
  CHECK_OK(opdeck_ctx_load_pack(old, path));
  uint32_t num_kernels = 0;
  CHECK_OK(opdeck_ctx_num_kernels(old, &num_kernels));
  CHECK(num_kernels == 21);
  unlink(path);
  opdeck_ctx_destroy(old);
}

int main(void) {
  cuda = find_log("libcuda.so.1");
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  *(void **)&get_current = dlsym(library, "cuCtxGetCurrent");
  *(void **)&set_current = dlsym(library, "cuCtxSetCurrent");
  *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  test_devices();
  test_current_ctx();
  test_shared_pack();
  test_replaced_pack();
  return check_exit_status();
}
