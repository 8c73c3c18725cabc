# SPDX-License-Identifier: Apache-2.0
"""opdeck.core.profile: what the emulator counted in a launch, by warp role, and what that bounds. Imports no DSL."""

from opdeck.core.profile.counts import OpCounts, Profile

__all__ = ["OpCounts", "Profile"]
