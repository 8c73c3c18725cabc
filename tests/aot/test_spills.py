# SPDX-License-Identifier: Apache-2.0
"""A preferred kernel that spills: the one that stands in for it is launched and packed, in Python and C alike."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copy_plugin.family import NUM_COLS, SCHEMA
from copy_plugin.preferring import FEW_ROWS, rows, spilling
from packs import SCHEMAS, chosen_by_c
from typer.testing import CliRunner

from opdeck.aot import build, cli, ensure, known_spill, without_spills
from opdeck.aot.plan import stand_ins
from opdeck.core.arrays import view
from opdeck.core.devices import LaunchArgs
from opdeck.core.devices.native import NativeDevice
from opdeck.core.errors import SpillError
from opdeck.core.operator import Operator
from opdeck.core.registry import Registry
from opdeck.core.schema import Rule

PLAIN = rows([None])[0]
SPILLING = spilling(PLAIN)
DEVICE = "emulator:sm_100a"


@pytest.fixture
def preferring() -> Registry:
    """With an operator that has no plans of other tests."""
    return Registry([importlib.metadata.EntryPoint("copy", "copy_plugin.preferring", "opdeck.plugins")])


@pytest.fixture
def copy(preferring: Registry) -> Operator:
    return preferring.get("copy")


def x_of(num_rows: int) -> Any:
    return np.arange(num_rows * NUM_COLS, dtype=np.float32).reshape(num_rows, NUM_COLS)


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("opdeck.aot.builder.compile_all", compile_nothing)


def chosen_of(device: NativeDevice, num_rows: int) -> str:
    """The variant that libopdeck selects among the packs of a device."""
    x = x_of(num_rows)
    args = LaunchArgs({"x": view(x, "x"), "y": view(x.copy(), "y")}, {"factor": 1.0}, None, (), None)
    return chosen_by_c(device, SCHEMA, PLAIN, args)


def test_a_call_launches_what_stands_in(copy: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    x = x_of(FEW_ROWS + 1)
    problem = copy.problem(x, device=DEVICE)
    np.testing.assert_array_equal(copy(x, factor=3.0, device=DEVICE), 3 * x)
    assert copy.last_launch.variant == PLAIN
    assert copy.prepare(x, device=DEVICE) == copy.select(problem) == PLAIN
    reasons = {row.variant.id: row.reasons for row in copy.explain(problem)}
    assert reasons[PLAIN.id] == ()
    assert reasons[SPILLING.id][0].startswith(f"opdeck_{SPILLING.id}_0 spills: got a stack frame of ")
    forbid_compiling(monkeypatch)
    more = x_of(FEW_ROWS + 2)
    np.testing.assert_array_equal(copy(more, factor=3.0, device=DEVICE), 3 * more)


def test_a_variant_that_is_named_is_an_error(copy: Operator) -> None:
    for num_rows in (1, FEW_ROWS + 1):
        with pytest.raises(SpillError, match=f"{SPILLING.id}_0 spills: got a stack frame of "):
            copy(x_of(num_rows), device=DEVICE, variant=SPILLING.id)


def test_a_kernel_for_which_none_stands_in_is_an_error(copy: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = replace(SPILLING, accept=(*PLAIN.accept[:-1], Rule("rows", "ge", (0,))))
    monkeypatch.setattr(copy, "variants", lambda fusions: (PLAIN, alone))
    x = x_of(FEW_ROWS + 1)
    assert copy.select(copy.problem(x, device=DEVICE)) == PLAIN  # to which `alone` is not preferred
    narrower = replace(PLAIN, id="narrower", accept=(*PLAIN.accept, Rule("rows", "le", (99,))))
    monkeypatch.setattr(copy, "variants", lambda fusions: (alone, narrower))
    with pytest.raises(SpillError, match="spills: got a stack frame"):
        copy(x, device=DEVICE)


def test_that_a_kernel_spills_is_known_ever_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path))
    assert known_spill(SPILLING, SCHEMA) is None
    with pytest.raises(SpillError) as first:
        ensure(SPILLING, SCHEMA)
    forbid_compiling(monkeypatch)
    with pytest.raises(SpillError) as second:
        ensure(SPILLING, SCHEMA)
    assert str(first.value) == str(second.value) == f"{SPILLING.id}: {known_spill(SPILLING, SCHEMA)}"
    assert known_spill(replace(SPILLING, config={"num_threads": 64}), SCHEMA) is None


def test_a_pack_may_lack_it(tmp_path: Path) -> None:
    for order in ((PLAIN, SPILLING), (SPILLING, PLAIN)):
        kept, left_out = without_spills(order, SCHEMAS, {SPILLING: (PLAIN,)}.get)
        assert (kept, left_out) == ((PLAIN,), {SPILLING: PLAIN})
    device = NativeDevice("offline:sm_100a", memory="cpu")
    device.load_pack(build(kept, SCHEMAS, tmp_path, "kept"))
    assert [chosen_of(device, num_rows) for num_rows in (1, FEW_ROWS + 1)] == [PLAIN.id] * 2


def test_what_stands_in_comes_in_its_place() -> None:
    """One that is among the variants already, else the first; what spills itself gives way in turn."""
    first, last = replace(PLAIN, id="first"), replace(PLAIN, id="last")
    too = replace(SPILLING, id="too")
    others = {SPILLING: (too, PLAIN), too: (SPILLING, PLAIN)}
    kept, left_out = without_spills((first, SPILLING, last), SCHEMAS, others.get)
    assert (kept, left_out) == ((first, PLAIN, last), {SPILLING: too, too: PLAIN})
    kept, left_out = without_spills((first, SPILLING, last), SCHEMAS, {SPILLING: (PLAIN, last)}.get)
    assert (kept, left_out) == ((first, last), {SPILLING: last})
    kept, left_out = without_spills((SPILLING, too), SCHEMAS, others.get)
    assert (kept, left_out) == ((PLAIN,), {SPILLING: PLAIN, too: PLAIN})


def test_a_pack_must_have_it() -> None:
    too = replace(SPILLING, id="too")
    for others in ({SPILLING: ()}, {SPILLING: (too,), too: (SPILLING,)}):
        with pytest.raises(SpillError, match=r"_0 spills"):
            without_spills((PLAIN, SPILLING), SCHEMAS, others.get)


def test_what_stands_in_accepts_the_same(preferring: Registry) -> None:
    assert stand_ins(preferring, SPILLING) == (PLAIN,)
    assert stand_ins(preferring, PLAIN) == ()  # a family's own, and packed by default
    assert stand_ins(preferring, replace(SPILLING, accept=SPILLING.accept[1:])) == ()


def test_the_command_leaves_it_out_and_says_so(
    preferring: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "registry", preferring)
    command = ["build", "--arch=sm_100a", "--dtype=fp32", "--rows=all", "-o", str(tmp_path), "--name=copy"]
    built = CliRunner().invoke(cli.app, command)
    assert built.exit_code == 0, built.output
    said = rf"^{SPILLING.id} spills: {PLAIN.id} in its place$"
    assert re.search(said, built.stdout, re.MULTILINE)
    assert "copy.opdeck.so: 1 variants," in built.stdout
    named = CliRunner().invoke(cli.app, [*command, f"--variant={PLAIN.id}*"])
    assert isinstance(named.exception, SpillError)


def test_rows_that_families_pack_by_default_are_never_left_out(
    preferring: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_default = replace(SPILLING, in_default_pack=True)
    monkeypatch.setattr(preferring.get("copy"), "variants", lambda fusions=(): (PLAIN, by_default))
    monkeypatch.setattr(cli, "registry", preferring)
    built = CliRunner().invoke(cli.app, ["build", "-o", str(tmp_path), "--name=copy"])
    assert isinstance(built.exception, SpillError)


def test_python_and_c_prefer_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: Operator) -> None:
    """Rows for few rows of x and for any, and others that are preferred to each."""
    few = replace(PLAIN, id="few", accept=(*PLAIN.accept, Rule("rows", "le", (8,))))
    variants = (
        few,
        replace(PLAIN, id="any"),
        replace(few, id="few_preferred", prefer=(Rule("rows", "gt", (4,)), Rule("rows", "ne", (7,)))),
        replace(PLAIN, id="any_preferred", prefer=(Rule("rows", "gt", (2,)),)),
        replace(PLAIN, id="never", prefer=(Rule("rows", "lt", (12,)),)),
    )
    monkeypatch.setattr(copy, "variants", lambda fusions: variants)
    device = NativeDevice("offline:sm_100a", memory="cpu")
    device.load_pack(build(variants, SCHEMAS, tmp_path, "preferring"))
    wanted = {1: "few", 4: "few", 5: "few_preferred", 7: "few", 8: "few_preferred", 9: "any_preferred"}
    for num_rows in range(1, 14):
        chosen = copy.select(copy.problem(x_of(num_rows), device=DEVICE)).id
        assert chosen == chosen_of(device, num_rows)
        assert chosen == wanted.get(num_rows, chosen)
