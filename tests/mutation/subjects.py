# SPDX-License-Identifier: Apache-2.0
"""subjects.py: the kernels that the mutation gate takes apart, and the problems that each is run on.

Called by test_mutation.py and full_run.py. A problem is small, and all of a kernel's problems together execute every
instruction: rings of buffers wrap around, last tiles are ragged, rows of the running maximum are rescaled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from opdeck.core import registry
from opdeck.core.devices import Device
from opdeck.core.fusion import AttentionFusion, Bias
from opdeck.core.mutation.gate import Problem, Result
from opdeck.core.mx import exact_values
from opdeck.core.operator import Operator
from opdeck.core.variant import Variant, fusion_key
from opdeck.core.verify import compare
from opdeck.plugins.fmha_fwd import case_table, cases, reference
from opdeck.plugins.fmha_fwd.cases import Case, Inputs, Lengths, Scheduling, Shape, Values
from opdeck.plugins.mx_gemm import cases as mx_cases
from opdeck.plugins.mx_gemm import plugin as mx_plugin
from opdeck.plugins.mx_gemm import reference as mx_reference
from opdeck.plugins.mx_gemm import variants as mx_variants


@dataclass(frozen=True)
class Subject:
    """A kernel and its problems."""

    variant: Variant
    problems: tuple[Problem, ...]


@dataclass(frozen=True, eq=False)  # a fusion may have an array, which has no hash
class FmhaProblem:
    """A case of fmha_fwd, run on one of its kernels. max_grows: with each K tile the maximum of every row grows so much
    that O is rescaled."""

    case: Case
    max_grows: bool
    variant_id: str

    def inputs(self) -> Inputs:
        inputs = cases.make_inputs(self.case, seed=7)
        if self.max_grows:
            key = np.arange(self.case.shape.sk)[None, :, None, None]
            inputs.k[...] = inputs.k * np.exp2(key // ROWS_PER_K_TILE)
            inputs.v[...] = inputs.v / 4  # the tolerance is absolute up to 1, and P is rounded with less than usual
        return inputs

    def run(self, device: Device) -> Result:
        inputs = self.inputs()
        where = {"device": device, "variant": self.variant_id, "max_ctas": self.case.scheduling.max_ctas}
        registry.get("fmha_fwd")(**inputs.arguments(), mask=self.case.fusion, **where)
        results = (("O", inputs.o), ("LSE", inputs.lse))
        judged = zip(results, oracle(self), self.case.tolerances, strict=True)
        wrong = [name for (name, got), want, limit in judged if not compare(got, want).within(limit)]
        return Result(inputs.o.tobytes() + inputs.lse.tobytes(), " and ".join(wrong))


@functools.cache
def oracle(problem: FmhaProblem) -> tuple[np.ndarray, np.ndarray]:
    inputs, case = problem.inputs(), problem.case
    return reference.forward(inputs.q, inputs.k, inputs.v, case.fusion, case.shape.d**-0.5, inputs.options)


@functools.cache
def mx_operator(tile: str) -> Operator:
    """mx_gemm by one tile, for problems of any size."""
    return Operator(replace(mx_plugin.MX_GEMM, rows=functools.partial(mx_variants.rows_on_tile, tile)))


@dataclass(frozen=True)
class MxProblem:
    """A case of mx_gemm, which names its tile."""

    case: mx_cases.Case

    def run(self, device: Device) -> Result:
        inputs = mx_cases.make_inputs(self.case, seed=7)
        scalars = {"alpha": inputs.alpha, "beta": inputs.beta, "max_ctas": self.case.max_ctas}
        mx_operator(self.case.tile)(inputs.a, inputs.b, **inputs.terms, **scalars, out=inputs.d, device=device)
        a, b = exact_values(inputs.a), exact_values(inputs.b)
        epilogue = mx_reference.Epilogue(inputs.alpha, inputs.beta, inputs.terms.get("c"), inputs.terms.get("bias"))
        bounds = mx_reference.error_bounds(a, b, epilogue, inputs.d)
        is_right = np.abs(inputs.d.astype(np.float64) - mx_reference.gemm(a, b, epilogue)) <= bounds  # NaN is not
        return Result(inputs.d.tobytes(), "" if is_right.all() else "D")


ROWS_PER_K_TILE = 128
DTYPE = "bf16"

# (B, Hq, Hk, Sq, Sk), values, whether the maximum grows.
FMHA_FWD = (
    ((1, 2, 1, 200, 700), Values.PEAKED, True),
    ((1, 1, 1, 384, 300), Values.PEAKED, True),
    ((2, 1, 1, 1, 1), Values.NORMAL, False),
)
FMHA_FWD_MASKED = (((1, 1, 1, 400, 140), Values.NORMAL, False),)  # rows and tiles that see no key
FMHA_FWD_PAIRS = (((1, 1, 1, 513, 40), Values.NORMAL, False),)  # a block of one query tile before another
FMHA_FWD_BLOCKS = (((2, 3, 1, 130, 150), Values.NORMAL, False),)  # more blocks for a CTA than its queue has stages


# Sequences whose last tiles end where others begin.
PACKED = Lengths(q=(130, 70, 1), k=(200, 150, 40))
PACKED_ARCHS = ("sm_100a", "sm_103a")

INDIVIDUAL = Scheduling()
FusionOf = Callable[[Shape], AttentionFusion | None]
"""The fusion of a problem, which may have a tensor of its size."""


def causal(_: Shape) -> AttentionFusion:
    return case_table.BOTTOM_RIGHT


def no_fusion(_: Shape) -> None:
    return None


def biased(shape: Shape) -> AttentionFusion:
    pitch_elems = -(-shape.sk // BIAS_PITCH_ELEMS) * BIAS_PITCH_ELEMS
    values = np.random.default_rng(7).standard_normal((1, shape.hq, shape.sq, pitch_elems), np.float32)
    return Bias(values[..., : shape.sk])


BIAS_PITCH_ELEMS = 4  # 16 bytes of fp32


def fmha_fwd(arch: str, d: int, fusion_of: FusionOf = no_fusion, scheduling: Scheduling = INDIVIDUAL) -> Subject:
    shapes = FMHA_FWD if fusion_of is no_fusion else (*FMHA_FWD, *FMHA_FWD_MASKED)
    shapes = shapes if scheduling is INDIVIDUAL else (*shapes, *FMHA_FWD_BLOCKS)
    shapes = (*shapes, *FMHA_FWD_PAIRS) if scheduling.name == "pair" else shapes
    fusion = fusion_of(Shape(*shapes[0][0], d))
    variant = next(
        row
        for row in registry.get("fmha_fwd").variants((fusion,))
        if (row.arch, row.dtype) == (arch, DTYPE)
        and (row.config["d_qk"], row.config["d_v"] * row.config.get("v_blocks", 1)) == (d, d)
        and row.config.get("schedule", "individual") == scheduling.name
        and fusion_key(row.fusion) == fusion_key(fusion)
    )
    problems = []
    for dims, values, max_grows in shapes:
        shape = Shape(*dims, d)
        case = Case(shape, fusion_of(shape), DTYPE, values=values, scheduling=scheduling)
        problems.append(FmhaProblem(case, max_grows, variant.id))
    if arch in PACKED_ARCHS and scheduling.name != "pair":
        shape = Shape(1, 2, 1, sum(PACKED.q or ()), sum(PACKED.k or ()), d)
        case = Case(shape, fusion_of(shape), DTYPE, lengths=PACKED, scheduling=scheduling)
        problems.append(FmhaProblem(case, False, variant.id))
    return Subject(variant, tuple(Problem(f"{row.case.shape}{row.case.lengths}", row.run) for row in problems))


# More stages of K than the ring has, ragged ends, more tiles than CTAs; C and a bias; alpha = 1, which scales nothing.
MX_GEMM = (
    mx_cases.Case(mx_cases.Shape(136, 264, 1056)),
    mx_cases.Case(mx_cases.Shape(136, 264, 64, 2), terms=("c", "bias")),
    mx_cases.Case(mx_cases.Shape(264, 272, 96), values=mx_cases.Values.INTEGERS),
)


def mx_gemm(arch: str, formats: tuple[str, str], tile: str) -> Subject:
    found = [replace(case, formats=formats, max_ctas=MX_MAX_CTAS, tile=tile) for case in MX_GEMM]
    inputs = mx_cases.make_inputs(found[0], seed=7)
    operator = mx_operator(tile)
    variant = operator.select(operator.problem(inputs.a, inputs.b, out=inputs.d, device=f"emulator:{arch}"))
    return Subject(variant, tuple(Problem(f"{case.shape}", MxProblem(case).run) for case in found))


MX_MAX_CTAS = 2


def subjects() -> tuple[Subject, ...]:
    """One kernel for each source, topology, schedule and kind of fusion; dtypes share their code."""
    return (
        fmha_fwd("sm_100a", 128, causal),
        fmha_fwd("sm_100a", 64),
        fmha_fwd("sm_103a", 128),
        fmha_fwd("sm_100a", 64, biased),
        fmha_fwd("sm_103a", 64, causal, Scheduling("persistent", 1)),
        fmha_fwd("sm_100a", 256, no_fusion, Scheduling("persistent", 1)),  # O is staged where Q lay
        fmha_fwd("sm_100a", 128, no_fusion, Scheduling("dynamic")),
        fmha_fwd("sm_100a", 128, no_fusion, Scheduling("pair", 2)),
        fmha_fwd("sm_90a", 128, causal),
        fmha_fwd("sm_90a", 64),
        mx_gemm("sm_100a", ("mxfp4", "mxfp4"), ""),
        mx_gemm("sm_103a", ("mxfp8_e4m3", "mxfp8_e4m3"), "256x256"),
    )
