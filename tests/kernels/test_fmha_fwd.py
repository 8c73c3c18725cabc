# SPDX-License-Identifier: Apache-2.0
"""The case table of fmha_fwd on every runner: the reference, the emulator under several schedules, a GPU where one is.

On the emulator the multiply-accumulates that the kernel did must be those of the tiles that its mask visits: so the
reference cannot be mistaken for the kernel, and no tile is visited for nothing.
"""

from __future__ import annotations

import functools
import itertools
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opdeck.core import dtypes, registry
from opdeck.core.arch import GPU_ARCHS
from opdeck.core.devices import Device, open_device
from opdeck.core.errors import DriverError
from opdeck.core.transfer import to_memory, to_numpy
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import case_table, cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Inputs, Shape, View
from opdeck.plugins.fmha_fwd.variants import ORDER_GROUP_SEQS

CASES = list(case_table.cases())
BLACKWELL_CASES = [
    *case_table.varlen_cases(),
    *case_table.head_dim_cases(),
    *case_table.persistent_cases(),
    *case_table.paired_cases(),
    *case_table.paged_cases(),
    *case_table.fp8_cases(),
]
FULL_CASES = [*case_table.full_cases(), *case_table.full_schedule_cases()]
# Too many CTAs for an emulator: batch * heads above 65535, the limit of grid dims y and z.
GPU_CASES = [Case(Shape(65537, 1, 1, 1, 1, 64)), Case(Shape(1, 71280, 71280, 3, 3, 128), case_table.BOTTOM_RIGHT)]
EXAMPLE_77 = frozenset(case.id for case in case_table.example_77())
# On Blackwell the rows of example 77 run eagerly and under all of these, other cases under one of them, in turn.
OTHER_SCHEDULES = ("lazy", "random:1", "random:2")
# Each row that only Blackwell has runs under one of these an arch.
BLACKWELL_SCHEDULES = ("eager", "lazy", "random:1")


def run_case(case: Case, device: Device) -> None:
    """Runs a case into poisoned outputs and compares them with the oracle."""
    inputs = cases.make_inputs(case, seed=7)
    buffers = {name: placed(x, device) for name, x in inputs.arguments().items()}
    fusion = case.sampled_fusion
    if fusion is not None:
        fusion = fusion.with_leaves([placed(leaf.value, device) for leaf in fusion.leaves()])
    operator = registry.get("fmha_fwd")
    problem = operator.problem(**buffers, mask=fusion, device=device)
    accepting = (row.variant for row in operator.explain(problem) if not row.reasons)
    scheduling = case.scheduling.arguments(accepting) if device.target.arch != "cpu" else {}
    operator(**buffers, mask=fusion, device=device, **scheduling)
    o, lse = to_numpy(buffers["out"]), to_numpy(buffers["lse"])
    is_packed = o.ndim < inputs.o.ndim
    check_results(case, inputs, o[None] if is_packed else o, lse[None] if is_packed else lse)


def placed(value: object, device: Device) -> object:
    """An array in the device's memory; what is none as it is."""
    return to_memory(value, device.memory) if isinstance(value, np.ndarray) else value


@functools.lru_cache(maxsize=4)
def oracle(case: Case) -> tuple[np.ndarray, np.ndarray]:
    inputs = cases.make_inputs(case, seed=7)
    return reference.forward(inputs.q, inputs.k, inputs.v, case.sampled_fusion, case.shape.d**-0.5, inputs.options)


def check_results(case: Case, inputs: Inputs, o: np.ndarray, lse: np.ndarray) -> None:
    tolerance, lse_tolerance = case.tolerances
    want_o, want_lse = oracle(case)
    is_used = ~np.isnan(want_lse)  # (B, H, S): the row is in a sequence
    by_head = o.swapaxes(1, 2)
    assert np.isnan(by_head[~is_used].astype(np.float32)).all(), "O: a row that is in no sequence was written"
    assert np.isnan(lse[~is_used]).all(), "LSE: a row that is in no sequence was written"
    o_errors = compare(by_head[is_used], want_o.swapaxes(1, 2)[is_used])
    lse_errors = compare(lse[is_used], want_lse[is_used])
    assert o_errors.within(tolerance), f"O: {o_errors}, want at most {tolerance}"
    assert lse_errors.within(lse_tolerance), f"LSE: {lse_errors}, want at most {lse_tolerance}"
    hidden = np.isneginf(want_lse)
    assert np.array_equal(np.isneginf(lse), hidden)
    assert (by_head[hidden] == 0).all()
    if case.view is View.PADDED and np.shares_memory(o, inputs.o):
        buffer = inputs.o.base
        num_poisoned = np.isnan(buffer.astype(np.float32)).sum()
        assert num_poisoned == buffer.size - o.size, "something was written between the rows of out"


@pytest.mark.parametrize("case", [*CASES, *BLACKWELL_CASES], ids=lambda case: case.id)
def test_reference(case: Case) -> None:
    run_case(case, open_device("cpu"))


def emulator_runs() -> list[object]:
    runs = []
    for arch_idx, arch in enumerate(GPU_ARCHS):
        for case_idx, case in enumerate(CASES):
            others = OTHER_SCHEDULES
            if case.id not in EXAMPLE_77 or arch.name == "sm_90a":
                others = (OTHER_SCHEDULES[case_idx % len(OTHER_SCHEDULES)],)
            runs += [
                pytest.param(arch.name, schedule, case, id=f"{arch.name}-{schedule}-{case.id}")
                for schedule in ("eager", *others)
            ]
        for case_idx, case in enumerate(BLACKWELL_CASES if arch.name != "sm_90a" else ()):
            schedule = BLACKWELL_SCHEDULES[(case_idx + arch_idx) % len(BLACKWELL_SCHEDULES)]
            runs.append(pytest.param(arch.name, schedule, case, id=f"{arch.name}-{schedule}-{case.id}"))
        for schedule, case in itertools.product(BLACKWELL_SCHEDULES, FULL_CASES if arch.name != "sm_90a" else ()):
            run_id = f"full-{arch.name}-{schedule}-{case.id}"
            runs.append(pytest.param(arch.name, schedule, case, id=run_id, marks=pytest.mark.full))
    return runs


@pytest.mark.parametrize(("arch", "schedule", "case"), emulator_runs())
def test_emulator(arch: str, schedule: str, case: Case, pack: Path) -> None:
    device = open_device(f"emulator:{arch}", schedule=schedule, hazards="strict")
    device.load_pack(pack)
    run_case(case, device)
    last = registry.get("fmha_fwd").last_launch
    if 0 in (case.shape.b, case.shape.sq):
        assert last is None
        return
    assert last is not None
    assert last.variant.arch == arch
    report = device.last_report()
    assert report is not None
    assert len(report.cubin_sha256) == 64
    assert report.cubin_sha256 == device.cubin_sha256(last.variant)
    assert report.num_ctas > 0
    assert last.variant.config.get("schedule", "individual") == case.scheduling.name
    num_sorting = -(-(len(case.sequences()) + 1) // ORDER_GROUP_SEQS) if report.num_launches > 1 else 0
    assert (report.num_launches > 1) == (case.scheduling.name != "individual" and bool(case.lengths.arrays()))
    assert report.num_ctas - num_sorting <= (case.scheduling.max_ctas or report.num_ctas)
    assert report.warp_instructions > 0
    assert report.mma_macs == cases.expected_macs(case, replace(last.variant, fusion=case.sampled_fusion))


SMALL = Case(Shape(2, 4, 2, 150, 200, 64), case_table.BOTTOM_RIGHT)
ARCHS = pytest.mark.parametrize("arch", [arch.name for arch in GPU_ARCHS])


def small_case_on(arch: str, pack: Path) -> tuple[Device, Inputs]:
    device = open_device(f"emulator:{arch}", hazards="strict")
    device.load_pack(pack)
    return device, cases.make_inputs(SMALL, seed=7)


@ARCHS
@pytest.mark.parametrize("case", [SMALL], ids=lambda case: case.id)
def test_lse_may_be_unwanted_and_the_scale_given(arch: str, case: Case, pack: Path) -> None:
    device, inputs = small_case_on(arch, pack)
    o = registry.get("fmha_fwd")(
        inputs.q, inputs.k, inputs.v, mask=case.fusion, softmax_scale=0.3, out=inputs.o, device=device
    )
    want, _ = reference.forward(inputs.q, inputs.k, inputs.v, case.fusion, softmax_scale=0.3)
    tolerance = dtypes.dtype(case.dtype).tolerance
    assert tolerance is not None
    assert compare(o, want).within(tolerance)


@ARCHS
@pytest.mark.parametrize("case", [SMALL], ids=lambda case: case.id)
def test_the_same_call_gives_the_same_bits(arch: str, case: Case, pack: Path) -> None:
    """Under every schedule, from two threads at once, on outputs that the operator allocates."""
    got = []

    def run(schedule: str) -> None:
        device = open_device(f"emulator:{arch}", schedule=schedule, hazards="strict")
        device.load_pack(pack)
        inputs = cases.make_inputs(case, seed=7)
        o, lse = registry.get("fmha_fwd")(
            inputs.q, inputs.k, inputs.v, mask=case.fusion, return_lse=True, device=device
        )
        got.append(o.tobytes() + lse.tobytes())

    run("eager")
    threads = [threading.Thread(target=run, args=(schedule,)) for schedule in ("eager", *OTHER_SCHEDULES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 + len(threads)
    assert len(set(got)) == 1


@pytest.fixture(scope="session")
def gpu() -> Device:
    try:
        device = open_device("cuda:0")
    except DriverError as error:
        pytest.skip(f"no GPU: {error}")
    pytest.importorskip("torch", reason="arrays on a GPU need torch")
    return device


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *BLACKWELL_CASES, *GPU_CASES], ids=lambda case: case.id)
def test_gpu(case: Case, gpu: Device) -> None:
    if case in BLACKWELL_CASES and gpu.target.arch == "sm_90a":
        pytest.skip("sm_90a has no kernels for packed sequences, nor for these head dims")
    run_case(case, gpu)
