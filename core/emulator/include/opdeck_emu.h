/* SPDX-License-Identifier: Apache-2.0
 *
 * opdeck_emu.h: what libopdeck_emu.so offers besides the CUDA driver's functions.
 *
 * libopdeck_emu.so looks like a CUDA driver (cuInit, cuLibraryLoadData, cuLaunchKernelEx, ...: the list
 * in abi/src/driver_api.h) with three devices, which never change their order:
 *     device 0 = sm_90a, device 1 = sm_100a, device 2 = sm_103a.
 * Launches are synchronous. The functions below give it what a real driver does not need: the PTX of a
 * cubin, the host tensors that a launch may touch, and the schedule under which asynchronous work
 * completes. Called by libopdeck (abi/src) and by opdeck.core.emulator; C99 that cffi can parse.
 */
#ifndef OPDECK_EMU_H
#define OPDECK_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OPDECK_EMU_VERSION 1

typedef enum opdeck_emu_schedule {
  OPDECK_EMU_EAGER = 0,  /* asynchronous work completes as soon as it is issued */
  OPDECK_EMU_LAZY = 1,   /* ... only when no warp can go on without it */
  OPDECK_EMU_RANDOM = 2  /* ... at seeded random moments, warps in seeded random order */
} opdeck_emu_schedule;

typedef enum opdeck_emu_access {
  OPDECK_EMU_READ = 1,
  OPDECK_EMU_WRITE = 2, /* starts uninitialised: a read before the kernel wrote it is an error */
  OPDECK_EMU_READWRITE = 3
} opdeck_emu_access;

/* One host tensor that the launches of a session may touch, element by element. */
typedef struct opdeck_emu_tensor {
  const char *name;        /* in reports */
  void *data;              /* host address of element (0, 0, ...) */
  const int64_t *shape;    /* num_dims extents, in elements */
  const int64_t *strides;  /* num_dims strides, in elements; may be 0 or negative */
  int32_t num_dims;
  int32_t elem_bits;       /* 4, 6, 8, 16, 32, 64 */
  int32_t access;          /* opdeck_emu_access */
  int32_t reserved;
} opdeck_emu_tensor;

typedef enum opdeck_emu_hazards {
  OPDECK_EMU_HAZARDS_OFF = 0,
  OPDECK_EMU_HAZARDS_ON = 1,    /* what NVIDIA's own kernels keep to; the default */
  OPDECK_EMU_HAZARDS_STRICT = 2 /* the letter of the PTX ISA */
} opdeck_emu_hazards;

typedef struct opdeck_emu_options {
  uint32_t struct_size;
  int32_t schedule;             /* opdeck_emu_schedule */
  uint64_t seed;                /* of OPDECK_EMU_RANDOM */
  int32_t hazards;              /* opdeck_emu_hazards */
  int32_t profile;              /* 1 = keep counters, for opdeck_emu_last_profile; 0 = as the default options say */
  uint64_t max_warp_instructions; /* watchdog a launch; 0 = that of the default options (2^33) */
} opdeck_emu_options;

/* Sums over the launches of a session. */
typedef struct opdeck_emu_report {
  uint32_t struct_size;
  uint32_t num_launches;
  uint64_t num_ctas;
  uint64_t warp_instructions;   /* counted when an instruction completes */
  uint64_t mma_macs;            /* multiply-accumulates done by wgmma and tcgen05.mma */
  uint64_t tma_load_bytes;
  uint64_t tma_store_bytes;
  char cubin_sha256[65];        /* of the last kernel launched, hex, NUL-terminated */
  char kernel_name[191];        /* of the last kernel launched */
  uint64_t hb_fingerprint;      /* of what was ordered before each access; comparable under the eager schedule, 0
                                   without hazard checks */
} opdeck_emu_report;

/* What the executions of one PTX instruction by one warp of the CTAs of a launch amount to, over all CTAs. */
typedef struct opdeck_emu_profile_row {
  const char *kernel;
  const char *opcode;           /* as in the PTX; "" in the row of the instructions whose guard was false in all lanes */
  const char *pipe;             /* the unit that it mostly occupies; "skipped" in that row */
  uint32_t launch_idx;          /* in the session */
  uint32_t warp_idx;            /* in the CTA */
  uint32_t op_idx;              /* of the instruction, in the kernel */
  uint32_t ptx_line;
  uint64_t completed;           /* warp instructions */
  uint64_t blocked;             /* tries that had to wait, which are no instructions; they depend on the schedule */
  uint64_t false_polls;         /* of those completed: mbarrier waits that returned false */
  uint64_t macs;                /* multiply-accumulates issued */
  uint64_t global_read_bytes;
  uint64_t global_write_bytes;  /* reductions and atomics too */
  uint64_t shared_read_bytes;   /* by threads, by copies, or as operands of MMAs; not the accumulators */
  uint64_t shared_write_bytes;
  uint64_t remote_shared_bytes; /* of the two: in another CTA's shared memory */
  uint64_t shared_wavefronts;   /* of threads' accesses to their own CTA's shared memory */
  uint64_t extra_wavefronts;    /* of these: bank conflicts */
  uint64_t tmem_read_bytes;     /* tcgen05.ld, st and cp; not what MMAs read and write */
  uint64_t tmem_write_bytes;
} opdeck_emu_profile_row;

uint32_t opdeck_emu_version(void);

/* The PTX of a cubin. sha256_hex: 64 hex digits of the cubin's SHA-256. The text is copied. Registering the
 * same pair again is no error. Returns 0, or CUDA_ERROR_INVALID_VALUE (1). */
int opdeck_emu_register_ptx(const char *sha256_hex, const char *ptx, size_t len);

/* Puts another PTX text in the place of the registered one, in libraries that are loaded as well: later launches of
 * their kernels run it. For mutation tests of kernels that libopdeck launches. The text must have the same kernels.
 * Returns 0, CUDA_ERROR_INVALID_VALUE for a cubin that is not registered or a kernel that is missing, or what
 * cuLibraryLoadData returns for PTX that it refuses; the old text stays then. */
int opdeck_emu_replace_ptx(const char *sha256_hex, const char *ptx, size_t len);

/* Begins a session on the calling thread: takes the emulator's one lock, registers the tensors and the
 * options for the launches of this thread until opdeck_emu_end. Sessions do not nest. `options` may be NULL
 * (eager, hazards on). Returns 0 or CUDA_ERROR_INVALID_VALUE. Without a session a launch may touch only memory from cuMemAlloc,
 * under the options of opdeck_emu_set_default_options. */
int opdeck_emu_begin(const opdeck_emu_tensor *tensors, uint32_t num_tensors, const opdeck_emu_options *options);
int opdeck_emu_end(opdeck_emu_report *report /* may be NULL */);
int opdeck_emu_set_default_options(const opdeck_emu_options *options);

/* The report of the last session that ended, on whatever thread; zeros before the first. struct_size as for
 * opdeck_emu_end. For tools whose launches go through libopdeck, which ends the session itself. */
int opdeck_emu_last_report(opdeck_emu_report *report);

/* The counters of the last session that ended, on whatever thread: *num_rows is 0 where none were asked for. A launch
 * that failed has those of the clusters that had finished. Valid until the next session ends. */
int opdeck_emu_last_profile(const opdeck_emu_profile_row **rows, uint64_t *num_rows);

/* The unit that an opcode (`add.rn.f32`) mostly occupies, as in opdeck_emu_profile_row; NULL for one that is unknown. */
const char *opdeck_emu_pipe(const char *opcode);

/* Text of the last failure on this thread: kind, kernel, PTX line, warp, what was found. "" when none.
 * Valid until the next call on this thread. */
const char *opdeck_emu_last_error(void);

/* What the emulator decodes, for tables and tests of it. Both write a NUL-terminated text of at most `size` bytes and
 * return how many the whole takes, its NUL included; `answer` may be NULL where size is 0.
 * opdeck_emu_instructions: a line an instruction, its name and its section of the PTX ISA manual, a tab between them.
 * opdeck_emu_probe: decodes `opcode` (name and modifiers) for `target` with operands that fit everywhere. First line
 * "accepted", or "refused" and why, a tab between; then a line a modifier that was looked for and not there: before
 * which of the opcode's modifiers, its name, and "wanted" where it or another wanted one must be there, with tabs
 * between. */
size_t opdeck_emu_instructions(char *answer, size_t size);
size_t opdeck_emu_probe(const char *target, const char *opcode, char *answer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
