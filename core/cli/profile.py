# SPDX-License-Identifier: Apache-2.0
"""profile.py: `opdeck run FAMILY --profile`.

Who calls it: the commands of families.
"""

from __future__ import annotations

from typing import Annotated

import typer

from opdeck.core.cli.text import print_table
from opdeck.core.profile import Profile
from opdeck.core.profile.recorder import declared_roles
from opdeck.core.profile.report import Work, report
from opdeck.core.variant import Variant

ProfileOption = Annotated[bool, typer.Option("--profile", help="Instructions, bytes and bounds by role; emulator.")]


def print_profile(variant: Variant, profile: Profile, work: Work) -> None:
    """Prints what a launch of the variant cost, by the roles that its kernel declares."""
    for item in report(profile, profile.roles(declared_roles(variant)), work):
        if isinstance(item, str):
            print(item)
        else:
            print_table(*item)
