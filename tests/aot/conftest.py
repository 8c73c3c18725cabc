# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the ahead-of-time tests: a cache that is not the user's, and one pack of the family "copy"."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from copy_plugin.family import NUM_COLS, Affine, rows
from packs import Pack, build_pack

from opdeck.core.variant import Variant


@pytest.fixture(scope="session")
def all_variants() -> tuple[Variant, ...]:
    return rows([None, Affine(np.zeros(NUM_COLS, np.float32))])


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(shared_cache))


@pytest.fixture(scope="session")
def copy_pack(all_variants: tuple[Variant, ...], shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPDECK_CACHE_DIR", str(shared_cache))
        return build_pack(all_variants, tmp_path_factory.mktemp("pack"))
