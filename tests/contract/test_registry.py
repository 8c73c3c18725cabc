# SPDX-License-Identifier: Apache-2.0
"""Plugins: found lazily, each on its own; a wrong one is named, left out whole, and harms no other."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opdeck.core import registry as installed
from opdeck.core.errors import ArgumentError
from opdeck.core.registry import PluginWarning, Registry

MakePlugin = Callable[[str, str], importlib.metadata.EntryPoint]

HEADER = """
from dataclasses import dataclass
from typing import ClassVar
from opdeck.core.family import Family
from opdeck.core.fusion import Mask
from opdeck.core.hookspecs import hookimpl
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant

def row(name, family):
    return Variant(name, family, "cpu", "fp16", None, (), {}, "nowhere:make", {})

def call(x):
    raise NotImplementedError

def family(name, *ids):
    return Family(FamilySchema(name, ()), call=call, rows=lambda fusions: tuple(row(i, name) for i in ids or [name]))
"""

GOOD = """
@hookimpl
def opdeck_operators():
    return [family("twice"), family("thrice")]

@dataclass(frozen=True)
class Ring(Mask):
    width: int
    name: ClassVar[str] = "good.ring"

@hookimpl
def opdeck_fusions():
    return [Ring(2), Ring(4)]
"""

BROKEN = {
    "raises": ("1 / 0", "ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit('no GPU')", "SystemExit: no GPU"),
    "hook_raises": ("@hookimpl\ndef opdeck_operators():\n    raise OSError('no disk')", "OSError: no disk"),
    "misspelt": ("@hookimpl\ndef opdeck_operatros():\n    return []", "unknown hook 'opdeck_operatros'"),
    "no_family": ("@hookimpl\ndef opdeck_operators():\n    return ['copy']", "got str, want Family objects"),
    "twice_a_variant": (
        "@hookimpl\ndef opdeck_operators():\n    return [family('new'), family('two', 'a', 'a')]",
        "family two: variant 'a' occurs twice",
    ),
    "wrong_family": (
        "@hookimpl\ndef opdeck_operators():\n"
        "    return [Family(FamilySchema('mine', ()), call, lambda fusions: (row('x', 'yours'),))]",
        "variant 'x' says that its family is 'yours'",
    ),
    "wrong_id": ("@hookimpl\ndef opdeck_operators():\n    return [family('f', 'a-b')]", "variant id: got 'a-b'"),
    "taken": (
        "@hookimpl\ndef opdeck_operators():\n    return [family('twice')]",
        "family 'twice' is there already, from plugin good",
    ),
    "twice_a_fusion": (
        GOOD.replace("good.", "twice_a_fusion.")
        .replace("Ring(4)", "Ring(2)")
        .replace("twice", "once")
        .replace("thrice", "more")
        .replace("once_a_fusion.", "twice_a_fusion."),
        "fusion 'twice_a_fusion.ring[width=2]' is there already",
    ),
    "wrong_prefix": (GOOD.replace("twice", "p").replace("thrice", "r"), "got name 'good.ring', want one such as"),
    "class_for_instance": (
        "@hookimpl\ndef opdeck_fusions():\n    return [Mask]",
        "want instances of classes derived from Fusion",
    ),
    "mask_for_activation": (
        GOOD.replace("opdeck_fusions", "opdeck_activations")
        .replace("good.", "mask_for_activation.")
        .replace("twice", "u")
        .replace("thrice", "v"),
        "opdeck_activations: got Ring(width=2), want instances of classes derived from Activation",
    ),
}


@pytest.fixture
def plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], importlib.metadata.EntryPoint]]:
    """Makes a module with this text and an entry point for it."""
    monkeypatch.syspath_prepend(tmp_path)
    made = []

    def make(name: str, text: str) -> importlib.metadata.EntryPoint:
        module = f"plugin_of_test_{name}"
        (tmp_path / f"{module}.py").write_text(HEADER + textwrap.dedent(text))
        made.append(module)
        return importlib.metadata.EntryPoint(name, module, "opdeck.plugins")

    yield make
    for module in made:
        sys.modules.pop(module, None)


def test_good_plugin(plugin: MakePlugin) -> None:
    registry = Registry([plugin("good", GOOD)])
    assert registry.families() == ("thrice", "twice")
    assert [row.id for row in registry.variants()] == ["thrice", "twice"]
    assert registry.variants("twice", arch="sm_100a") == ()
    assert list(registry.fusions()) == ["good.ring[width=2]", "good.ring[width=4]"]
    assert (registry.owner("twice"), registry.owner("good.ring"), registry.owner("causal")) == (
        "good",
        "good",
        "opdeck",
    )
    assert registry.problems == ()
    with pytest.raises(ArgumentError, match=r"family: got 'copy', want thrice\|twice"):
        registry.get("copy")
    with pytest.raises(ArgumentError, match=r"arch: got 'sm_80', want sm_100a\|"):
        registry.variants(arch="sm_80")
    with pytest.raises(ArgumentError, match=r"fusion: got 'ring', want a canonical name: .*\|causal\|.*\|good\.ring\|"):
        registry.variants(fusion="ring")


@pytest.mark.parametrize("name", list(BROKEN))
def test_broken_plugin_is_named_and_left_out(name: str, plugin: MakePlugin) -> None:
    text, reason = BROKEN[name]
    good, broken = plugin("good", GOOD), plugin(name, text)
    registry = Registry([broken, good])
    with pytest.warns(PluginWarning, match=rf"plugin {name} \(plugin_of_test_{name}\) left out"):
        families = registry.families()
    assert families == ("thrice", "twice")
    assert list(registry.fusions()) == ["good.ring[width=2]", "good.ring[width=4]"]
    (problem,) = registry.problems
    assert problem.startswith(f"plugin {name} (plugin_of_test_{name}) left out: ")
    assert reason in problem
    with pytest.raises(ArgumentError, match=f"plugin {name}"):
        registry.get("something")


def test_the_same_entry_point_twice_is_one_plugin(plugin: MakePlugin) -> None:
    good = plugin("good", GOOD)
    registry = Registry([good, importlib.metadata.EntryPoint(good.name, good.value, good.group)])
    assert registry.families() == ("thrice", "twice")
    assert registry.problems == ()


def test_two_plugins_of_one_name_cannot_share_fusions(plugin: MakePlugin) -> None:
    first = plugin("good", GOOD)
    other = plugin("other", GOOD.replace("twice", "p").replace("thrice", "r"))
    second = importlib.metadata.EntryPoint("good", other.value, other.group)
    registry = Registry([second, first])
    with pytest.warns(
        PluginWarning, match=r"good \(plugin_of_test_other\) left out: .*'good\.ring\[width=2\]' is there"
    ):
        assert registry.families() == ("thrice", "twice")


def test_a_module_that_is_not_there_is_left_out() -> None:
    registry = Registry([importlib.metadata.EntryPoint("ghost", "no_such_module_here", "opdeck.plugins")])
    with pytest.warns(PluginWarning, match="plugin ghost .* left out: ModuleNotFoundError"):
        assert registry.families() == ()


TOP_LEFT = "causal[align=top_left]"


def test_fusions_of_plugins_get_rows_in_families_that_take_them(plugin: MakePlugin) -> None:
    fmha = importlib.metadata.EntryPoint("fmha_fwd", "opdeck.plugins.fmha_fwd.plugin", "opdeck.plugins")
    registry = Registry([plugin("good", GOOD), fmha])
    names = {row.fusion_name for row in registry.variants("fmha_fwd")}
    assert names >= {"none", "causal[align=bottom_right]", "good.ring[width=2]", "good.ring[width=4]"}
    of_both = (registry.variants("fmha_fwd", arch="sm_100a", fusion=f) for f in ("good.ring[width=4]", TOP_LEFT))
    served, served_of_causal = ({(row.accept, row.config["schedule"]) for row in of} for of in of_both)
    assert served == served_of_causal != set()
    assert {row.fusion_name for row in registry.variants("twice")} == {"none"}


def test_installed_rows() -> None:
    """Which head dims each arch has, each for two dtypes and three masks at least."""
    assert "fmha_fwd" in installed.families()
    hopper = {(64, 64), (128, 128)}
    blackwell = hopper | {(32, 32), (96, 96), (192, 128), (256, 128)}
    for arch, dims in (("sm_100a", blackwell), ("sm_103a", blackwell), ("sm_90a", hopper)):
        rows = installed.variants("fmha_fwd", arch=arch)
        assert {(row.config["d_qk"], row.config["d_v"]) for row in rows} == dims
        for row in rows:
            same_dims = [other for other in rows if other.config["d_qk"] == row.config["d_qk"]]
            assert len({(other.dtype, other.fusion_name) for other in same_dims}) >= 2 * 3
    assert installed.variants("fmha_fwd")[-1].arch == "cpu"


def test_importing_and_asking_loads_neither_the_dsl_nor_torch() -> None:
    code = "import sys; from opdeck.core import registry; assert registry._loaded is None; "
    code += "registry.variants(); sys.exit(any(name in sys.modules for name in ('cutlass', 'torch', 'opdeck.aot')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
