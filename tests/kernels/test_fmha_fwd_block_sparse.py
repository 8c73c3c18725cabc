# SPDX-License-Identifier: Apache-2.0
"""Block-sparse masks in the kernels: equal lengths, packed sequences, used rows, pages, K tiles of 64, every schedule.

The multiply-accumulates must be those of the listed tiles, and of no others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from opdeck.core import registry
from opdeck.core.devices import Device, open_device
from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import Alibi, AttentionFusion, BlockSparse, Causal, Extent, Window, block_sparse, mask_mod
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Inputs, Lengths, Scheduling, Shape

SCHEDULES = ("eager", "lazy", "random:3")


def checkers(at: Any, by_batch: Any) -> Any:
    """Tiles by turns, not the same for all heads; and a column of tiles that all see in part. by_batch: 1 when the next
    sequence has the others, 0 when it has the same."""
    return ((((at.q >> 7) ^ (at.k >> 7) ^ at.head ^ (at.batch * by_batch)) & 1) == 0) | (at.k < 64)


def listed(case: Case, mask: Any) -> AttentionFusion:
    """The mask with lists of the case's sequences."""
    lengths = np.array(case.sequences())
    return block_sparse(mask, Extent(len(lengths), case.shape.hq, *lengths.max(axis=0).tolist(), lengths))


def shared(case: Case, mask: Any) -> AttentionFusion:
    """The mask with one list for all sequences, that of the longest."""
    return block_sparse(mask, Extent(1, case.shape.hq, *np.array(case.sequences()).max(axis=0).tolist()))


# Some end in the first half of a tile of 128 keys, some in the second; some have no query, or no key.
Q_ROWS, K_ROWS = (130, 0, 400, 1, 300), (257, 70, 600, 140, 0)
PACKED, PACKED_LENGTHS = Shape(1, 2, 1, sum(Q_ROWS), sum(K_ROWS), 64), Lengths(q=Q_ROWS, k=K_ROWS)
USED, USED_LENGTHS = Shape(3, 2, 1, 500, 1024, 64), Lengths(used_q=(300, 500, 100), used_k=(600, 290, 1000))
PAGES = replace(USED_LENGTHS, page_rows=128)
EQUAL = Shape(1, 2, 1, 700, 1000, 64)
PERSISTENT, DYNAMIC = Scheduling("persistent", 3), Scheduling("dynamic")


@dataclass(frozen=True)
class Run:
    """A case, the mask, and whose lists it has."""

    arch: str
    case: Case
    mask: Any
    lists: Any = listed

    @property
    def fusion(self) -> AttentionFusion:
        made: AttentionFusion = self.lists(self.case, self.mask)
        return made


def run(arch: str, dtype: str, shape: Shape, lengths: Lengths = Lengths(), **options: Any) -> Run:  # noqa: B008
    case = Case(shape, None, dtype, lengths=lengths, scheduling=options.pop("scheduling", Scheduling()))
    return Run(arch, case, options.pop("mask", mask_mod(checkers, (1,))), **options)


def of_dims(shape: Shape, d: int, dv: int | None = None) -> Shape:
    return replace(shape, d=d, dv=dv)


RUNS = {
    "equal": run("sm_100a", "fp16", EQUAL),
    "packed": run("sm_100a", "fp16", PACKED, PACKED_LENGTHS),
    "used": run("sm_100a", "fp16", USED, USED_LENGTHS),
    "pages": run("sm_100a", "fp16", USED, PAGES),
    "one_list_for_all": run("sm_100a", "fp16", USED, PAGES, mask=mask_mod(checkers, (0,)), lists=shared),
    "one_list_for_all_packed": run(
        "sm_100a", "fp16", PACKED, PACKED_LENGTHS, mask=mask_mod(checkers, (0,)), lists=shared
    ),
    "k_tiles_of_64": run("sm_103a", "bf16", of_dims(EQUAL, 256)),
    "k_tiles_of_64_packed": run("sm_103a", "bf16", of_dims(PACKED, 256), PACKED_LENGTHS),
    "k_tiles_of_64_in_pages": run("sm_103a", "bf16", of_dims(USED, 256), PAGES),
    "persistent": run("sm_100a", "fp16", PACKED, PACKED_LENGTHS, scheduling=PERSISTENT),
}
FULL_RUNS = {
    "persistent_equal": run("sm_100a", "fp16", EQUAL, scheduling=PERSISTENT),
    "persistent_k_tiles_of_64": run("sm_103a", "fp16", of_dims(PACKED, 256), PACKED_LENGTHS, scheduling=PERSISTENT),
    "dynamic": run("sm_103a", "bf16", PACKED, PACKED_LENGTHS, scheduling=DYNAMIC),
    "dynamic_pages": run("sm_103a", "bf16", USED, PAGES, scheduling=DYNAMIC),
    "values_of_128": run("sm_100a", "fp16", of_dims(PACKED, 256, 128), PACKED_LENGTHS),
    "wide_keys": run("sm_100a", "bf16", of_dims(USED, 192, 128), PAGES),
    "elements_of_8_bits": run("sm_103a", "fp8_e4m3", of_dims(PACKED, 256), PACKED_LENGTHS),
    "pages_of_256": run("sm_100a", "bf16", of_dims(USED, 256), replace(USED_LENGTHS, page_rows=256)),
}
ALL_RUNS = [
    *(pytest.param(row, id=name) for name, row in RUNS.items()),
    *(pytest.param(row, id=name, marks=pytest.mark.full) for name, row in FULL_RUNS.items()),
]


def launch(case: Case, fusion: AttentionFusion, device: Device, inputs: Inputs) -> None:
    operator = registry.get("fmha_fwd")
    call = {**inputs.arguments(), "mask": fusion, "device": device}
    problem = operator.problem(**call)
    accepting = [row for row in operator.variants((problem.fusion,)) if row.accepts(problem)]
    operator(**call, **case.scheduling.arguments(accepting))


def inputs_of(case: Case) -> Inputs:
    return cases.make_inputs(case, seed=5)


def check(case: Case, fusion: AttentionFusion, device: Device, inputs: Inputs | None = None) -> None:
    """Runs it, compares with the oracle and counts."""
    inputs = inputs_of(case) if inputs is None else inputs
    launch(case, fusion, device, inputs)
    want_o, want_lse = reference.forward(inputs.q, inputs.k, inputs.v, fusion, case.shape.d**-0.5, inputs.options)
    is_used = ~np.isnan(want_lse)
    assert np.isnan(inputs.lse[~is_used]).all()
    o, want_o = (array.swapaxes(1, 2) for array in (inputs.o, want_o))
    o_tolerance, lse_tolerance = case.tolerances
    assert compare(o[is_used], want_o[is_used]).within(o_tolerance)
    assert compare(inputs.lse[is_used], want_lse[is_used]).within(lse_tolerance)
    assert np.array_equal(np.isneginf(inputs.lse), np.isneginf(want_lse))
    last, report = registry.get("fmha_fwd").last_launch, device.last_report()
    assert last is not None
    assert report is not None
    assert last.variant.config["schedule"] == case.scheduling.name
    assert report.mma_macs == cases.expected_macs(case, replace(last.variant, fusion=fusion))


@pytest.mark.parametrize("row", ALL_RUNS)
def test_block_sparse(row: Run) -> None:
    for schedule in SCHEDULES:
        check(row.case, row.fusion, open_device(f"emulator:{row.arch}", schedule, "strict"))


def test_with_score_functions_and_other_masks() -> None:
    case = Case(EQUAL, None, "bf16")
    lists = block_sparse(Window(60, 90), Extent(1, 1, EQUAL.sq, EQUAL.sk))
    fusion = Alibi(np.array([[0.01, 0.5]], np.float32)) & lists & Causal()
    check(case, fusion, open_device("emulator:sm_103a", "random:3", "strict"))


def test_pages_that_are_not_in_use_are_not_looked_up() -> None:
    """Not for listed tiles past a sequence's end either: here the table's other entries are pages of NaN."""
    row = RUNS["one_list_for_all"]
    inputs, used_k = inputs_of(row.case), row.case.lengths.used_k
    assert used_k is not None
    table, num_pages = inputs.lengths["block_table"], len(inputs.k)
    num_used = [-(-rows // 128) for rows in used_k]
    in_use = {int(page) for pages, count in zip(table, num_used, strict=True) for page in pages[:count]}
    for pages, count in zip(table, num_used, strict=True):
        pages[count:] = min(set(range(num_pages)) - in_use)
    check(row.case, row.fusion, open_device(f"emulator:{row.arch}", "random:3", "strict"), inputs)


@pytest.mark.parametrize("name", ["packed", "pages", "k_tiles_of_64_in_pages", "persistent"])
def test_whatever_lists_hold_a_kernel_ends(name: str) -> None:
    """And reads nothing that it may not: neither a page that is not in use, nor beyond a tensor."""
    row, rng = RUNS[name], np.random.default_rng(3)
    lists = row.fusion
    assert isinstance(lists, BlockSparse)
    for low, high in ((-2, 12), (-(1 << 31), (1 << 31) - 1)):
        tiles, ranges = (rng.integers(low, high, array.shape, np.int32) for array in (lists.tiles, lists.ranges))
        device = open_device(f"emulator:{row.arch}", "lazy", "strict")
        launch(row.case, lists.replace(tiles=tiles, ranges=ranges), device, inputs_of(row.case))


def test_lists_of_another_library() -> None:
    torch = pytest.importorskip("torch")
    row, device = RUNS["packed"], open_device("emulator:sm_100a", "lazy", "strict")
    (of_numpy, of_torch) = (inputs_of(row.case) for _ in range(2))
    launch(row.case, row.fusion, device, of_numpy)
    launch(row.case, row.fusion.with_arrays(torch.from_numpy), device, of_torch)
    assert of_torch.o.tobytes() == of_numpy.o.tobytes()


def test_lists_of_other_lengths_are_refused() -> None:
    """Where Python knows them: those of packed sequences and used rows are on the device."""
    case, lists = (
        Case(Shape(1, 2, 1, 200, 300, 64), None, "fp16"),
        block_sparse(Window(60, 90), Extent(1, 2, 700, 1000)),
    )
    with pytest.raises(ArgumentError, match="of 700 queries and 1000 keys, want one for the call's 200 and 300"):
        launch(case, lists, open_device("emulator:sm_100a"), inputs_of(case))
