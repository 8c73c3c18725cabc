# SPDX-License-Identifier: Apache-2.0
"""The emulator against an H200: every unit kernel on the emulated sm_90a, compared with `vectors/`.

Bit for bit, but for the approximations (ex2, lg2, tanh, ...), which have bounds.
"""

from __future__ import annotations

import hashlib
import pathlib

import elementwise
import memory_units
import numpy as np
import pytest
from driver import Driver, DriverFault
from elementwise import NUM_ELEMS, NUM_THREADS, Unit
from runner import run_tma, run_unit, run_wgmma
from tensor_units import TMA_UNITS, WGMMA_UNITS, TmaUnit, WgmmaUnit

VECTORS = pathlib.Path(__file__).parent / "vectors"
UNITS = (*elementwise.UNITS, *memory_units.UNITS)


@pytest.fixture(scope="session")
def driver() -> Driver:
    from opdeck import abi

    return Driver(str(abi.emulator_path()), ordinal=0)


@pytest.fixture(scope="session")
def vectors() -> dict[str, np.ndarray]:
    rows: dict[str, np.ndarray] = {}
    for group in ("units", "tma", "wgmma"):
        with np.load(VECTORS / f"{group}.npz") as stored:
            rows.update(stored)
    return rows


def _sha256(raw: np.ndarray) -> bytes:
    return hashlib.sha256(raw.tobytes()).digest()


def _assert_same(name: str, got: np.ndarray, vectors: dict[str, np.ndarray]) -> None:
    words = np.ascontiguousarray(got).reshape(-1).view(np.uint32)
    want = vectors[f"{name}/words"]
    differs = np.flatnonzero(words[: len(want)] != want)
    assert differs.size == 0, (
        f"{name}: word {differs[0]} is {words[differs[0]]:#010x}, on an H200 {want[differs[0]]:#010x}"
    )
    assert _sha256(got) == vectors[f"{name}/sha256"].tobytes(), f"{name}: differs past the first {len(want)} words"


def ulp_distance(got: np.ndarray, want: np.ndarray, bits: int) -> np.ndarray:
    """Units of the last place between two arrays of float bit patterns of `bits` bits; two NaNs are equal."""
    exponent = {32: 0x7F800000, 16: 0x7C00, -16: 0x7F80}[bits]
    top, mask = 1 << (abs(bits) - 1), (1 << abs(bits)) - 1

    def ordered(raw: np.ndarray) -> np.ndarray:
        raw = raw.astype(np.int64) & mask
        return np.where(raw & top, -(raw & (top - 1)), raw)

    nans = ((got & (top - 1)) > exponent) & ((want & (top - 1)) > exponent)
    return np.where(nans, 0, np.abs(ordered(got) - ordered(want)))


@pytest.mark.parametrize("unit", [u for u in UNITS if not u.ulp_bound], ids=lambda u: u.name)
def test_unit_is_bit_for_bit(driver: Driver, vectors: dict[str, np.ndarray], unit: Unit) -> None:
    _assert_same(unit.name, run_unit(driver, unit), vectors)


@pytest.mark.parametrize("unit", [u for u in UNITS if u.ulp_bound], ids=lambda u: u.name)
def test_approximation_is_within_its_bound(driver: Driver, vectors: dict[str, np.ndarray], unit: Unit) -> None:
    want = vectors[f"{unit.name}/words"].reshape(-1, 2)[:, 0]
    num_elems = -(-len(want) // NUM_THREADS) * NUM_THREADS
    assert num_elems <= NUM_ELEMS
    got = run_unit(driver, unit, num_elems)[: len(want), 0]
    if unit.name.endswith("x2"):
        bits = -16 if "bf16" in unit.name else 16
        distance = np.maximum(
            ulp_distance(got & 0xFFFF, want & 0xFFFF, bits), ulp_distance(got >> 16, want >> 16, bits)
        )
    else:
        distance = ulp_distance(got, want, 32)
        with np.errstate(invalid="ignore"):
            distance[np.abs(got.view(np.float32) - want.view(np.float32)) <= unit.abs_bound] = 0
    worst = int(distance.argmax())
    assert distance[worst] <= unit.ulp_bound, (
        f"{unit.name}: of {unit.input_words()[worst, 0]:#010x} got {got[worst]:#010x}, on an H200 {want[worst]:#010x}"
    )


@pytest.mark.parametrize("unit", TMA_UNITS, ids=lambda u: u.name)
def test_tma(driver: Driver, vectors: dict[str, np.ndarray], unit: TmaUnit) -> None:
    tensor_map = vectors[f"{unit.name}/map"].tobytes()
    if f"{unit.name}/trap" in vectors:
        with pytest.raises(DriverFault, match="coordinate"):
            run_tma(driver, unit, tensor_map)
        return
    _assert_same(unit.name, run_tma(driver, unit, tensor_map), vectors)


@pytest.mark.parametrize("unit", WGMMA_UNITS, ids=lambda u: u.name)
def test_wgmma(driver: Driver, vectors: dict[str, np.ndarray], unit: WgmmaUnit) -> None:
    """Layouts and types by sums of small whole numbers, exact in any order; the order and width of sums by others."""
    _assert_same(unit.name, run_wgmma(driver, unit), vectors)
