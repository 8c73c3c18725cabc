# SPDX-License-Identifier: Apache-2.0
"""case_table.py: the rows of cases of fmha_fwd.

Who calls it: tests/kernels, tests/mutation.
Sources: the test matrix of CUTLASS example 77 (its one-sequence varlen rows with fixed lengths too), faults that users
reported in other libraries (empty K, fully masked rows, packed and transposed views, NaN in unused rows).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from opdeck.core.fusion import AttentionFusion, Bias, Causal, LeafKind
from opdeck.plugins.fmha_fwd.cases import Case, Lengths, Scaled, Scheduling, Shape, Values, View

DTYPES = ("bf16", "fp16")

BOTTOM_RIGHT, TOP_LEFT = Causal(), Causal(align="top_left")
MASKS: tuple[AttentionFusion | None, ...] = (None, BOTTOM_RIGHT, TOP_LEFT)

# (shape, masks), each for every dtype.
_EXAMPLE_77 = (
    (Shape(1, 4, 4, 512, 512, 128), (None, TOP_LEFT)),
    (Shape(2, 4, 4, 512, 512, 64), (None, TOP_LEFT)),
    (Shape(2, 4, 2, 512, 512, 64), (None, TOP_LEFT)),
    (Shape(1, 1, 1, 1013, 1024, 128), (BOTTOM_RIGHT,)),
    (Shape(1, 4, 4, 128, 128, 128), MASKS),
    (Shape(1, 4, 4, 17, 257, 128), MASKS),
    (Shape(1, 4, 4, 17, 25, 128), MASKS),
    (Shape(1, 2, 2, 1024, 1035, 128), (BOTTOM_RIGHT,)),
    (Shape(1, 8, 4, 128, 128, 64), (TOP_LEFT,)),
    (Shape(1, 8, 1, 256, 512, 128), (None, BOTTOM_RIGHT)),
)
_EDGES = (
    (Shape(1, 1, 1, 1, 1, 128), MASKS),
    (Shape(2, 3, 1, 129, 1, 64), (None, BOTTOM_RIGHT)),
    (Shape(1, 2, 1, 257, 127, 64), MASKS),  # more queries than keys: bottom_right hides whole rows and tiles
    (Shape(1, 1, 1, 400, 140, 128), (BOTTOM_RIGHT,)),
    (Shape(3, 2, 2, 130, 385, 64), (None, TOP_LEFT)),
    (Shape(2, 2, 1, 64, 0, 64), (None, BOTTOM_RIGHT)),  # reported: LSE = +inf where there are no keys
    (Shape(2, 2, 1, 0, 64, 128), (None,)),
    (Shape(0, 2, 1, 16, 16, 64), (None,)),
    (Shape(1, 4, 4, 64, 64, 128), (None,)),  # reported: wrong with fewer keys than a tile
)
_VALUES = tuple(
    (Shape(1, 4, 2, 200, 333, d), values, mask)
    for d, values, mask in itertools.product((64, 128), list(Values)[1:], (None, BOTTOM_RIGHT))
)
_NEAR_VIEWS = (View.PACKED_QKV, View.PADDED, View.SEQUENCE_FIRST, View.HEAD_FIRST)
_VIEWS = tuple(
    (Shape(2, 4, 2, 160, 160, d), view, mask)
    for d, view, mask in itertools.product((64, 128), _NEAR_VIEWS, (None, BOTTOM_RIGHT))
)


def example_77() -> Iterator[Case]:
    """The rows of example 77, for every dtype."""
    for dtype, (shape, masks) in itertools.product(DTYPES, _EXAMPLE_77):
        yield from (Case(shape, mask, dtype) for mask in masks)


def cases() -> Iterator[Case]:
    """Every row, for every dtype."""
    yield from example_77()
    for dtype in DTYPES:
        for shape, masks in _EDGES:
            yield from (Case(shape, mask, dtype) for mask in masks)
        yield from (Case(shape, mask, dtype, values=values) for shape, values, mask in _VALUES)
        yield from (Case(shape, mask, dtype, view=view) for shape, view, mask in _VIEWS)
    yield Case(Shape(2, 2, 1, 130, 140, 64), BOTTOM_RIGHT, view=View.FAR)
    yield Case(Shape(1, 2, 1, 130, 140, 64), BOTTOM_RIGHT, scaled=Scaled.BY_NUMBERS)


def _packed(
    hq: int, hk: int, d: int, q: tuple[int, ...], k: tuple[int, ...], spare_rows: int = 0, **used: Any
) -> tuple[Shape, Lengths]:
    """Sequences of q and k rows; behind the last, the tensors have spare rows that no sequence has."""
    return Shape(1, hq, hk, sum(q) + spare_rows, sum(k) + spare_rows, d), Lengths(q, k, **used)


# Rows varlen 00..14 of example 77, for both of its masks.
_EXAMPLE_77_VARLEN = (
    _packed(8, 4, 128, (128,), (128,)),
    _packed(4, 4, 64, (128,), (128,)),
    _packed(4, 2, 128, (128,), (128,)),
    _packed(8, 8, 128, (256, 256), (512, 512)),
    _packed(8, 4, 128, (256, 256), (512, 512)),
    _packed(8, 1, 128, (256, 256), (512, 512)),
    _packed(8, 2, 128, (256, 256, 256, 256), (256, 768, 512, 512)),
    _packed(8, 2, 128, (256, 256, 256, 256), (256, 0, 1280, 512)),
    _packed(8, 2, 128, (256, 0, 512, 256), (256, 256, 1024, 512)),
    _packed(16, 16, 64, (100, 300), (100, 300)),
    _packed(4, 4, 64, (3, 2), (2, 5)),
    _packed(4, 2, 64, (17, 10), (13, 10)),
    _packed(4, 4, 64, (177, 845), (257, 766)),
    _packed(4, 2, 64, (177, 366, 479), (257, 0, 766)),
    _packed(4, 4, 64, (1,), (1,)),
)
# Rows 10..13 of its MLA forward program, which has the others as they are.
_EXAMPLE_77_MLA_VARLEN = (
    _packed(4, 4, 192, (2, 3), (2, 5)),
    _packed(4, 2, 192, (11, 10), (13, 10)),
    _packed(4, 4, 192, (177, 766), (257, 845)),
    _packed(4, 2, 192, (177, 0, 479), (257, 0, 766)),
)
# Rows 15..22.
_EXAMPLE_77_ONE_SEQUENCE = (
    *((TOP_LEFT, sq, sk) for sq, sk in ((128, 128), (17, 257), (17, 25))),
    *((BOTTOM_RIGHT, sq, sk) for sq, sk in ((128, 128), (17, 257), (17, 25), (1013, 1024), (1024, 1035))),
)
_MANY = tuple(3 * i % 7 for i in range(75))  # two steps of the search for a sequence; every 7th is empty
_MOSTLY_EMPTY = tuple(300 * (i in (0, 700, 701, 1099)) for i in range(1100))  # three steps
_LONG = tuple(np.diff((0, 1274, 2568, 3915, 5194, 6498, 7839, 8192)).tolist())
_LENGTHS = (
    (*_packed(2, 1, 64, (130, 0, 300, 1), (257, 70, 0, 129), spare_rows=9), MASKS),
    (*_packed(1, 1, 64, _MANY, _MANY[::-1]), (None, TOP_LEFT)),
    (*_packed(1, 1, 64, _MOSTLY_EMPTY, _MOSTLY_EMPTY), (BOTTOM_RIGHT,)),
    (*_packed(1, 1, 64, _LONG, _LONG), (BOTTOM_RIGHT,)),  # reported: wrong
    (*_packed(1, 1, 64, (1, 1, 1), (76, 34, 146)), (BOTTOM_RIGHT,)),
    (*_packed(1, 1, 64, (76, 34, 146), (1, 1, 1)), (BOTTOM_RIGHT,)),  # most rows see no key
    (*_packed(2, 2, 128, (), (), spare_rows=20), (None,)),
    (*_packed(2, 1, 128, (300, 140), (260, 390), used_q=(257, 0), used_k=(131, 390)), MASKS),
    # Reported: NaN behind the used keys reaches results.
    (Shape(4, 8, 8, 1, 128, 64), Lengths(used_k=(32, 64, 96, 48)), (None, BOTTOM_RIGHT)),
    (Shape(2, 4, 2, 3, 107, 128), Lengths(used_k=(1, 3)), (None,)),
    (Shape(3, 2, 1, 300, 200, 64), Lengths(used_q=(300, 0, 129), used_k=(0, 200, 129)), MASKS),
)


def example_77_varlen() -> Iterator[Case]:
    """Rows varlen 00..22 of example 77, and its common row of a packed sequence."""
    shape, lengths = _packed(4, 4, 128, (512,), (512,))
    yield Case(shape, lengths=lengths)
    for shape, lengths in _EXAMPLE_77_VARLEN:
        yield from (Case(shape, mask, lengths=lengths) for mask in (None, TOP_LEFT))
    for mask, sq, sk in _EXAMPLE_77_ONE_SEQUENCE:
        shape, lengths = _packed(4, 4, 128, (sq,), (sk,))
        yield Case(shape, mask, lengths=lengths)


def varlen_cases() -> Iterator[Case]:
    """Rows whose sequences have lengths of their own."""
    yield from example_77_varlen()
    for (shape, lengths, masks), dtype in itertools.product(_LENGTHS, DTYPES):
        yield from (Case(shape, mask, dtype, lengths=lengths) for mask in masks)
    shape, lengths = _packed(4, 2, 64, (100, 61, 200), (100, 61, 200))
    for view in _NEAR_VIEWS:
        yield Case(shape, BOTTOM_RIGHT, view=view, lengths=lengths)


MLA_DIMS = (192, 128)
FP8_VALUES = (Values.NORMAL, Values.KEY_MEANS, Values.STRUCTURED)


def head_dim_cases() -> Iterator[Case]:
    """Head dims that not every arch has."""
    for (d, d_v), dtype, mask in itertools.product(((32, None), (96, None), MLA_DIMS), DTYPES, (None, BOTTOM_RIGHT)):
        yield Case(Shape(2, 4, 2, 200, 333, d, d_v), mask, dtype, values=Values.KEY_MEANS)
        shape, lengths = _packed(2, 1, d, (130, 0, 300), (257, 70, 129))
        yield Case(replace(shape, dv=d_v), mask, dtype, values=Values.PEAKED, lengths=lengths)
    yield from (Case(Shape(1, 2, 1, 257, 140, *MLA_DIMS), mask, values=Values.STRUCTURED) for mask in MASKS)
    for lengths, view in ((Lengths(), View.HEAD_FIRST), (Lengths(used_k=(300, 77), page_rows=128), View.COMPACT)):
        yield Case(Shape(2, 4, 2, 200, 384, 256), BOTTOM_RIGHT, values=Values.KEY_MEANS, view=view, lengths=lengths)
    shape, lengths = _packed(2, 1, 232, (130, 0, 300), (257, 70, 129))
    yield Case(shape, BOTTOM_RIGHT, values=Values.STRUCTURED, view=View.PADDED, lengths=lengths)
    # Smaller ones than those of kernels: NaN lies behind the rows in memory.
    shape, lengths = _packed(2, 1, 40, (130, 0, 300), (257, 70, 129))
    yield Case(replace(shape, dv=56), BOTTOM_RIGHT, values=Values.STRUCTURED, view=View.PADDED, lengths=lengths)
    yield Case(Shape(1, 2, 1, 257, 140, 104, 72), None, values=Values.KEY_MEANS, view=View.PADDED)


def fp8_cases() -> Iterator[Case]:
    """Elements of 8 bits, scales, and outputs of each type that they may have."""
    ragged = Shape(2, 2, 1, 257, 300, 128)
    packed, lengths = _packed(2, 1, 64, (130, 0, 300, 1), (257, 70, 0, 129), spare_rows=9)
    yield from (Case(ragged, mask, "fp8_e4m3", values=values) for mask in MASKS for values in FP8_VALUES)
    yield Case(ragged, BOTTOM_RIGHT, "fp8_e4m3", view=View.PADDED, scaled=Scaled.BY_HEAD)
    yield from (Case(packed, mask, "fp8_e4m3", Values.PEAKED, lengths=lengths) for mask in (None, BOTTOM_RIGHT))
    for scheduling in (Scheduling(), Scheduling("persistent", 2)):
        yield Case(packed, None, "fp8_e4m3", lengths=lengths, scheduling=scheduling, scaled=Scaled.BY_HEAD)
    yield Case(ragged, None, "fp8_e4m3", Values.PEAKED, scaled=Scaled.BY_NUMBERS, out_dtype="fp8_e4m3")
    yield Case(replace(ragged, d=32), BOTTOM_RIGHT, "fp8_e5m2", Values.KEY_MEANS, out_dtype="fp16")
    yield Case(replace(ragged, d=MLA_DIMS[0], dv=MLA_DIMS[1]), None, "fp8_e4m3", Values.KEY_MEANS)
    # Other types take the scales too.
    yield Case(ragged, BOTTOM_RIGHT, scaled=Scaled.BY_HEAD)
    yield Case(packed, None, "fp16", lengths=lengths, scaled=Scaled.BY_NUMBERS)


def full_cases() -> Iterator[Case]:
    """The rows of example 77's forward program in each type, those of its MLA forward program, varlen 00..22 with head
    dims of 256, and by the schedules in which CTAs take several blocks, or share them."""
    # Reported: wrong where q, k and v are slices of one tensor.
    yield Case(Shape(1, 16, 1, 2048, 2048, 64), BOTTOM_RIGHT, view=View.PACKED_QKV)
    fixed = [case for case in example_77() if case.dtype == "bf16"]
    yield from (replace(case, dtype="fp8_e4m3") for case in fixed)
    for dtype in (*DTYPES, "fp8_e4m3"):
        yield from (replace(case, dtype=dtype) for case in example_77_varlen())
        for case, (d, d_v) in itertools.product(example_77_varlen(), (MLA_DIMS, (256, 256), (256, 128))):
            yield replace(case, dtype=dtype, shape=replace(case.shape, d=d, dv=d_v))
        for case in fixed:
            yield replace(case, dtype=dtype, shape=replace(case.shape, d=MLA_DIMS[0], dv=MLA_DIMS[1]))
        for (shape, lengths), mask in itertools.product(_EXAMPLE_77_MLA_VARLEN, (None, TOP_LEFT)):
            yield Case(replace(shape, dv=MLA_DIMS[1]), mask, dtype, lengths=lengths)
    for case, scheduling in itertools.product(
        example_77_varlen(), (Scheduling("persistent", 3), Scheduling("dynamic"))
    ):
        yield replace(case, scheduling=scheduling)
    yield from _paired_types()


# Few CTAs, so that each has several blocks: some without rows, some without keys, some whose last V tile is cut.
_PERSISTENT = (
    (Shape(2, 2, 1, 300, 300, 64), Lengths(), (None, BOTTOM_RIGHT), 1),
    (Shape(1, 2, 2, 140, 520, 128), Lengths(), (None,), 1),
    (*_packed(2, 1, 64, (130, 0, 300, 1), (257, 70, 0, 129), spare_rows=9), (None, BOTTOM_RIGHT), 2),
    (Shape(3, 2, 1, 300, 200, 64), Lengths(used_q=(300, 0, 129), used_k=(0, 200, 129)), (BOTTOM_RIGHT,), 3),
    (*_packed(2, 1, 64, _MANY, _MANY[::-1]), (None,), 3),
    (*_packed(1, 1, 64, _MOSTLY_EMPTY, _MOSTLY_EMPTY), (BOTTOM_RIGHT,), 2),
    (Shape(1, 1, 1, 40, 40, 64), Lengths(), (None,), None),  # fewer blocks than SMs
)


# Query tiles in which the second CTA of a pair has no row, K tiles that end anywhere or are none, more blocks than
# pairs, a block of one query tile before another, with an odd number of K tiles.
_PAIRED = (
    (Shape(1, 1, 1, 1, 1, 128), None),
    (Shape(2, 2, 1, 129, 127, 128), 3),
    (Shape(1, 3, 3, 300, 129, 128), 2),
    (Shape(2, 2, 1, 513, 1000, 128), 4),
    (Shape(1, 4, 2, 1024, 256, 128), None),
    (Shape(2, 1, 1, 257, 0, 128), 2),
    (Shape(1, 1, 1, 513, 300, 128), 2),
)


def paired_cases() -> Iterator[Case]:
    """Rows whose CTAs share MMAs by twos."""
    for (shape, max_ctas), values in zip(_PAIRED, itertools.cycle(Values)):
        yield Case(shape, values=values, scheduling=Scheduling("pair", max_ctas))
    yield Case(Shape(1, 4, 2, 300, 333, 128), view=View.PADDED, scaled=Scaled.BY_HEAD, scheduling=Scheduling("pair", 2))


def _paired_types() -> Iterator[Case]:
    """The same with the other types and head dims."""
    for case, dtype, (d, d_v) in itertools.product(
        paired_cases(), (*DTYPES, "fp8_e4m3"), ((64, 64), (128, 128), MLA_DIMS)
    ):
        yield replace(case, dtype=dtype, shape=replace(case.shape, d=d, dv=d_v))
    yield Case(Shape(1, 2, 1, 300, 333, 40, 56), view=View.PADDED, scheduling=Scheduling("pair"))


_PAGED = (
    (Shape(3, 4, 2, 140, 512, 64), Lengths(used_k=(300, 0, 512), page_rows=128), MASKS),
    (Shape(2, 32, 8, 1, 512, 128), Lengths(used_k=(107, 385), page_rows=256), (None,)),  # reported, as above
    (Shape(1, 2, 1, 330, 384, 64), Lengths(q=(130, 200, 0), used_k=(260, 0, 70), page_rows=128), (BOTTOM_RIGHT,)),
)


def paged_cases() -> Iterator[Case]:
    """Rows whose keys lie in pages, under each schedule."""
    for shape, lengths, masks in _PAGED:
        yield from (Case(shape, mask, lengths=lengths) for mask in masks)
    shape, lengths, _ = _PAGED[0]
    yield Case(shape, BOTTOM_RIGHT, lengths=lengths, scheduling=Scheduling("persistent", 2))
    shape, lengths, _ = _PAGED[2]
    yield Case(shape, BOTTOM_RIGHT, lengths=lengths, scheduling=Scheduling("dynamic"))


def persistent_cases() -> Iterator[Case]:
    """Rows whose CTAs take several blocks in turn."""
    for shape, lengths, masks, max_ctas in _PERSISTENT:
        scheduling = Scheduling("persistent", max_ctas)
        yield from (Case(shape, mask, lengths=lengths, scheduling=scheduling) for mask in masks)
    for shape, lengths, masks, _ in _PERSISTENT[2:6]:
        yield from (Case(shape, mask, lengths=lengths, scheduling=Scheduling("dynamic")) for mask in masks)
    # O is stored from the buffers of Q: some blocks have no keys, so that their Q does not come.
    shape, lengths, _, _ = _PERSISTENT[2]
    for (d, d_v), fusion, scheduling in (
        (MLA_DIMS, None, Scheduling("persistent", 1)),
        ((256, 256), BOTTOM_RIGHT & Bias(LeafKind.TENSOR, "fp16"), Scheduling("dynamic")),
        ((64, 64), Bias(LeafKind.TENSOR, "fp32"), Scheduling("persistent", 1)),
        ((128, 128), Bias(LeafKind.TENSOR, "bf16"), Scheduling("dynamic")),
    ):
        yield Case(replace(shape, d=d, dv=d_v), fusion, values=Values.KEY_MEANS, lengths=lengths, scheduling=scheduling)


_DIMS = ((32, 32), (64, 64), (96, 96), (128, 128), MLA_DIMS, (256, 128), (256, 256))
_BIAS_DTYPES = ("fp16", "bf16", "fp32")
_SCHEDULINGS = (Scheduling(), Scheduling("persistent", 1), Scheduling("dynamic"))


def full_schedule_cases() -> Iterator[Case]:
    """Head dims of more than 128 by the schedules in which CTAs take several blocks, and a bias in each kernel."""
    shape, lengths, masks, _ = _PERSISTENT[2]
    for (d, d_v), scheduling, dtype, mask in itertools.product(_DIMS[-3:], _SCHEDULINGS[1:], DTYPES, masks):
        yield Case(replace(shape, d=d, dv=d_v), mask, dtype, lengths=lengths, scheduling=scheduling)
    for (dims_idx, (d, d_v)), (idx, scheduling), dtype in itertools.product(
        enumerate(_DIMS), enumerate(_SCHEDULINGS), (*DTYPES, "fp8_e4m3")
    ):
        # Each type of a bias with each type and head dims, by another schedule.
        bias = Bias(LeafKind.TENSOR, _BIAS_DTYPES[(dims_idx + idx) % len(_BIAS_DTYPES)])
        fusion = bias & BOTTOM_RIGHT if dims_idx % 2 else bias
        yield Case(replace(shape, d=d, dv=d_v), fusion, dtype, lengths=lengths, scheduling=scheduling)
