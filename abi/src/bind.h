/* SPDX-License-Identifier: Apache-2.0
 *
 * bind.h: a problem bound to the rows of a family: which given argument is which, the dims, the checked layouts.
 */
#ifndef OPDECK_BIND_H
#define OPDECK_BIND_H

#include "driver.h"
#include "opdeck.h"
#include "pack.h"

/* Limits of tables and problems; pack_check.c and bind.c hold them to these. */
enum {
  OD_MAX_ARGS = 32,
  OD_MAX_LEAVES = 16,
  OD_MAX_RANK = 8,
  OD_MAX_FIELDS = 96,
  OD_NAME_POOL_BYTES = 2048
};

/* A tensor's checked type and layout, strides in elements. Where an extent is at most 1, and everywhere in a
 * tensor without elements, the caller's stride means nothing, and a legal one stands in its place. */
typedef struct od_layout {
  int32_t rank;
  int32_t dtype; /* opdeck_pack_dtype */
  int32_t has_pitch;
  int32_t is_transposed; /* the last dim but one is the contiguous one */
  int64_t num_elems;
  int64_t shape[OD_MAX_RANK];
  int64_t strides[OD_MAX_RANK];
} od_layout;

typedef struct od_slot {
  const opdeck_pack_arg *row;
  int32_t given_idx; /* among the arguments (or leaves) of the problem; -1 = left out */
  od_layout layout;  /* of a tensor that is given */
} od_slot;

typedef struct od_binding {
  const opdeck_pack_family *family;
  int32_t num_fields;
  int32_t num_args;
  int32_t num_leaves;
  int32_t is_empty; /* nothing to compute: a rule of family->empty holds */
  uint32_t names_bytes;
  opdeck_field fields[OD_MAX_FIELDS];
  char names[OD_NAME_POOL_BYTES]; /* of fields whose names are composed, "dtype.T"; so a binding must not be copied */
  od_slot args[OD_MAX_ARGS];
  od_slot leaves[OD_MAX_LEAVES];
} od_binding;

/* Checks what does not depend on a family: struct sizes, counts, names, kinds. */
opdeck_status od_check_problem(const opdeck_problem *problem);
/* Canonical name of the problem's fusion, "none" without one. */
const char *od_fusion_name(const opdeck_problem *problem);

opdeck_status od_bind_args(const opdeck_pack_family *family, const opdeck_problem *problem, const od_device *device,
                           od_binding *binding);
/* The extent that a count names over its divisor, rounded up; extents are not negative. */
int64_t od_count_of(const od_binding *binding, const opdeck_pack_count *count);
opdeck_status od_bind_leaves(const opdeck_pack_variant *variant, const opdeck_problem *problem, const od_device *device,
                             od_binding *binding);

/* layout.c */
/* Whether the stride of its rows is a field, which counts even where there is one row: so it is where elements may take
 * less than a byte. The memory of such rows is the tensor's up to their pitch. */
int od_has_pitch(const opdeck_pack_arg *row);
/* Alignment of a tensor's data and strides. */
int32_t od_align_bytes(const opdeck_pack_arg *row, int32_t dtype);
/* Elements from one row to the next, of a layout that has_pitch; from one column to the next of a transposed one. */
int64_t od_pitch_elems(const od_layout *layout);
opdeck_status od_layout_of(const opdeck_pack_arg *row, const opdeck_tensor *tensor, const od_device *device,
                           od_layout *layout);
/* Whether a tensor has the layout (at a launch: of the plan's tensor). */
int od_layout_matches(const od_layout *layout, const opdeck_tensor *tensor);
/* Whether two tensors with elements may share bytes. Packed tensors, each with a part of every row, do not. */
int od_layouts_overlap(const od_layout *a, const void *a_data, const od_layout *b, const void *b_data);
/* Whether the tensor lies where the device's kernels may read it. */
opdeck_status od_check_place(const char *name, const opdeck_tensor *tensor, const od_device *device);
/* Writes "(2, 128, 8, 64)". */
void od_format_extents(const int64_t *extents, int32_t rank, char *text, size_t capacity_bytes);

#endif
