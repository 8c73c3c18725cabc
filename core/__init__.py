# SPDX-License-Identifier: Apache-2.0
"""opdeck.core: all of opdeck that is not one operator. `from opdeck.core import registry` is the way in."""

from opdeck.core.registry import registry

__all__ = ["registry"]
