# SPDX-License-Identifier: Apache-2.0
"""opdeck.plugins.mx_quantize: numbers to block-scaled tensors, where they are."""
