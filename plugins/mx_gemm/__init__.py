# SPDX-License-Identifier: Apache-2.0
"""opdeck.plugins.mx_gemm: block-scaled GEMM."""
