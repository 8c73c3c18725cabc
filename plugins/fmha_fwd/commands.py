# SPDX-License-Identifier: Apache-2.0
"""commands.py: `opdeck run fmha_fwd` and `opdeck explain fmha_fwd`.

Who calls it: opdeck.core.cli, through the family's row in plugin.py.
Source: the flags and defaults of CUTLASS example 77's fmha program. Two differences: `--mask=causal,residual` runs
masked (there, a list runs unmasked), and results are verified unless --no-verify is given.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from math import prod
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from opdeck.core import dtypes, registry
from opdeck.core.cli.devices import DeviceOption, HazardsOption, ScheduleOption, command_device
from opdeck.core.cli.explain import print_verdicts
from opdeck.core.cli.explore import ExploreOption, print_exploration
from opdeck.core.cli.profile import ProfileOption, print_profile
from opdeck.core.devices import Device
from opdeck.core.errors import ArgumentError, OpdeckError, Unsupported
from opdeck.core.fusion import AttentionFusion, Causal, Extent, Residual
from opdeck.core.fusion.names import split
from opdeck.core.profile.recorder import Recorder
from opdeck.core.transfer import seconds_of, to_memory, to_numpy
from opdeck.core.variant import Variant
from opdeck.core.verify import Errors, compare
from opdeck.plugins.fmha_fwd import reference
from opdeck.plugins.fmha_fwd.cases import Case, Inputs, Lengths, Shape, expected_macs, in_pages
from opdeck.plugins.fmha_fwd.profile import work

Array = npt.NDArray[Any]

MAX_ELEMS = 1 << 36  # of a tensor: what does not fit in memory is a wrong command line, not a wrong result
_ALIGN_OF_CAUSAL_TYPE = {"qbegin": "top_left", "qend": "bottom_right"}

BatchOption = Annotated[int | None, typer.Option("--b", min=0, help="Batch. Default: max(1, 16384 / k).")]
HeadsOption = Annotated[int | None, typer.Option("--h", min=0, help="Query heads. Default: 2048 / d.")]
KeyHeadsOption = Annotated[int | None, typer.Option("--h_k", min=0, help="Key heads, a divisor of h. Default: h.")]
QueriesOption = Annotated[int | None, typer.Option("--q", min=0, help="Queries a sequence. Default: k, or 256.")]
KeysOption = Annotated[int | None, typer.Option("--k", min=0, help="Keys a sequence. Default: q, or 256.")]
DimOption = Annotated[int | None, typer.Option("--d", min=1, help="Head dim. Default: 128.")]
LatentOption = Annotated[int | None, typer.Option("--dl", min=1, help="MLA: latent dim; v has it, q and k dl + dr.")]
RopeOption = Annotated[int | None, typer.Option("--dr", min=1, help="MLA: rope dim. Default, with --dl: 64.")]
VarlenOption = Annotated[bool, typer.Option("--varlen", help="Packed sequences: b of q and k rows +10 %, -10 %, ...")]
VarlenQOption = Annotated[
    str | None, typer.Option("--varlen-q", help="Packed: queries of each sequence, such as 300:0:17")
]
VarlenKOption = Annotated[str | None, typer.Option("--varlen-k", help="The same for keys. Default: those of queries.")]
PageOption = Annotated[int | None, typer.Option("--page", min=1, help="Keys in pages of so many rows, in any order.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="fp16, bf16, fp8 (fp8_e4m3) or fp8_e5m2.")]
OutDtypeOption = Annotated[str, typer.Option("--out-dtype", help="Of O. Default: --dtype, bf16 for fp8.")]
MaskOption = Annotated[
    str,
    typer.Option(
        "--mask",
        help="Of no, residual, causal and canonical names of fusions, whose run-time arguments are then drawn or those "
        "that their plugin offers; a comma-separated list combines.",
    ),
]
CausalTypeOption = Annotated[str, typer.Option("--causal-type", help="Queries at the begin (qbegin) or end (qend).")]
StyleOption = Annotated[str, typer.Option("--init-style", help="r normal, 1 ones, d i%128%4, s i/128%4, n zeros.")]
QStyleOption = Annotated[str | None, typer.Option("--init-style-q", help="The same for q alone.")]
KStyleOption = Annotated[str | None, typer.Option("--init-style-k", help="The same for k alone.")]
VStyleOption = Annotated[str | None, typer.Option("--init-style-v", help="The same for v alone.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of the random inputs.")]
IterationsOption = Annotated[
    int, typer.Option("--iterations", min=0, help="Launches that are timed; 0: one that is not.")
]
WarmupOption = Annotated[int, typer.Option("--warmup_iterations", min=0, help="Launches before these.")]
RingOption = Annotated[
    int, typer.Option("--tensor_ring_buffers", min=1, help="Copies of the tensors, which launches take in turn.")
]
FilterOption = Annotated[str, typer.Option("--kernel-filter", help="Only variants whose id matches this regex.")]
PersistentOption = Annotated[bool, typer.Option("--persistent", help="Only variants whose CTAs take several blocks.")]
SmCountOption = Annotated[
    int, typer.Option("--sm-count", min=0, help="CTAs of these. Default, and 0: one for each SM.")
]
VerifyOption = Annotated[bool, typer.Option("--verify/--no-verify", help="Compare O and LSE with the float64 oracle.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show resources, and why other variants refuse.")]


@dataclass(frozen=True)
class _Sizes:
    """The flags that say how large a problem is."""

    b: int | None = None
    h: int | None = None
    h_k: int | None = None
    q: int | None = None
    k: int | None = None
    d: int | None = None
    dl: int | None = None
    dr: int | None = None
    varlen: bool = False
    varlen_q: str | None = None
    varlen_k: str | None = None
    page: int | None = None


@dataclass(frozen=True)
class _Wanted:
    """The flags that say which of the variants that accept a problem may run."""

    kernel_filter: str
    persistent: bool

    def first_of(self, variants: list[Variant]) -> Variant | None:
        try:
            pattern = re.compile(self.kernel_filter)
        except re.error as error:
            want = "a regular expression"
            raise ArgumentError("--kernel-filter", repr(self.kernel_filter), want, str(error)) from None
        may_run = (row for row in variants if pattern.search(row.id))
        return next((row for row in may_run if not self.persistent or row.config.get("schedule") == "persistent"), None)

    def __str__(self) -> str:
        flags = (
            f"--kernel-filter={self.kernel_filter}" if self.kernel_filter else "",
            "--persistent" * self.persistent,
        )
        return " ".join(filter(None, flags))


@dataclass(frozen=True)
class _Launches:
    """What is launched how often. buffers: copies of the tensors, which launches take in turn."""

    variant: Variant
    max_ctas: int | None
    untimed: int = 0
    timed: int = 1
    buffers: int = 1


@dataclass(frozen=True)
class _Run:
    """What was launched: host inputs, host results (B, S, H, D) and (B, H, S), and the seconds of one launch; None when
    none was timed."""

    inputs: Inputs
    o: Array
    lse: Array
    launch_seconds: float | None


def run(
    b: BatchOption = None,
    h: HeadsOption = None,
    h_k: KeyHeadsOption = None,
    q: QueriesOption = None,
    k: KeysOption = None,
    d: DimOption = None,
    dl: LatentOption = None,
    dr: RopeOption = None,
    varlen: VarlenOption = False,
    varlen_q: VarlenQOption = None,
    varlen_k: VarlenKOption = None,
    page: PageOption = None,
    dtype: DtypeOption = "fp16",
    out_dtype: OutDtypeOption = "",
    mask: MaskOption = "no",
    causal_type: CausalTypeOption = "qbegin",
    init_style: StyleOption = "r",
    init_style_q: QStyleOption = None,
    init_style_k: KStyleOption = None,
    init_style_v: VStyleOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    schedule: ScheduleOption = None,
    hazards: HazardsOption = None,
    iterations: IterationsOption = 1,
    warmup_iterations: WarmupOption = 0,
    tensor_ring_buffers: RingOption = 1,
    kernel_filter: FilterOption = "",
    persistent: PersistentOption = False,
    sm_count: SmCountOption = 0,
    verify: VerifyOption = True,
    profile: ProfileOption = False,
    explore: ExploreOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Attention forward on one problem; verified against the float64 oracle. Exit status 1 when it is wrong."""
    sizes = _Sizes(b, h, h_k, q, k, d, dl, dr, varlen, varlen_q, varlen_k, page)
    case = _case(sizes, _fusion(mask, causal_type), (dtype, out_dtype), seed)
    fusion = case.fusion
    where = command_device(device, schedule, hazards)
    styles = (init_style_q or init_style, init_style_k or init_style, init_style_v or init_style)
    inputs = _inputs(case, styles, seed)
    variant = replace(_choose(inputs, fusion, where, _Wanted(kernel_filter, persistent)), fusion=fusion)
    num_untimed = max(warmup_iterations, int(iterations == 0))
    launches = _Launches(variant, sm_count or None, num_untimed, iterations, tensor_ring_buffers)
    if verbose:
        _print_verdicts(inputs, fusion, where)
    recorder = Recorder(where) if profile else None
    with recorder.recording() if recorder else nullcontext():
        done = _launch(inputs, where, launches)
    is_right = _print_launch(done, variant, where, case)
    if verbose:
        _print_resources(variant, where)
    if recorder and registry.get("fmha_fwd").last_launch is not None:
        counted = recorder.profile()
        print_profile(variant, counted, work(variant, counted))
    if explore is not None:
        is_right &= print_exploration(where, hazards, explore, lambda device: _outputs(inputs, device, launches))
    if verify:
        is_right &= _print_errors(done, case)
        print("PASS" if is_right else "FAIL")
    if not is_right:
        raise typer.Exit(1)


def explain(
    b: BatchOption = None,
    h: HeadsOption = None,
    h_k: KeyHeadsOption = None,
    q: QueriesOption = None,
    k: KeysOption = None,
    d: DimOption = None,
    dl: LatentOption = None,
    dr: RopeOption = None,
    varlen: VarlenOption = False,
    varlen_q: VarlenQOption = None,
    varlen_k: VarlenKOption = None,
    page: PageOption = None,
    dtype: DtypeOption = "fp16",
    out_dtype: OutDtypeOption = "",
    mask: MaskOption = "no",
    causal_type: CausalTypeOption = "qbegin",
    device: DeviceOption = None,
) -> None:
    """The variants of attention forward that accept the problem, with their configs, and why the others do not."""
    sizes = _Sizes(b, h, h_k, q, k, d, dl, dr, varlen, varlen_q, varlen_k, page)
    case = _case(sizes, _fusion(mask, causal_type), (dtype, out_dtype), seed=0)
    _print_verdicts(_inputs(case, ("n", "n", "n"), seed=0), case.fusion, command_device(device, None, None))


def _case(sizes: _Sizes, fusion: AttentionFusion | None, types: tuple[str, str], seed: int) -> Case:
    """The problem that the flags pose. types: of inputs, and of O ("": the usual one); seed: of the fusion's leaves."""
    shape = _shape(sizes)
    lengths = Lengths()
    if sizes.varlen or sizes.varlen_q is not None or sizes.varlen_k is not None:
        lists = _row_counts("--varlen-q", sizes.varlen_q), _row_counts("--varlen-k", sizes.varlen_k)
        for name, flag, rows in (("--q", sizes.q, lists[0]), ("--k", sizes.k, lists[1])):
            if rows is not None and flag is not None:
                raise ArgumentError(name, flag, "nothing, since its sequences are listed")
        num_seqs = next((len(rows) for rows in lists if rows is not None), shape.b)
        q = lists[0] or (lists[1] if sizes.q is None and lists[1] else _uneven(num_seqs, shape.sq))
        k = lists[1] or (q if sizes.k is None else _uneven(num_seqs, shape.sk))
        for name, num in (("--varlen-k", len(k)), ("--b", num_seqs if sizes.b is None else sizes.b)):
            if num != len(q):
                raise ArgumentError(name, f"{num} sequences", f"{len(q)}")
        lengths = Lengths(q, k)
        shape = replace(shape, b=1, sq=sum(q), sk=sum(k))
    if sizes.page is not None:
        used_k = (shape.sk,) * shape.b if lengths.k is None else lengths.k
        lengths = Lengths(lengths.q, used_k=used_k, page_rows=sizes.page)
        shape = replace(shape, sk=-(-max((1, *used_k)) // sizes.page) * sizes.page)
    dtype, out_dtype = dtypes.dtype(types[0], "--dtype").name, types[1]
    if out_dtype:
        out_dtype = dtypes.dtype(out_dtype, "--out-dtype").name
    case = Case(shape, None, dtype, lengths=lengths, out_dtype=out_dtype)
    return replace(case, fusion=_sampled(fusion, case, seed))


def _row_counts(flag: str, text: str | None) -> tuple[int, ...] | None:
    """The numbers of a:b:..."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(:\d+)*", text):
        raise ArgumentError(flag, repr(text), "rows of each sequence, a:b:...")
    return tuple(map(int, text.split(":")))


def _uneven(num_seqs: int, mean_rows: int) -> tuple[int, ...]:
    """num_seqs * mean_rows rows, in sequences 10 % longer and 10 % shorter than the mean in turn."""
    rows = [mean_rows + (-1) ** seq * mean_rows // 10 for seq in range(num_seqs - 1)]
    return (*rows, num_seqs * mean_rows - sum(rows)) if num_seqs > 0 else ()


def _shape(sizes: _Sizes) -> Shape:
    q, k = sizes.q, sizes.k
    sq = q if q is not None else k if k is not None else 256
    sk = k if k is not None else sq
    d, d_v = _head_dims(sizes)
    hq = sizes.h if sizes.h is not None else max(1, 2048 // d_v)
    batch = sizes.b if sizes.b is not None else max(1, 16384 // max(1, sk))
    return Shape(batch, hq, sizes.h_k if sizes.h_k is not None else hq, sq, sk, d, None if d_v == d else d_v)


def _head_dims(sizes: _Sizes) -> tuple[int, int]:
    """Those of q and k, and of v."""
    if sizes.dl is None:
        if sizes.dr is not None:
            raise ArgumentError("--dr", sizes.dr, "nothing, without --dl")
        d = 128 if sizes.d is None else sizes.d
        return d, d
    if sizes.d is not None:
        raise ArgumentError("--d", sizes.d, "nothing, since --dl says it")
    return sizes.dl + (64 if sizes.dr is None else sizes.dr), sizes.dl


def _fusion(mask: str, causal_type: str) -> AttentionFusion | None:
    if causal_type not in _ALIGN_OF_CAUSAL_TYPE:
        raise ArgumentError("--causal-type", repr(causal_type), "|".join(_ALIGN_OF_CAUSAL_TYPE))
    by_name = {"no": Residual(), "residual": Residual(), "causal": Causal(align=_ALIGN_OF_CAUSAL_TYPE[causal_type])}
    want = f"a comma-separated list of {'|'.join(by_name)} and canonical names, whose run-time arguments are drawn"
    combined: AttentionFusion = Residual()
    for name in split(mask, ","):
        try:
            fusion = by_name.get(name) or registry.fusion(name) or Residual()
        except ArgumentError as error:
            raise ArgumentError("--mask", repr(mask), want, str(error)) from None
        if not isinstance(fusion, AttentionFusion):
            raise ArgumentError("--mask", repr(mask), want, f"{name} is an activation")
        combined &= fusion
    return None if combined == Residual() else combined


def _sampled(fusion: AttentionFusion | None, case: Case, seed: int) -> AttentionFusion | None:
    """The fusion with run-time arguments that fit the case."""
    if fusion is None:
        return None
    sequences = case.sequences()
    sq, sk = (max(rows, default=0) for rows in zip(*sequences, strict=True)) if sequences else (0, 0)
    extent = Extent(len(sequences), case.shape.hq, sq, sk, sequences or None)
    return fusion.sample(extent, np.random.default_rng(seed))


def _inputs(case: Case, styles: tuple[str, str, str], seed: int) -> Inputs:
    """Inputs of the given styles, and outputs that hold NaN."""
    shape, element = case.shape, dtypes.dtype(case.dtype).numpy
    rng = np.random.default_rng(seed)
    query_shape, key_shape = (shape.b, shape.sq, shape.hq, shape.d), (case.num_k_entries, shape.sk, shape.hk, shape.d)
    value_shape, output_shape = (*key_shape[:3], shape.d_v), (*query_shape[:3], shape.d_v)
    q, k, v = (
        reference.saturated(_fill(extents, style, rng), element)
        for extents, style in zip((query_shape, key_shape, value_shape), styles, strict=True)
    )
    lse = np.full((shape.b, shape.hq, shape.sq), np.nan, np.float32)
    k, v, tables = in_pages(k, v, case.lengths, seed)
    o = np.full(output_shape, np.nan).astype(case.o_dtype.numpy)
    return Inputs(q, k, v, o, lse, case.lengths.arrays() | tables)


def _fill(extents: tuple[int, ...], style: str, rng: np.random.Generator) -> Array:
    if prod(extents) >= MAX_ELEMS:
        raise ArgumentError("--b, --h, --h_k, --q, --k, --d", f"a tensor {extents}", "one of less than 2^36 elements")
    index = np.arange(np.prod(extents, dtype=np.int64)).reshape(extents)
    if style == "r":
        return rng.standard_normal(extents, np.float32)
    if style == "d":
        return index % 128 % 4
    if style == "s":
        return index // 128 % 4
    if style in ("1", "n"):
        return np.full(extents, float(style == "1"))
    raise ArgumentError("--init-style", repr(style), "r|1|d|s|n")


def _choose(inputs: Inputs, fusion: AttentionFusion | None, where: Device, wanted: _Wanted) -> Variant:
    operator = registry.get("fmha_fwd")
    tensors = _in_memory(inputs, where)
    chosen = operator.prepare(**tensors, mask=fusion, device=where)
    problem = operator.problem(**tensors, mask=fusion, device=where)
    others = [row.variant for row in operator.explain(problem) if not row.reasons]
    variant = wanted.first_of([chosen, *others])
    if variant is None:
        names = ", ".join(row.id for row in others)
        raise Unsupported(f"{problem}: {wanted} leaves none of the variants that accept it, {names}", [])
    return variant


def _in_memory(inputs: Inputs, where: Device) -> dict[str, Any]:
    """The arguments of a call, in the memory of a device."""
    return {name: to_memory(array, where.memory) for name, array in inputs.arguments().items()}


def _launch(inputs: Inputs, where: Device, launches: _Launches) -> _Run:
    operator, variant = registry.get("fmha_fwd"), launches.variant
    copies = [_in_memory(inputs, where) for _ in range(launches.buffers)]
    calls = [
        partial(operator, **tensors, mask=variant.fusion, max_ctas=launches.max_ctas, device=where, variant=variant.id)
        for tensors in copies
    ]
    operator.prepare(*calls[0].args, **calls[0].keywords)  # so that no compiling is timed
    next_calls = cycle(calls)
    for _ in range(launches.untimed):
        next(next_calls)()
    seconds = seconds_of(where.memory, lambda: [next(next_calls)() for _ in range(launches.timed)])
    # Copies that no launch got to hold NaN.
    used = copies[: launches.untimed + launches.timed]
    o, lse = (np.stack([to_numpy(tensors[name]) for tensors in used]) for name in ("out", "lse"))
    if not all(np.array_equal(array, array[:1].repeat(len(used), axis=0), equal_nan=True) for array in (o, lse)):
        raise OpdeckError(f"{variant.id}: launches on copies of the same tensors gave different results")
    launch_seconds = seconds / launches.timed if launches.timed else None
    return _Run(inputs, o[0].reshape(inputs.o.shape), lse[0].reshape(inputs.lse.shape), launch_seconds)


def _outputs(inputs: Inputs, where: Device, launches: _Launches) -> tuple[Array, Array]:
    """O and LSE of one launch."""
    done = _launch(inputs, where, replace(launches, untimed=0, timed=1, buffers=1))
    return done.o, done.lse


def _print_launch(done: _Run, variant: Variant, where: Device, case: Case) -> bool:
    """Prints what ran. False when the kernel did not do the work that its tiles need."""
    is_right = True
    lines = {
        "variant": variant.id,
        "arch": variant.arch,
        "device": where.name,
        "config": variant.config_text or "-",
        "problem": " ".join(filter(None, (str(case.shape), str(case.lengths)))),
        "cubin SHA-256": where.cubin_sha256(variant) or "-",
    }
    report = where.last_report() if registry.get("fmha_fwd").last_launch is not None else None
    if report is not None:
        wanted_macs = expected_macs(case, variant)
        is_right = report.mma_macs == wanted_macs
        lines |= {
            "CTAs": str(report.num_ctas),
            "warp-instructions": str(report.warp_instructions),
            "MMA MACs": f"{report.mma_macs} (its tiles need {wanted_macs})",
            "TMA bytes": f"{report.tma_load_bytes} in, {report.tma_store_bytes} out",
        }
    whose = "host" if where.memory == "cpu" else "GPU"
    if done.launch_seconds is not None:
        lines["time a launch"] = f"{done.launch_seconds * 1e3:.3f} ms of the {whose}'s clock"
    for name, text in lines.items():
        print(f"{name:<18}{text}")
    return is_right


def _print_resources(variant: Variant, where: Device) -> None:
    resources = where.resources(variant)
    if resources is not None:
        print(f"{'shared memory':<18}{resources.smem_bytes} bytes a CTA")
        print(f"{'threads':<18}{resources.num_threads} a CTA, launched with {resources.num_registers} registers each")


def _print_errors(done: _Run, case: Case) -> bool:
    """Prints how far the results are from the oracle's; whether they are within the tolerances."""
    inputs = done.inputs
    scale = inputs.q.shape[3] ** -0.5
    want = reference.forward(inputs.q, inputs.k, inputs.v, case.fusion, scale, inputs.options)
    is_right = True
    for name, got, wanted, tolerance in zip(("O", "LSE"), (done.o, done.lse), want, case.tolerances, strict=True):
        errors = compare(got, wanted)
        _print_error(name, errors, tolerance)
        is_right &= errors.within(tolerance)
    return is_right


def _print_error(name: str, errors: Errors, tolerance: dtypes.Tolerance) -> None:
    limits = f"max {tolerance.max_abs:.0e}  mean {tolerance.mean_abs:.0e}  relative {tolerance.relative:.0e}"
    print(f"{name + ' error':<18}{errors}  (at most {limits})")


def _print_verdicts(inputs: Inputs, fusion: AttentionFusion | None, where: Device) -> None:
    operator = registry.get("fmha_fwd")
    print_verdicts(operator, operator.problem(**_in_memory(inputs, where), mask=fusion, device=where))
