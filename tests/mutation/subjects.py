# SPDX-License-Identifier: Apache-2.0
"""subjects.py: the kernels that the mutation gate takes apart, and the problems that each is run on.

Called by test_mutation.py and full_run.py. A problem is small, and all of a kernel's problems together execute every
instruction: rings of buffers wrap around, last tiles are ragged, rows of the running maximum are rescaled.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from opdeck.core import dtypes, registry
from opdeck.core.devices import Device
from opdeck.core.mutation.gate import Problem, Result
from opdeck.core.variant import Variant, fusion_key
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Shape, Values


@dataclass(frozen=True)
class Subject:
    """A kernel and its problems."""

    variant: Variant
    problems: tuple[Problem, ...]


def fmha_fwd_result(case: Case, device: Device) -> Result:
    inputs = cases.make_inputs(case, seed=7)
    registry.get("fmha_fwd")(
        inputs.q, inputs.k, inputs.v, mask=case.fusion, out=inputs.o, lse=inputs.lse, device=device
    )
    tolerance = dtypes.dtype(case.dtype).tolerance
    assert tolerance is not None
    want_o, want_lse = oracle(case)
    failures = []
    for name, errors, limit in (
        ("O", compare(inputs.o, want_o), tolerance),
        ("LSE", compare(inputs.lse, want_lse), replace(tolerance, relative=inf)),
    ):
        if not errors.within(limit):
            failures.append(name)
    return Result(inputs.o.tobytes() + inputs.lse.tobytes(), " and ".join(failures))


@functools.cache
def oracle(case: Case) -> tuple[np.ndarray, np.ndarray]:
    inputs = cases.make_inputs(case, seed=7)
    return reference.forward(inputs.q, inputs.k, inputs.v, case.fusion, softmax_scale=case.shape.d**-0.5)


# (B, Hq, Hk, Sq, Sk), values.
FMHA_FWD_SHAPES = (
    ((1, 2, 1, 200, 700), Values.PEAKED),
    ((1, 1, 1, 384, 300), Values.NORMAL),
    ((2, 1, 1, 1, 1), Values.NORMAL),
)
MASKED_SHAPES = (((1, 1, 1, 400, 140), Values.NORMAL),)  # more queries than keys: rows and tiles that see no key


def fmha_fwd(arch: str, d: int, fusion: object = None, dtype: str = "bf16") -> Subject:
    rows = registry.variants("fmha_fwd", arch)
    (variant,) = (
        row
        for row in rows
        if row.dtype == dtype and row.static_dims["dqk"] == d and fusion_key(row.fusion) == fusion_key(fusion)
    )
    problems = []
    for (b, hq, hk, sq, sk), values in FMHA_FWD_SHAPES if fusion is None else (*FMHA_FWD_SHAPES, *MASKED_SHAPES):
        case = Case(Shape(b, hq, hk, sq, sk, d), fusion, dtype, values=values)
        problems.append(Problem(str(case.shape), functools.partial(fmha_fwd_result, case)))
    return Subject(variant, tuple(problems))


def subjects() -> tuple[Subject, ...]:
    """One kernel for each source, topology and kind of mask; dtypes share their code."""
    return (
        fmha_fwd("sm_100a", 128, cases.BOTTOM_RIGHT),
        fmha_fwd("sm_100a", 64),
        fmha_fwd("sm_103a", 128),
        fmha_fwd("sm_90a", 128, cases.BOTTOM_RIGHT),
        fmha_fwd("sm_90a", 64),
    )
