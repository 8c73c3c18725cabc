# SPDX-License-Identifier: Apache-2.0
"""One loaded emulator for the tests of this folder."""

from __future__ import annotations

import pytest
from emulator_driver import Emulator


@pytest.fixture(scope="session")
def emulator() -> Emulator:
    return Emulator()
