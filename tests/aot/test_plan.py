# SPDX-License-Identifier: Apache-2.0
"""The plan: rows of the registry, narrowed, and what a plugin's fusions add; the commands that show and build it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from copy_plugin.family import DTYPES
from typer.testing import CliRunner

from opdeck.aot import cli
from opdeck.aot.plan import Rows, Selection, plan
from opdeck.core.errors import ArgumentError
from opdeck.core.registry import Registry, registry


@pytest.fixture(scope="module")
def with_copy() -> Registry:
    group = "opdeck.plugins"
    return Registry(
        [
            importlib.metadata.EntryPoint("copy_plugin", "copy_plugin.plugin", group),
            importlib.metadata.EntryPoint("fmha_fwd", "opdeck.plugins.fmha_fwd.plugin", group),
        ]
    )


def test_all_rows_but_the_references(with_copy: Registry):
    rows = plan(with_copy, Selection(families=("fmha_fwd",)))
    assert {row.arch for row in rows} == {"sm_90a", "sm_100a", "sm_103a"}
    assert len({row.id for row in rows}) == len(rows)
    every = plan(with_copy, Selection(families=("fmha_fwd",), rows=Rows.ALL))
    assert all(row in every for row in with_copy.variants("fmha_fwd", arch="sm_100a"))


def test_selections_narrow_one_another(with_copy: Registry):
    rows = plan(with_copy, Selection(("copy",), archs=("sm_90a", "sm_103a"), dtypes=("fp16",), fusions=("none",)))
    assert [row.id for row in rows] == ["copy_sm103a_fp16_none", "copy_sm90a_fp16_none"]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(families=("fmha",)), r"family: got 'fmha', want copy\|fmha_fwd"),
        (Selection(("copy",), archs=("sm_80",)), r"arch: got 'sm_80', want sm_100a\|sm_103a\|sm_90a"),
        (Selection(("copy",), dtypes=("fp8",)), r"dtype: got 'fp8', want fp16\|fp32"),
        (Selection(("copy",), fusions=("causal",)), r"fusion: got 'causal', want a canonical name: .*\|causal\|"),
        (Selection(plugins=("alibi",)), r"plugin: got 'alibi', want copy_plugin\|fmha_fwd"),
        (Selection(("copy",), variants=("copy_sm80_*",)), r"variant: got 'copy_sm80_\*', want a pattern of some of"),
    ],
)
def test_a_selection_of_nothing_is_an_error(with_copy: Registry, selection: Selection, message: str):
    with pytest.raises(ArgumentError, match=message):
        plan(with_copy, selection)


def test_patterns_of_ids_narrow_too(with_copy: Registry):
    rows = plan(with_copy, Selection(("copy",), fusions=("none",), variants=("*_fp16_none", "copy_sm90a_*")))
    assert sorted(row.id for row in rows) == [
        "copy_sm100a_fp16_none",
        "copy_sm103a_fp16_none",
        "copy_sm90a_fp16_none",
        "copy_sm90a_fp32_none",
    ]


def test_a_plugin_brings_its_family_and_its_fusions(with_copy: Registry):
    rows = plan(with_copy, Selection(plugins=("copy_plugin",)))
    assert {row.family for row in rows} == {"copy"}
    assert {row.fusion_name for row in rows} == {"none", "copy_plugin.affine"}
    assert len(rows) == len({row.id for row in rows}) == 3 * len(DTYPES) * 2


# Continuous integration compiles the default rows of all families, at about 7 s each on one core.
MAX_DEFAULT_ROWS = 76


def test_default_rows_are_few_and_all_rows_can_be_asked_for():
    default, every = plan(registry, Selection()), plan(registry, Selection(rows=Rows.ALL))
    assert 0 < len(default) <= MAX_DEFAULT_ROWS
    assert set(default) < set(every)
    assert all(row.in_default_pack for row in default)
    assert {row.family for row in default} == {row.family for row in every}


def test_plan_command_counts_what_it_lists():
    runner = CliRunner()
    counted = runner.invoke(cli.app, ["plan", "--family", "fmha_fwd", "--count"])
    of_two = [
        "plan",
        "--arch=sm_100a,sm_103a",
        "--arch=sm_90a",
        "--dtype=fp16,bf16,fp8_e4m3",
        "--family=fmha_fwd",
        "--count",
    ]
    assert runner.invoke(cli.app, of_two).output == counted.output
    assert counted.exit_code == 0, counted.output
    listed = runner.invoke(cli.app, ["plan", "--family", "fmha_fwd"], terminal_width=200)
    ids = [row.id for row in plan(registry, Selection(families=("fmha_fwd",)))]
    assert int(counted.output) == len(ids)
    assert sum("fmha_fwd_sm" in line for line in listed.output.splitlines()) == len(ids)


def test_build_command_makes_a_pack(tmp_path: Path, with_copy: Registry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "registry", with_copy)
    options = ["--family", "copy", "--arch", "sm_100a", "--dtype", "fp32", "--fusion", "none"]
    options += ["--out", str(tmp_path), "--name", "one"]
    result = CliRunner().invoke(cli.app, ["build", *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "one.opdeck.so").stat().st_size > 0
    assert (tmp_path / "one.json").exists()
    assert (tmp_path / "one.kernels" / "copy_sm100a_fp32_none.ptx").exists()
    assert "one.opdeck.so: 1 variants" in result.output.replace("\n", "")
