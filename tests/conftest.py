# SPDX-License-Identifier: Apache-2.0
"""What all tests share: no setting of the developer's shell reaches them."""

from __future__ import annotations

import os

import pytest

# The cache is kept: it is keyed by content, and spares compiling every kernel anew.
_KEPT = {"OPDECK_CACHE_DIR", "OPDECK_CC", "OPDECK_EMULATOR_LIB"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="Also what is marked full: tables of cases to the last row.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if item.get_closest_marker("full") is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.get_closest_marker("full") is None]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPDECK_") and name not in _KEPT:
            monkeypatch.delenv(name)
