# SPDX-License-Identifier: Apache-2.0
"""The kernel of mx_quantize for sm_100a and sm_103a."""
