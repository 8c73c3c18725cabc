# SPDX-License-Identifier: Apache-2.0
"""One pack of the kernels that the selected tests launch: compiled by all cores at once, and not one by one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from opdeck.aot import build
from opdeck.core import registry
from opdeck.core.variant import Variant, fusion_key


def wanted_rows(items: list[pytest.Item]) -> tuple[Variant, ...]:
    """The rows that the parameters "arch" and "case" of tests call for, in priority order."""
    wanted, fusions = set(), {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if {"arch", "case"} <= params.keys():
            case = params["case"]
            types, dims = (case.dtype, case.o_dtype.name), (case.shape.d, case.shape.d_v)
            key = fusion_key(case.fusion)
            fusions[key] = case.fusion
            wanted.add(((params["arch"], types, key, case.scheduling.name), dims))
    rows = registry.get("fmha_fwd").variants(tuple(fusions.values()))
    chosen = [
        next((row for row in rows if _traits(row) == traits and _fits(row, dims)), None) for traits, dims in wanted
    ]
    return tuple(row for row in rows if row in chosen)


def _traits(row: Variant) -> tuple[object, ...]:
    schedule, types = row.config.get("schedule", "individual"), (row.dtype, row.symbol_dtypes.get("O"))
    return row.arch, types, fusion_key(row.fusion), schedule


def _fits(row: Variant, dims: tuple[int, int]) -> bool:
    fields = dict(zip(("dqk", "dv"), dims, strict=True))
    return all(rule.failure(fields) is None for rule in row.accept if rule.field in fields)


@pytest.fixture(scope="session")
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of pytest-xdist's processes, which all have the same tests, the first builds it."""
    rows = wanted_rows(request.session.items)
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "kernels_of_tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(rows, {"fmha_fwd": registry.schema("fmha_fwd")}, folder / "pack", "kernels_of_tests")
