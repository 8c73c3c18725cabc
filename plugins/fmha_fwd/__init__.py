# SPDX-License-Identifier: Apache-2.0
"""opdeck.plugins.fmha_fwd: attention forward, O = softmax(mask(Q K^T * softmax_scale)) V."""
