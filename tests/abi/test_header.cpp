// SPDX-License-Identifier: Apache-2.0
//
// test_header.cpp: the public headers are C++ too, and tensors are laid out as DLPack's DLTensor on 64-bit hosts.
#include "opdeck.h"
#include "opdeck_rules.h"

#include <cstddef>

static_assert(sizeof(opdeck_tensor) == 48, "DLTensor");
static_assert(offsetof(opdeck_tensor, device_type) == 8 && offsetof(opdeck_tensor, ndim) == 16, "DLTensor");
static_assert(offsetof(opdeck_tensor, dtype_code) == 20 && offsetof(opdeck_tensor, shape) == 24, "DLTensor");
static_assert(offsetof(opdeck_tensor, byte_offset) == 40, "DLTensor");
static_assert(sizeof(opdeck_arg) == 24 && sizeof(opdeck_problem) == 40, "the sizes of version 0.1");

int main() { return opdeck_version() == (OPDECK_VERSION_MAJOR << 16 | OPDECK_VERSION_MINOR) ? 0 : 1; }
