# SPDX-License-Identifier: Apache-2.0
"""The case table of mx_gemm on the reference and on the emulator under several schedules.

On the emulator the multiply-accumulates that the kernel did must be those of its tiles: so the reference cannot be
mistaken for the kernel, and no step of K is taken for nothing.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opdeck.aot import build
from opdeck.core import registry
from opdeck.core.devices import Device, open_device
from opdeck.core.mx import exact_values
from opdeck.core.operator import Operator
from opdeck.core.variant import Variant
from opdeck.plugins.mx_gemm import cases, plugin, reference, variants
from opdeck.plugins.mx_gemm.cases import Case, Inputs, Shape, Values
from opdeck.plugins.mx_gemm.reference import Epilogue

CASES = list(cases.cases())
# sm_103a runs the same sources; these show that it does.
SM103_CASES = [
    case for case in CASES if case.shape == Shape(200, 136, 160) or case.tile == "256x256_2x2" or case.shape.k > 768
]
OTHER_SCHEDULES = ("lazy", "random:1", "random:2")
FULL_CASES = [*CASES, *cases.every_format()]


@functools.cache
def operator_of(tile: str | None) -> Operator:
    """mx_gemm with all its kernels, or with those of one tile."""
    if tile is None:
        return registry.get("mx_gemm")
    return Operator(replace(plugin.MX_GEMM, rows=functools.partial(variants.rows_on_tile, tile)))


def run_case(case: Case, inputs: Inputs, device: Device) -> None:
    """Runs a case into a poisoned output and compares it with the oracle."""
    scalars = {"alpha": inputs.alpha, "beta": inputs.beta, "max_ctas": case.max_ctas}
    operator_of(case.tile)(inputs.a, inputs.b, **inputs.terms, **scalars, out=inputs.d, device=device)
    a, b = exact_values(inputs.a), exact_values(inputs.b)
    epilogue = Epilogue(inputs.alpha, inputs.beta, inputs.terms.get("c"), inputs.terms.get("bias"))
    want = reference.gemm(a, b, epilogue)
    got = inputs.d.astype(np.float64)
    if case.values is Values.INTEGERS:
        np.testing.assert_array_equal(got, want)
        return
    assert np.isfinite(got).all()
    excess = np.abs(got - want) / reference.error_bounds(a, b, epilogue, inputs.d)
    assert excess.max() <= 1, f"{excess.max()} times the bound at {np.unravel_index(excess.argmax(), excess.shape)}"


def rows_of(arch: str, wanted: list[Case]) -> list[Variant]:
    """The rows that the cases are for, without rules on sizes where a case names the tile."""
    found = {}
    for case in sorted(wanted, key=lambda case: case.tile is not None):
        gemm = operator_of(case.tile)
        inputs = cases.make_inputs(case, seed=7)
        terms = {**inputs.terms, "beta": inputs.beta, "out": inputs.d}
        row = gemm.select(gemm.problem(inputs.a, inputs.b, **terms, device=f"emulator:{arch}"))
        found[row.id] = row
    return list(found.values())


@pytest.fixture(scope="module")
def mx_pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of the kernels that the selected tests launch."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    selected = [(param["arch"], param["mx_case"]) for param in params if "mx_case" in param]
    archs = dict.fromkeys(arch for arch, _ in selected)
    rows = [row for arch in archs for row in rows_of(arch, [case for of_arch, case in selected if of_arch == arch])]
    return build(
        tuple(rows), {"mx_gemm": registry.schema("mx_gemm")}, tmp_path_factory.mktemp("mx_pack"), "mx_gemm_of_tests"
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_reference(case: Case) -> None:
    run_case(case, cases.make_inputs(case, seed=7), open_device("cpu"))


def emulator_runs() -> list[object]:
    runs, usual = [], set()
    for arch, wanted in (("sm_100a", CASES), ("sm_103a", SM103_CASES)):
        for case_idx, case in enumerate(wanted):
            for schedule in ("eager", OTHER_SCHEDULES[case_idx % len(OTHER_SCHEDULES)]):
                usual.add((arch, schedule, case))
                runs.append(pytest.param(arch, schedule, case, id=f"{arch}-{schedule}-{case.id}"))
    for run in itertools.product(("sm_100a", "sm_103a"), ("eager", *OTHER_SCHEDULES), FULL_CASES):
        if run not in usual:
            runs.append(pytest.param(*run, id=f"full-{run[0]}-{run[1]}-{run[2].id}", marks=pytest.mark.full))
    return runs


@pytest.mark.parametrize(("arch", "schedule", "mx_case"), emulator_runs())
def test_emulator(arch: str, schedule: str, mx_case: Case, mx_pack: Path) -> None:
    device = open_device(f"emulator:{arch}", schedule=schedule, hazards="strict")
    device.load_pack(mx_pack)
    run_case(mx_case, cases.make_inputs(mx_case, seed=7), device)
    last, report = operator_of(mx_case.tile).last_launch, device.last_report()
    assert last is not None
    assert report is not None
    assert last.variant.arch == arch
    assert report.cubin_sha256 == device.cubin_sha256(last.variant)
    assert report.mma_macs == cases.expected_macs(mx_case.shape, last.variant)
