# SPDX-License-Identifier: Apache-2.0
"""packs.py: packs of the family "copy", for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from copy_plugin.family import SCHEMA

from opdeck.aot import build
from opdeck.core.variant import Variant

SCHEMAS = {"copy": SCHEMA}


@dataclass(frozen=True)
class Pack:
    """A pack that was built, its rows, and the ids reported as they were compiled."""

    path: Path
    variants: tuple[Variant, ...]
    compiled_ids: tuple[str, ...]


def build_pack(variants: tuple[Variant, ...], out_dir: Path, name: str = "copy") -> Pack:
    compiled = []

    def note(num_done: int, num_all: int, variant_id: str) -> None:
        assert 0 <= num_done <= num_all == len(variants)
        if variant_id:
            compiled.append(variant_id)

    path = build(variants, SCHEMAS, out_dir, name, progress=note)
    return Pack(path, variants, tuple(compiled))
