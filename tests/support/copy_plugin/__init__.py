# SPDX-License-Identifier: Apache-2.0
"""copy_plugin: a third party's plugin, as small as one can be, for tests of everything around kernels."""
