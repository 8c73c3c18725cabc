# SPDX-License-Identifier: Apache-2.0
"""acme_attention: a third party's fusions."""
