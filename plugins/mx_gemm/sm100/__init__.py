# SPDX-License-Identifier: Apache-2.0
"""sm_100a and sm_103a kernels of mx_gemm; kernel.py wires them."""
