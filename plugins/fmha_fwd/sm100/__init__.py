# SPDX-License-Identifier: Apache-2.0
"""Fused attention forward for sm_100a and sm_103a."""
