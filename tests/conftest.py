# SPDX-License-Identifier: Apache-2.0
"""What all tests share: no setting of the developer's shell reaches them."""

from __future__ import annotations

import os

import pytest

# The cache is kept: it is keyed by content, and spares compiling every kernel anew.
_KEPT = {"OPDECK_CACHE_DIR", "OPDECK_CC", "OPDECK_EMULATOR_LIB"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPDECK_") and name not in _KEPT:
            monkeypatch.delenv(name)
