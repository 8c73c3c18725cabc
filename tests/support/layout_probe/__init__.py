# SPDX-License-Identifier: Apache-2.0
"""layout_probe: a kernel with the arguments of mx_gemm that tells what it got of them, for tests of the way there."""
