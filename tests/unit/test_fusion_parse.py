# SPDX-License-Identifier: Apache-2.0
"""Canonical names and back: what command lines and packs call fusions."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from opdeck.core import registry
from opdeck.core.errors import ArgumentError
from opdeck.core.fusion import (
    Alibi,
    Causal,
    Extent,
    Float32Leaf,
    Fusion,
    LeafKind,
    Mask,
    PrefixLM,
    Sink,
    Softcap,
    Window,
    block_sparse,
)
from opdeck.core.fusion.names import BUILT_IN, parse


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


@dataclass(frozen=True)
class Everything(Mask):
    """A fusion with each kind of field."""

    side: Side
    strict: bool
    count: int
    word: str | None
    inner: Causal
    cap: Float32Leaf = None

    name: ClassVar[str] = "test.everything"


EVERYTHING = Everything(Side.RIGHT, True, -3, None, Causal(align="top_left"), 1.5)


@pytest.mark.parametrize(
    "fusion",
    [
        Causal(),
        Window(1, None),
        Window(None, None),
        PrefixLM(LeafKind.TENSOR),
        Alibi(LeafKind.TENSOR) & Softcap(1.0) & Causal(align="top_left") & Window(1, 2) & Sink(LeafKind.TENSOR),
        block_sparse(Window(1, 2) & Causal(), Extent(1, 1, 128, 128)),
        EVERYTHING,
        Everything(Side.LEFT, False, 5, "w", Causal()),
    ],
    ids=lambda fusion: fusion.canonical_name,
)
def test_a_name_gives_its_fusion(fusion: Fusion) -> None:
    parsed = parse(fusion.canonical_name, {EVERYTHING.canonical_name: EVERYTHING})
    assert parsed.canonical_name == fusion.canonical_name
    assert parsed.static_key == fusion.static_key
    assert [leaf.kind for leaf in parsed.leaves()] == [leaf.kind for leaf in fusion.leaves()]


def test_values_that_a_plugin_offers_are_kept() -> None:
    parsed: Any = parse(EVERYTHING.canonical_name, {EVERYTHING.canonical_name: EVERYTHING})
    assert parsed.cap == 1.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("causal", "fusion: got 'causal', want a canonical name: alibi|bias|block_sparse|causal|"),
        ("causal[align=centre]", "align=centre is no"),
        ("causal[align=top_left", "fusion: got 'causal[align=top_left', want causal[align=top_left]"),
        ("window[left=3]", "got 'window[left=3]', want window without left (it is a run-time argument"),
        ("softcap[cap=3]", "want softcap without cap (it is a run-time argument, whose value is no part of a name)"),
        ("window[left=none", "fusion: got 'window[left=none', want window[left=none]"),
        ("alibi&", "fusion: got '', want a canonical name"),
        ("alibi[x=1]", "fusion: got 'alibi[x=1]', want alibi"),
        ("", "fusion: got '', want a canonical name"),
        ("softcap[cap=none]", "softcap.cap: got None, want a number"),
        ("causal[align=top_left]&alibi[slopes=none]", "alibi.slopes: got None, want an array"),
        ("block_sparse", "no value of inner"),
        ("block_sparse[inner=alibi]", "inner=alibi is no Mask"),
    ],
)
def test_what_is_no_name_is_said(name: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(name, {})
    assert message in str(caught.value)


def test_rows_of_fusions_that_packs_do_not_hold() -> None:
    """Every built-in can be compiled by name, and none of them is in the default packs but causal."""
    listed = {row.fusion_name for row in registry.variants("fmha_fwd")}
    assert {name.partition("[")[0] for name in listed if "." not in name} == {"none", "causal"}
    assert len({cls.name for cls in BUILT_IN}) == len(BUILT_IN)
    rows = registry.variants("fmha_fwd", arch="sm_103a", fusion="softcap&window&sink")
    of_causal = registry.variants("fmha_fwd", arch="sm_103a", fusion="causal[align=top_left]")
    served, served_of_causal = ({(row.accept, row.config["schedule"]) for row in of} for of in (rows, of_causal))
    assert served == served_of_causal != set()
    assert {row.fusion_name for row in rows} == {"softcap&window&sink"}
