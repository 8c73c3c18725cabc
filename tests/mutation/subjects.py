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
from opdeck.core.fusion import Fusion
from opdeck.core.mutation.gate import Problem, Result
from opdeck.core.variant import Variant, fusion_key
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import case_table, cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Inputs, Shape, Values


@dataclass(frozen=True)
class Subject:
    """A kernel and its problems."""

    variant: Variant
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class FmhaProblem:
    """A case of fmha_fwd. max_grows: with each K tile the maximum of every row grows so much that O is rescaled."""

    case: Case
    max_grows: bool

    def inputs(self) -> Inputs:
        inputs = cases.make_inputs(self.case, seed=7)
        if self.max_grows:
            key = np.arange(self.case.shape.sk)[None, :, None, None]
            inputs.k[...] = inputs.k * np.exp2(key // ROWS_PER_K_TILE)
            inputs.v[...] = inputs.v / 4  # the tolerance is absolute up to 1, and P is rounded with less than usual
        return inputs

    def run(self, device: Device) -> Result:
        inputs = self.inputs()
        registry.get("fmha_fwd")(
            inputs.q, inputs.k, inputs.v, mask=self.case.fusion, out=inputs.o, lse=inputs.lse, device=device
        )
        tolerance = dtypes.dtype(self.case.dtype).tolerance
        assert tolerance is not None
        want_o, want_lse = oracle(self)
        limits = (("O", inputs.o, want_o, tolerance), ("LSE", inputs.lse, want_lse, replace(tolerance, relative=inf)))
        wrong = [name for name, got, want, limit in limits if not compare(got, want).within(limit)]
        return Result(inputs.o.tobytes() + inputs.lse.tobytes(), " and ".join(wrong))


@functools.cache
def oracle(problem: FmhaProblem) -> tuple[np.ndarray, np.ndarray]:
    inputs, case = problem.inputs(), problem.case
    return reference.forward(inputs.q, inputs.k, inputs.v, case.fusion, softmax_scale=case.shape.d**-0.5)


ROWS_PER_K_TILE = 128

# (B, Hq, Hk, Sq, Sk), values, whether the maximum grows.
FMHA_FWD = (
    ((1, 2, 1, 200, 700), Values.PEAKED, True),
    ((1, 1, 1, 384, 300), Values.PEAKED, True),
    ((2, 1, 1, 1, 1), Values.NORMAL, False),
)
FMHA_FWD_MASKED = (((1, 1, 1, 400, 140), Values.NORMAL, False),)  # rows and tiles that see no key


def fmha_fwd(
    arch: str, d: int, fusion: Fusion | None = None, dtype: str = "bf16", schedule: str = "individual"
) -> Subject:
    (variant,) = (
        row
        for row in registry.variants("fmha_fwd", arch)
        if row.dtype == dtype
        and row.config["d_qk"] == d
        and row.config.get("schedule", schedule) == schedule
        and fusion_key(row.fusion) == fusion_key(fusion)
    )
    problems = []
    for (b, hq, hk, sq, sk), values, max_grows in FMHA_FWD if fusion is None else (*FMHA_FWD, *FMHA_FWD_MASKED):
        case = Case(Shape(b, hq, hk, sq, sk, d), fusion, dtype, values=values)
        problems.append(Problem(f"{case.shape}", FmhaProblem(case, max_grows).run))
    return Subject(variant, tuple(problems))


def subjects() -> tuple[Subject, ...]:
    """One kernel for each source, topology and kind of mask; dtypes share their code."""
    return (
        fmha_fwd("sm_100a", 128, case_table.BOTTOM_RIGHT),
        fmha_fwd("sm_100a", 64),
        fmha_fwd("sm_103a", 128),
        fmha_fwd("sm_90a", 128, case_table.BOTTOM_RIGHT),
        fmha_fwd("sm_90a", 64),
    )
