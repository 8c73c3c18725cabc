# SPDX-License-Identifier: Apache-2.0
"""commands.py: `opdeck run mx_gemm` and `opdeck explain mx_gemm`.

Who calls it: opdeck.core.cli, through the family's row in plugin.py.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from opdeck.core import arrays, mx, registry
from opdeck.core.cli.devices import DeviceOption, HazardsOption, ScheduleOption, command_device
from opdeck.core.cli.explain import print_verdicts
from opdeck.core.cli.explore import ExploreOption, print_exploration
from opdeck.core.cli.profile import ProfileOption, print_profile
from opdeck.core.devices import Device
from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import Activation
from opdeck.core.mx.report import accuracy
from opdeck.core.mx.tensor import K_MULTIPLE, MxTensor
from opdeck.core.profile.recorder import Recorder
from opdeck.core.transfer import to_memory, to_numpy, wait_for
from opdeck.core.variant import Variant
from opdeck.core.verify import compare
from opdeck.plugins.mx_gemm import reference
from opdeck.plugins.mx_gemm.cases import Shape, expected_macs
from opdeck.plugins.mx_gemm.profile import work
from opdeck.plugins.mx_gemm.spec import ALIGN_BYTES, BLOCK_SCALED_OUTPUTS, OUTPUT_DTYPES
from opdeck.plugins.mx_gemm.variants import FUSIONS, TERM_DTYPE

Array = npt.NDArray[Any]

MAX_ELEMS = 1 << 33  # of a tensor: what does not fit in memory is a wrong command line, not a wrong result

_D_FORMATS = (*OUTPUT_DTYPES, *BLOCK_SCALED_OUTPUTS)
_FORMAT_NAMES = ", ".join(row.name for row in mx.FORMATS)

RowsOption = Annotated[int, typer.Option("--m", min=1, help="Rows of A and D.")]
ColumnsOption = Annotated[int, typer.Option("--n", min=1, help="Rows of B, columns of D.")]
DepthOption = Annotated[int, typer.Option("--k", min=K_MULTIPLE, help="Columns of A and B, a multiple of 32.")]
BatchOption = Annotated[int, typer.Option("--l", min=1, help="Products of one shape.")]
AFormatOption = Annotated[str, typer.Option("--a_format", help=f"Of {_FORMAT_NAMES}.")]
BFormatOption = Annotated[str | None, typer.Option("--b_format", help="The same of B. Default: a_format.")]
DFormatOption = Annotated[str, typer.Option("--d_format", help=f"Of {', '.join(_D_FORMATS)}.")]
DScaleOption = Annotated[float | None, typer.Option("--d_scale", help="The global scale of an nvfp4 D. Default: 1.")]
AlphaOption = Annotated[float, typer.Option("--alpha", help="What the products are multiplied with.")]
BetaOption = Annotated[float, typer.Option("--beta", help="What C is multiplied with; 0: there is no C.")]
BiasOption = Annotated[bool, typer.Option("--bias", help="Add a bias a column.")]
ActivationOption = Annotated[str, typer.Option("--activation", help="A registered one, such as relu, or none.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.")]
VerifyOption = Annotated[bool, typer.Option("--verify/--no-verify", help="Compare D with the float64 oracle.")]


@dataclass(frozen=True)
class _Product:
    """A product and its operands, on the host.

    Raises: ArgumentError naming the flag.
    """

    shape: Shape
    a: Array
    b: Array
    formats: tuple[str, str]
    d_format: str
    epilogue: reference.Epilogue
    d_scale: float | None = None

    def __post_init__(self) -> None:
        if self.shape.k % K_MULTIPLE:
            raise ArgumentError("--k", self.shape.k, f"a multiple of {K_MULTIPLE}")
        for flag, name in zip(("--a_format", "--b_format"), self.formats, strict=True):
            mx.mx_format(name, flag)
        *_, num_columns = self.d_shape
        if self.d_format in BLOCK_SCALED_OUTPUTS and (num_columns == 0 or num_columns % K_MULTIPLE):
            want = f"a multiple of {K_MULTIPLE}, for {self.d_format}"
            raise ArgumentError("--n", f"{num_columns} columns of D", want)
        _check_size(self.d_shape)

    @property
    def d_shape(self) -> tuple[int, int, int]:
        """(L, M, N), or of a gated activation (L, M, N / 2)."""
        activation = self.epilogue.activation
        num_columns = self.shape.n // (1 if activation is None else activation.num_columns)
        return self.shape.num_batches, self.shape.m, num_columns

    def in_fp32(self) -> _Product:
        """The same with a D of fp32."""
        c, bias = (None if term is None else _in_rows(term, "fp32") for term in (self.epilogue.c, self.epilogue.bias))
        return replace(self, d_format="fp32", d_scale=None, epilogue=replace(self.epilogue, c=c, bias=bias))

    def call(self, memory: str) -> dict[str, Any]:
        """Arguments of the operator, in that memory, with an output that holds NaN."""
        a, b = (
            mx.quantize(to_memory(array, memory), name)
            for array, name in zip((self.a, self.b), self.formats, strict=True)
        )
        epilogue, shape = self.epilogue, self.d_shape
        terms = {"c": epilogue.c, "bias": epilogue.bias}
        placed = {name: to_memory(array, memory) for name, array in terms.items() if array is not None}
        if self.d_format in BLOCK_SCALED_OUTPUTS:
            unit = 1.0 if self.d_scale is None else self.d_scale
            placed["out"] = MxTensor.empty(a.data, mx.mx_format(self.d_format), shape, unit)
        else:
            placed["out"] = to_memory(_in_rows(np.full(shape, np.nan), self.d_format), memory)
        scalars = {
            "alpha": epilogue.alpha,
            "beta": epilogue.beta,
            "activation": epilogue.activation,
            "d_scale": self.d_scale,
        }
        return {"a": a, "b": b, **placed, **scalars}


def run(
    m: RowsOption = 512,
    n: ColumnsOption = 512,
    k: DepthOption = 512,
    l: BatchOption = 1,  # noqa: E741
    a_format: AFormatOption = "mxfp8_e4m3",
    b_format: BFormatOption = None,
    d_format: DFormatOption = "bf16",
    d_scale: DScaleOption = None,
    alpha: AlphaOption = 1.0,
    beta: BetaOption = 0.0,
    bias: BiasOption = False,
    activation: ActivationOption = "none",
    seed: SeedOption = 0,
    device: DeviceOption = None,
    schedule: ScheduleOption = None,
    hazards: HazardsOption = None,
    verify: VerifyOption = True,
    profile: ProfileOption = False,
    explore: ExploreOption = None,
) -> None:
    """Block-scaled GEMM on one problem; verified against the float64 oracle. Exit status 1 when it is wrong."""
    shape = Shape(m, n, k, l)
    numbers = _Numbers(np.random.default_rng(seed), d_format)
    terms = numbers.terms(shape, beta != 0.0, bias)
    epilogue = reference.Epilogue(alpha, beta, *terms, _activation(activation))
    a, b = numbers.operands(shape)
    product = _Product(shape, a, b, (a_format, b_format or a_format), d_format, epilogue, d_scale)
    where = command_device(device, schedule, hazards)
    arguments = product.call(where.memory)
    recorder = Recorder(where) if profile else None
    with recorder.recording() if recorder else nullcontext():
        variant, seconds = _launch(arguments, where)
    is_right = _print_launch(product, variant, where, seconds)
    if recorder:
        counted = recorder.profile()
        print_profile(variant, counted, work(variant, counted))
    if explore is not None:
        is_right &= print_exploration(where, hazards, explore, lambda device: _outputs(product, device))
    if verify:
        if d_format in BLOCK_SCALED_OUTPUTS:
            is_right &= _print_quantised(product, arguments, where)
        else:
            is_right &= _print_errors(product, arguments)
        print("PASS" if is_right else "FAIL")
    if not is_right:
        raise typer.Exit(1)


def explain(
    m: RowsOption = 512,
    n: ColumnsOption = 512,
    k: DepthOption = 512,
    l: BatchOption = 1,  # noqa: E741
    a_format: AFormatOption = "mxfp8_e4m3",
    b_format: BFormatOption = None,
    d_format: DFormatOption = "bf16",
    beta: BetaOption = 0.0,
    bias: BiasOption = False,
    activation: ActivationOption = "none",
    device: DeviceOption = None,
) -> None:
    """The variants of block-scaled GEMM that accept the problem, with their configs, and why the others do not."""
    shape = Shape(m, n, k, l)
    numbers = _Numbers(np.random.default_rng(0), d_format)
    epilogue = reference.Epilogue(1.0, beta, *numbers.terms(shape, beta != 0.0, bias), _activation(activation))
    product = _Product(shape, *numbers.operands(shape), (a_format, b_format or a_format), d_format, epilogue)
    where = command_device(device, None, None)
    operator = registry.get("mx_gemm")
    print_verdicts(operator, operator.problem(**product.call(where.memory), device=where))


class _Numbers:
    """Random inputs: N(0, 1)."""

    def __init__(self, rng: np.random.Generator, d_format: str) -> None:
        if d_format not in _D_FORMATS:
            raise ArgumentError("--d_format", repr(d_format), "|".join(_D_FORMATS))
        self._rng = rng
        self._term_dtype = TERM_DTYPE if d_format in BLOCK_SCALED_OUTPUTS else d_format

    def operands(self, shape: Shape) -> tuple[Array, Array]:
        """A (L, M, K) and B (L, N, K) in fp32."""
        a, b = (self._normal((shape.num_batches, rows, shape.k)) for rows in (shape.m, shape.n))
        return a, b

    def terms(self, shape: Shape, with_c: bool, with_bias: bool) -> tuple[Array | None, Array | None]:
        """C (L, M, N) and the bias (N,), of the type that D wants, or None."""
        c = _in_rows(self._normal((shape.num_batches, shape.m, shape.n)), self._term_dtype) if with_c else None
        return c, _in_rows(self._normal((shape.n,)), self._term_dtype) if with_bias else None

    def _normal(self, extents: tuple[int, ...]) -> Array:
        _check_size(extents)
        return self._rng.standard_normal(extents, np.float32)


def _check_size(extents: tuple[int, ...]) -> None:
    if prod(extents) >= MAX_ELEMS:
        raise ArgumentError("--l, --m, --n, --k", f"a tensor {extents}", "one of less than 2^33 elements")


def _in_rows(values: Array, dtype: str) -> Array:
    """The values in rows that begin multiples of 16 bytes apart, as TMA asks."""
    placed: Array = arrays.allocate(values, values.shape, dtype, ALIGN_BYTES)
    placed[...] = values
    return placed


def _activation(name: str) -> Activation | None:
    known = {row.canonical_name: row for row in (*FUSIONS, *registry.fusions().values()) if isinstance(row, Activation)}
    if name != "none" and name not in known:
        raise ArgumentError("--activation", repr(name), "|".join(("none", *known)))
    return None if name == "none" else known[name].sample(np.random.default_rng(0))


def _launch(arguments: dict[str, Any], where: Device) -> tuple[Variant, float]:
    """The variant that ran, and the seconds of its launch."""
    operator = registry.get("mx_gemm")
    variant = operator.prepare(**arguments, device=where)  # so that no compiling is timed
    wait_for(where.memory)
    begin = time.perf_counter()
    operator(**arguments, device=where)
    wait_for(where.memory)
    return variant, time.perf_counter() - begin


def _outputs(product: _Product, device: Device) -> list[Array]:
    """D, on the host, as the operator makes it on that device."""
    arguments = product.call(device.memory)
    registry.get("mx_gemm")(**arguments, device=device)
    out = arguments["out"]
    parts = (out.elements(), out.scales) if isinstance(out, MxTensor) else (out,)
    return [to_numpy(part).view(np.uint8) for part in parts]


def _print_launch(product: _Product, variant: Variant, where: Device, seconds: float) -> bool:
    """Prints what ran. False when the kernel did not do the work that its tiles need."""
    lines = {
        "variant": variant.id,
        "arch": variant.arch,
        "device": where.name,
        "config": variant.config_text or "-",
        "problem": str(product.shape),
        "cubin SHA-256": where.cubin_sha256(variant) or "-",
    }
    report, is_right = where.last_report(), True
    if report is not None:
        wanted_macs = expected_macs(product.shape, variant)
        is_right = report.mma_macs == wanted_macs
        lines |= {
            "CTAs": str(report.num_ctas),
            "warp-instructions": str(report.warp_instructions),
            "MMA MACs": f"{report.mma_macs} (its tiles need {wanted_macs})",
            "TMA bytes": f"{report.tma_load_bytes} in, {report.tma_store_bytes} out",
        }
    lines["time a launch"] = f"{seconds * 1e3:.3f} ms of the host's clock"
    for name, text in lines.items():
        print(f"{name:<18}{text}")
    return is_right


def _print_errors(product: _Product, arguments: dict[str, Any]) -> bool:
    """Prints how far D is from the oracle's and the operands from their numbers; whether D is within its bounds."""
    for name, original in (("a", product.a), ("b", product.b)):
        found = accuracy(arguments[name], original)
        print(
            f"{name.upper() + ' quantised':<18}max error {found.max_abs:.3e}  / max {found.relative:.3e}  "
            f"SNR {found.snr_db:.1f} dB, of a block {found.worst_block_snr_db:.1f} dB at least"
        )
    a, b = (mx.exact_values(arguments[name]) for name in ("a", "b"))
    got, want = to_numpy(arguments["out"]), reference.gemm(a, b, product.epilogue)
    bounds = reference.error_bounds(a, b, product.epilogue, got)
    with np.errstate(invalid="ignore"):
        ratio = float((np.abs(got.astype(np.float64) - want) / bounds).max())
    print(f"{'D error':<18}{compare(got, want)}  {ratio:.3f} of its bound")
    return ratio <= 1.0


def _print_quantised(product: _Product, arguments: dict[str, Any], where: Device) -> bool:
    """The same of a block-scaled D, and whether it is, bit by bit, the fp32 D of the same device quantised."""
    plain = product.in_fp32().call(where.memory)
    registry.get("mx_gemm")(**plain, device=where)
    is_right, got = _print_errors(product.in_fp32(), plain), arguments["out"]
    unit = got.global_scale if got.format.has_global_scale else None
    want = mx.quantize(plain["out"], got.format, global_scale=unit)
    is_same = all(
        np.array_equal(to_numpy(part).view(np.uint8), to_numpy(wanted).view(np.uint8))
        for part, wanted in ((got.elements(), want.elements()), (got.scales, want.scales))
    )
    found = accuracy(got, plain["out"])
    verdict = "the fp32 D's" if is_same else "not the fp32 D's"
    print(f"{'D quantised':<18}elements and scales: {verdict}  SNR {found.snr_db:.1f} dB")
    return is_right and is_same
