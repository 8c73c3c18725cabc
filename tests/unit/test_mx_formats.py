# SPDX-License-Identifier: Apache-2.0
"""Block-scaled formats: the quantiser against arithmetic of its own, packing, scale layouts, and what is refused."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from typer.testing import CliRunner

from opdeck.core import mx, packing
from opdeck.core.cli.main import command_line
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.mx import FORMATS, MxFormat, MxTensor

E8M0_FORMATS = [row for row in FORMATS if row.scale_name == "e8m0"]
NVFP4 = mx.mx_format("nvfp4")


def ids(row: MxFormat) -> str:
    return row.name


def every_value(row: MxFormat) -> list[Fraction]:
    """The finite values of a format's elements, each once."""
    codes = np.arange(1 << row.bits, dtype=np.uint8).view(row.element.numpy).astype(np.float64)
    return sorted({Fraction(float(value)) for value in codes if math.isfinite(value)})


def is_even(value: Fraction, row: MxFormat) -> bool:
    code = np.array(float(value)).astype(row.element.numpy).view(np.uint8)
    return int(code) % 2 == 0


def nearest(exact: Fraction, row: MxFormat, values: list[Fraction]) -> Fraction:
    """The element nearest to a number, of two the one with an even code; the largest beyond them."""
    clamped = min(max(exact, values[0]), values[-1])
    distance = min(abs(value - clamped) for value in values)
    candidates = [value for value in values if abs(value - clamped) == distance]
    return candidates[0] if len(candidates) == 1 else next(value for value in candidates if is_even(value, row))


def block_scale(block: np.ndarray, row: MxFormat, rounding: str) -> Fraction:
    """The power of two that the OCP specification gives a block, by exact arithmetic."""
    amax = max(abs(Fraction(float(value))) for value in block)
    exponent = -127
    for candidate in range(-127, 128):
        scale = Fraction(2) ** candidate
        is_right = (
            scale * Fraction(2) ** row.emax <= amax
            if rounding == "floor"
            else amax > scale / 2 * Fraction(row.max_normal)
        )
        if is_right:
            exponent = candidate
    return Fraction(2) ** exponent


@pytest.mark.parametrize(
    ("name", "emax", "max_normal", "bits"),
    [
        ("mxfp8_e4m3", 8, 448, 8),
        ("mxfp8_e5m2", 15, 57344, 8),
        ("mxfp6_e3m2", 4, 28, 6),
        ("mxfp6_e2m3", 2, 7.5, 6),
        ("mxfp4", 2, 6, 4),
        ("nvfp4", 2, 6, 4),
    ],
)
def test_the_table_is_the_standards(name: str, emax: int, max_normal: float, bits: int) -> None:
    row = mx.mx_format(name)
    assert (row.emax, row.max_normal, row.bits) == (emax, max_normal, bits)


floats = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-8, 8, width=32),
    st.sampled_from([0.0, -0.0, 2.0**-127, 2.0**-149, 5.7e-35, 3.4e38, 1.0, 448.0, 6.0, 7.0]),
)


@settings(deadline=None, max_examples=60)
@given(
    x=hnp.arrays(np.float32, (1, 32), elements=floats),
    row=st.sampled_from(E8M0_FORMATS),
    rounding=st.sampled_from(["floor", "ceil"]),
)
def test_a_block_is_quantised_as_the_standard_says(x: np.ndarray, row: MxFormat, rounding: str) -> None:
    tensor = mx.quantize(x, row, rounding)
    scale = block_scale(x[0], row, rounding)
    assert float(tensor.linear_scales.astype(np.float64)[0, 0]) == float(scale)
    values = every_value(row)
    want = [float(nearest(Fraction(float(value)) / scale, row, values)) for value in x[0]]
    assert np.array_equal(tensor.elements()[0].astype(np.float64), want)


@settings(deadline=None, max_examples=60)
@given(x=hnp.arrays(np.float32, (2, 32), elements=st.floats(-1000, 1000, width=32)))
def test_nvfp4_scales_are_the_nearest_e4m3(x: np.ndarray) -> None:
    tensor = mx.quantize(x, NVFP4)
    amax = float(np.abs(x).max())
    assert tensor.global_scale == (float(np.float32(max(amax / (6 * 448), 2.0**-126))) if amax > 0 else 1.0)
    assert mx.global_scale_of(x) == tensor.global_scale
    wanted = np.abs(x.astype(np.float64)).reshape(2, 2, 16).max(axis=-1) / tensor.global_scale / 6
    scales = tensor.linear_scales
    # Nearest to a quotient that is formed in fp32, so that a number next to the middle of two may go either way.
    low, high = (np.minimum(wanted * factor, 448).astype(scales.dtype) for factor in (1 - 2**-22, 1 + 2**-22))
    assert (low.view(np.uint8) <= scales.view(np.uint8)).all()
    assert (scales.view(np.uint8) <= high.view(np.uint8)).all()
    errors = np.abs(mx.exact_values(tensor) - x).reshape(2, 2, 16)
    # Half the widest step between elements, and what saturates because a scale was rounded down.
    step = np.maximum(1.0 * scales.astype(np.float64), 6 * (wanted - scales.astype(np.float64)))
    assert (errors <= step[..., None] * tensor.global_scale * (1 + 1e-6)).all()


@pytest.mark.parametrize("row", FORMATS, ids=ids)
def test_rounding_up_saturates_nothing(row: MxFormat) -> None:
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    by_rounding = {rounding: mx.quantize(x, row, rounding) for rounding in ("floor", "ceil")}
    for rounding, is_wanted in (("floor", True), ("ceil", False)):
        tensor = by_rounding[rounding]
        scales = np.repeat(tensor.linear_scales.astype(np.float64), row.block, axis=-1) * tensor.global_scale
        assert (np.abs(x) > scales * row.max_normal * (1 + 1e-6)).any() == is_wanted


@pytest.mark.parametrize("row", FORMATS, ids=ids)
def test_zeros_subnormals_and_what_is_not_finite(row: MxFormat) -> None:
    """Inputs for which quantisers of other libraries give NaN, infinity or a lost zero."""
    x = np.zeros((6, 64), np.float32)
    x[1, :32] = 5.7e-35
    x[2, 3], x[3, 40] = np.nan, -np.inf
    x[4] = 2.0**-127
    x[5] = 1.0
    for source in (x, x.astype(ml_dtypes.bfloat16)):
        tensor = mx.quantize(source, row)
        scales, values = tensor.linear_scales, mx.exact_values(tensor)
        assert not tensor.elements()[0].view(np.uint8).any()
        assert not scales[0].view(np.uint8).any()
        is_nan = np.isnan(values)
        num_blocks_a_half = 32 // row.block
        expected = np.zeros((6, 64 // row.block), bool)
        expected[2, 3 // row.block] = expected[3, 40 // row.block] = True
        assert np.array_equal(np.isnan(scales.astype(np.float32)), expected)
        assert np.array_equal(is_nan, np.repeat(expected, row.block, axis=-1))
        assert not values[1, 32:].any()
        assert not values[0].any()
        if row.scale_name == "e8m0":
            assert scales.view(np.uint8)[2, 0] == 255
            assert np.allclose(values[1, :32], 5.7e-35, rtol=0.13)
            assert np.array_equal(values[4], x[4].astype(np.float64))
        assert num_blocks_a_half in (1, 2)
        assert np.array_equal(values[5], x[5]) or row is NVFP4


@pytest.mark.parametrize(("bits", "shape"), [(4, (3, 64)), (6, (2, 3, 32))])
def test_packing(bits: int, shape: tuple[int, ...]) -> None:
    codes = np.random.default_rng(1).integers(0, 1 << bits, shape).astype(np.uint8)
    packed = packing.pack(codes, bits)
    assert packed.shape == (*shape[:-1], shape[-1] * bits // 8)
    assert np.array_equal(packing.unpack(packed, bits), codes)
    whole = int.from_bytes(packed[0].tobytes(), "little")
    for i, code in enumerate(codes[0].reshape(-1)):
        assert (whole >> (bits * i)) & ((1 << bits) - 1) == code


@pytest.mark.parametrize(("rows", "cols", "batch"), [(1, 1, ()), (128, 4, ()), (130, 5, (2,)), (300, 9, ())])
def test_scale_tiles(rows: int, cols: int, batch: tuple[int, ...]) -> None:
    linear = np.random.default_rng(2).integers(1, 256, (*batch, rows, cols)).astype(np.uint8)
    tiles = mx.tile_scales(linear)
    row_tiles, col_tiles = -(-rows // 128), -(-cols // 4)
    assert tiles.shape == (*batch, row_tiles, col_tiles, 512)
    for r, c in itertools.product(range(0, rows, 7), range(cols)):
        got = tiles[..., r // 128, c // 4, (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4]
        assert np.array_equal(got, linear[..., r, c])
    assert np.count_nonzero(tiles) == linear.size  # what pads them is zero
    assert np.array_equal(mx.untile_scales(tiles, rows, cols), linear)


@pytest.mark.parametrize("row", FORMATS, ids=ids)
def test_parts_make_the_tensor_again(row: MxFormat) -> None:
    x = np.random.default_rng(3).standard_normal((2, 130, 96)).astype(np.float32)
    tensor = mx.quantize(x, row)
    assert tensor.pitch_elems == row.pitch_elems(96) == (96 if row.bits == 8 else 128)
    for layout, scales in (("linear", tensor.linear_scales), ("128x4", tensor.scales.reshape(-1).view(np.uint8))):
        again = MxTensor.from_parts(tensor.data, scales, row.name, 96, layout, tensor.global_scale)
        assert np.array_equal(mx.exact_values(again), mx.exact_values(tensor))
    assert np.array_equal(mx.dequantize(tensor), mx.exact_values(tensor).astype(np.float32))


def test_memory_of_a_weight() -> None:
    """A 4096 x 4096 weight: 8 MiB and 0.5 MiB of scales, of 32 in fp16."""
    assert mx.mx_format("mxfp4").memory_bytes(4096, 4096) == (8 << 20, 1 << 19)


def test_refusals() -> None:
    x = np.zeros((4, 64), np.float32)
    tensor = mx.quantize(x, "mxfp4")
    with pytest.raises(ArgumentError, match=r"format: got 'mxfp5', want mxfp8_e4m3\|"):
        mx.quantize(x, "mxfp5")
    with pytest.raises(ArgumentError, match=r"format: got \['mxfp4'\], want mxfp8_e4m3\|"):
        mx.quantize(x, ["mxfp4"])
    with pytest.raises(ArgumentError, match=r"rounding: got 'up', want floor\|ceil"):
        mx.quantize(x, "mxfp4", "up")
    with pytest.raises(ArgumentError, match=r"global_scale: got 2.0, want None: mxfp4 has none"):
        mx.quantize(x, "mxfp4", global_scale=2.0)
    with pytest.raises(ArgumentError, match=r"global_scale: got 0.0, want a positive normal number of fp32"):
        mx.quantize(x, "nvfp4", global_scale=0.0)
    with pytest.raises(ArgumentError, match=r"x: got shape \(4, 48\), want .* K a multiple of 32"):
        mx.quantize(x[:, :48], "mxfp4")
    with pytest.raises(ArgumentTypeError, match=r"x: got dtype int32, want fp32\|fp16\|bf16"):
        mx.quantize(x.astype(np.int32), "mxfp4")
    with pytest.raises(ArgumentError, match=r"scales: got 4 bytes, .* want 512 for mxfp4 \(4, 64\)"):
        MxTensor.from_parts(tensor.data, np.zeros(4, np.uint8), "mxfp4", 64)
    with pytest.raises(ArgumentError, match=r"scales: .* want 8 for mxfp4 \(4, 64\) in layout linear"):
        MxTensor.from_parts(tensor.data, tensor.scales, "mxfp4", 64, "linear")
    with pytest.raises(ArgumentTypeError, match=r"data: got dtype float4_e2m1fn, want uint8.*packed"):
        MxTensor.from_parts(tensor.elements(), tensor.scales, "mxfp4", 64)
    with pytest.raises(ArgumentError, match=r"data: got shape \(4, 64\), want \(4, 96\), or longer rows"):
        MxTensor(tensor.format, tensor.data, tensor.scales, (4, 192))
    with pytest.raises(ArgumentTypeError, match="global_scale: got '2', want a number"):
        mx.quantize(x, "nvfp4", global_scale="2")
    with pytest.raises(ArgumentTypeError, match="global_scale: got None, want a number"):
        MxTensor.from_parts(tensor.data, tensor.scales, "mxfp4", 64, global_scale=None)
    with pytest.raises(ArgumentTypeError, match=r"k: got 64\.0, want an int"):
        MxTensor.from_parts(tensor.data, tensor.scales, "mxfp4", 64.0)
    with pytest.raises(ArgumentError, match=r"k: got \(4, -32\), want .* K a multiple of 32"):
        MxTensor.from_parts(tensor.data, tensor.scales, "mxfp4", -32)
    with pytest.raises(ArgumentError, match=r"data: got shape \(128,\), want \(rows, K\) or \(batch, rows, K\)"):
        MxTensor.from_parts(np.zeros(128, np.uint8), tensor.scales, "mxfp4")
    with pytest.raises(ArgumentError, match="global_scale: got inf"):
        MxTensor(tensor.format, tensor.data, tensor.scales, (4, 64), math.inf)


def test_accuracy_is_that_of_the_worst_block() -> None:
    x = np.ones((1, 96), np.float32)
    x[0, 32:64] = 0.0
    x[0, 64] = 1.125  # between two elements: all else is exact
    found = mx.accuracy(mx.quantize(x, "mxfp4"), x)
    assert (found.max_abs, found.relative) == (0.125, 0.125 / 1.125)
    signal = 31 + 1.125**2
    assert found.worst_block_snr_db == pytest.approx(10 * math.log10(signal / 0.125**2))
    assert found.snr_db == pytest.approx(10 * math.log10((32 + signal) / 0.125**2))
    assert math.isinf(found.block_snr_db[0, 0])
    assert math.isnan(found.block_snr_db[0, 1])


def test_the_report_has_the_memory_of_every_format() -> None:
    result = CliRunner().invoke(command_line(), ["mx", "report", "4096", "4096", "4096"])
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert list(lines)[2:] == [row.name for row in FORMATS]
    assert lines["mxfp4"].split()[1:8] == ["8", "MiB", "8", "MiB", "1", "MiB", "3.76"]
    assert "in fp16 32 MiB and 32 MiB" in lines["A"]
    assert isinstance(CliRunner().invoke(command_line(), ["mx", "report", "4", "4", "40"]).exception, ArgumentError)


def test_one_step_of_newton_rounds_reciprocals_of_e4m3_scales_to_nearest() -> None:
    """What kernels do instead of a division, from approximations that are off by up to two steps of fp32."""
    scales = np.arange(1, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    wanted = np.float32(1.0) / scales.astype(np.float32)
    for step in range(-2, 3):
        near = (wanted.view(np.int32) + step).view(np.float32).astype(np.float64)
        error = 1.0 - scales * near  # exact in float64, and an fp32 number
        assert (error.astype(np.float32) == error).all()
        assert np.array_equal((near + error * near).astype(np.float32), wanted)
