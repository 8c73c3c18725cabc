# SPDX-License-Identifier: Apache-2.0
"""`//` and `%` of the DSL's numbers: Python's in users' code while it is traced, else the DSL's, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import Coords, Mask, Score, calls

cutlass = pytest.importorskip("cutlass")


def traced(build: Callable[[Any, Any], Any]) -> str:
    """The code of a function of two int32, by what it makes of them."""
    from cutlass._mlir import ir
    from cutlass._mlir.dialects import func

    with ir.Context(), ir.Location.unknown():
        module, i32 = ir.Module.create(), ir.IntegerType.get_signless(32)
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ([i32, i32], []))
        with ir.InsertionPoint(function.add_entry_block()):
            build(*map(cutlass.Int32, function.arguments))
            func.ReturnOp([])
        return str(module)


def coords(q: Any, k: Any) -> Coords:
    return Coords(0, 0, q, k, 1, 1)


@dataclass(frozen=True)
class Odd(Mask):
    """Shows every third key."""

    name: ClassVar[str] = "divisions.odd"

    def visible(self, coords: Coords) -> Any:
        return (coords.q - coords.k) % 3 == 1


def odd(self: Any, at: Coords) -> Any:
    return (at.q - at.k) % 3 == 1


@dataclass(frozen=True)
class OddByAssignment(Mask):
    name: ClassVar[str] = "divisions.odd_by_assignment"

    visible = odd


class OddKeys:
    """What several fusions share, itself none."""

    def visible(self, coords: Coords) -> Any:
        return (coords.q - coords.k) % 3 == 1


@dataclass(frozen=True)
class OddByMixin(OddKeys, Mask):
    name: ClassVar[str] = "divisions.odd_by_mixin"


@dataclass(frozen=True)
class Natural(Score):
    name: ClassVar[str] = "divisions.natural"

    def score(self, score: Any, coords: Coords) -> Any:
        return score + coords.k % 3


@dataclass(frozen=True)
class Shifted(Score):
    """Asks another fusion about keys that there are not."""

    inner: Natural = Natural()

    name: ClassVar[str] = "divisions.shifted"

    def score(self, score: Any, coords: Coords) -> Any:
        return self.inner.score(score, coords._replace(k=coords.k - 5))


def is_rounded_down(code: str) -> bool:
    assert code.count("arith.remsi") == 1
    return "arith.select" in code


def test_the_dsls_own_remainder_has_the_sign_of_the_dividend() -> None:
    assert not is_rounded_down(traced(lambda a, b: a % b))


def test_methods_and_functions_have_pythons() -> None:
    assert is_rounded_down(traced(lambda a, b: Odd().visible(coords(a, b))))
    assert is_rounded_down(traced(lambda a, b: calls.call(lambda at: at.q % at.k, coords(a, b))))


@pytest.mark.parametrize("fusion", [OddByAssignment(), OddByMixin()], ids=lambda fusion: fusion.name)
def test_so_have_methods_that_the_class_has_from_elsewhere(fusion: Mask) -> None:
    assert is_rounded_down(traced(lambda a, b: fusion.visible(coords(a, b))))


def test_coordinates_are_not_negative() -> None:
    """Their remainders take no more instructions."""
    assert not is_rounded_down(traced(lambda a, b: Natural().score(cutlass.Float32(0.0), coords(a, b))))


def test_what_a_fusion_makes_of_coordinates_may_be() -> None:
    assert is_rounded_down(traced(lambda a, b: Shifted().score(cutlass.Float32(0.0), coords(a, b))))


def test_threads_do_not_see_each_others() -> None:
    """One is in a user's function while the other traces a kernel of its own, and leaves it first."""
    inside, done = threading.Event(), threading.Event()

    def waits(at: Coords) -> Any:
        inside.set()
        assert done.wait(60)
        return at.q % at.k

    def plain(a: Any, b: Any) -> Any:
        assert inside.wait(60)
        return a % b

    kept = cutlass.Numeric.__mod__, cutlass.Numeric.__rmod__
    with ThreadPoolExecutor(2) as pool:
        users = pool.submit(traced, lambda a, b: calls.call(waits, coords(a, b)))
        plain_code = pool.submit(traced, plain).result(60)
        both_code = pool.submit(traced, lambda a, b: calls.call(lambda at: at.q % at.k, coords(a, b))).result(60)
        done.set()
        assert is_rounded_down(users.result(60))
    assert not is_rounded_down(plain_code)
    assert is_rounded_down(both_code)
    assert kept == (cutlass.Numeric.__mod__, cutlass.Numeric.__rmod__)


def test_an_error_leaves_the_dsls_numbers_as_they_were() -> None:
    kept = cutlass.Numeric.__mod__

    def fails(at: Coords) -> Any:
        raise ValueError("no")

    with pytest.raises(ArgumentError, match="ValueError: no"):
        traced(lambda a, b: calls.call(fails, coords(a, b)))
    assert cutlass.Numeric.__mod__ is kept
