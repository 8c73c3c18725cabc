# SPDX-License-Identifier: Apache-2.0
"""Building blocks that kernels of several families and architectures share."""
