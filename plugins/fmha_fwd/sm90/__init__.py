# SPDX-License-Identifier: Apache-2.0
"""Kernels of fmha_fwd for sm_90a."""
