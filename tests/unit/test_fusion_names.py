# SPDX-License-Identifier: Apache-2.0
"""Names, leaves and identities of fusions."""

from __future__ import annotations

import enum
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from opdeck.core import registry
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion import (
    Activation,
    Align,
    AttentionFusion,
    Causal,
    Float32Leaf,
    Fusion,
    Int32Leaf,
    IntervalMask,
    LeafKind,
    Mask,
    Residual,
    TensorLeaf,
    Window,
    tensor_leaf,
)
from opdeck.core.fusion.base import field_specs
from opdeck.core.fusion.blocks import BlockSparse
from opdeck.core.fusion.identity import identity
from opdeck.core.variant import MAX_SLUG_CHARS, fusion_slug
from opdeck.plugins.fmha_fwd import spec


class Side(enum.Enum):
    LEFT = 1


@dataclass(frozen=True)
class Everything(Mask):
    """A fusion with each kind of field."""

    table: TensorLeaf = tensor_leaf(rank=2, dtype="bf16")
    width: Int32Leaf = 4
    cap: Float32Leaf = None
    side: Side = Side.LEFT
    strict: bool = True

    name: ClassVar[str] = "test.everything"


@dataclass(frozen=True)
class Outer(Mask):
    first: Int32Leaf
    inner: Everything
    last: Int32Leaf

    name: ClassVar[str] = "test.outer"


@pytest.mark.parametrize(
    ("fusion", "name", "slug"),
    [
        (Residual(), "residual", "residual"),
        (Causal(), "causal[align=bottom_right]", "causal_bottom_right"),
        (Causal(align="top_left"), "causal[align=top_left]", "causal_top_left"),
        (Window(right=1), "window[left=none]", "window_left_none"),
        (Window(left=1), "window[right=none]", "window_right_none"),
    ],
)
def test_built_in_names(fusion: Fusion, name: str, slug: str) -> None:
    assert fusion.canonical_name == name
    assert fusion.slug == slug


def test_static_fields_and_absent_leaves_are_in_the_name() -> None:
    assert Everything("t").canonical_name == "test.everything[cap=none,side=1,strict=true]"
    assert Everything("t", cap=1.0).canonical_name == "test.everything[side=1,strict=true]"


def test_slug_of_a_third_party_has_a_hash_of_its_identity() -> None:
    slug = Everything("t").slug
    assert slug.isidentifier()
    assert slug.startswith("test_everything_cap_none_1_true_")
    assert slug.endswith(identity(Everything("t"))[:8])


def test_leaves_are_depth_first_in_field_order() -> None:
    outer = Outer(1, Everything("t", cap=2.0), 3)
    assert [(leaf.name, leaf.value) for leaf in outer.leaves()] == [
        ("test.outer.first", 1),
        ("test.everything.table", "t"),
        ("test.everything.width", 4),
        ("test.everything.cap", 2.0),
        ("test.outer.last", 3),
    ]
    table, width, cap = Everything("t", cap=2.0).leaves()
    assert (table.kind, table.rank, table.dtype) == (LeafKind.TENSOR, 2, "bf16")
    assert (width.kind, width.dtype) == (LeafKind.INT32, "int32")
    assert (cap.kind, cap.dtype) == (LeafKind.FLOAT32, "fp32")


def test_with_leaves_replaces_them_in_the_same_order() -> None:
    outer = Outer(1, Everything("t", cap=2.0), 3)
    values = list("abcde")
    changed = outer.with_leaves(values)
    assert [leaf.value for leaf in changed.leaves()] == values
    assert changed.canonical_name == outer.canonical_name
    with pytest.raises(ArgumentTypeError, match="6 values"):
        outer.with_leaves("abcdef")
    with pytest.raises(ArgumentTypeError, match=r"test\.outer\.last: got no value"):
        outer.with_leaves("abcd")


def test_same_leaf_twice_gets_a_number() -> None:
    both = Everything("a") & Everything("b")
    assert [leaf.name for leaf in both.leaves()] == [
        "test.everything.table",
        "test.everything.width",
        "test.everything.table#2",
        "test.everything.width#2",
    ]


def test_intersection_names_and_kinds() -> None:
    both = Causal() & Causal(align="top_left")
    assert both.canonical_name == "causal[align=bottom_right]&causal[align=top_left]"
    assert both.slug.isidentifier()
    assert isinstance(both, IntervalMask)
    assert not isinstance(both & Everything("t"), IntervalMask)
    assert Causal() & Residual() == Causal()
    assert Residual() & Causal() == Causal()
    with pytest.raises(TypeError):
        Causal() & "causal"  # type: ignore[operator]


def test_slug_of_many_fusions_is_cut_and_keeps_them_apart() -> None:
    windowed = Everything("t") & Window(4, 4)
    slugs = {fusion_slug(windowed & Everything("t", strict=strict)) for strict in (True, False)}
    assert len(slugs) == 2
    assert all(slug.isidentifier() and len(slug) == MAX_SLUG_CHARS for slug in slugs)
    assert fusion_slug(Everything("t")) == Everything("t").slug


def test_align_is_checked() -> None:
    assert Causal(align=Align.TOP_LEFT) == Causal(align="top_left")
    with pytest.raises(ArgumentError, match=r"Causal\.align: got 'centre', want bottom_right\|top_left"):
        Causal(align="centre")


def test_a_fusion_that_is_not_a_frozen_dataclass_is_refused() -> None:
    class Plain(Mask):
        name = "test.plain"

    @dataclass
    class Mutable(Mask):
        name: ClassVar[str] = "test.mutable"

    @dataclass(frozen=True)
    class RanklessTable(Mask):
        table: TensorLeaf
        name: ClassVar[str] = "test.rankless"

    for cls in (Plain, Mutable):
        with pytest.raises(ArgumentTypeError, match="want a frozen dataclass"):
            field_specs(cls)
    with pytest.raises(ArgumentTypeError, match=r"RanklessTable\.table: got a TensorLeaf of unknown rank"):
        field_specs(RanklessTable)


@dataclass(frozen=True)
class Table(Mask):
    """Extents by name, by number, by either, and any."""

    table: TensorLeaf = tensor_leaf(dims=("num_heads", 5, None, "sq|1"))
    rest: TensorLeaf = tensor_leaf(rank=2, dims=(3,))

    name: ClassVar[str] = "test.table"


@pytest.mark.parametrize(
    ("leaf", "shape", "message"),
    [
        (0, (4, 5, 9, 7), None),
        (0, (4, 5, 0, 1), None),
        (0, (3, 5, 9, 7), r"test\.table\.table: got 3 in dim 0 of shape \(3, 5, 9, 7\), want num_heads = 4"),
        (0, (4, 6, 9, 7), r"test\.table\.table: got 6 in dim 1 of shape \(4, 6, 9, 7\), want 5"),
        (0, (4, 5, 9, 2), r"test\.table\.table: got 2 in dim 3 of .*, want sq = 7\|1"),
        (1, (3, 8), None),
        (1, (2, 8), r"test\.table\.rest: got 2 in dim 0 of shape \(2, 8\), want 3"),
    ],
)
def test_extents_are_named_numbers_or_any(leaf: int, shape: tuple[int, ...], message: str | None) -> None:
    leaves = Table(LeafKind.TENSOR, LeafKind.TENSOR).leaves()
    assert [len(each.dims) for each in leaves] == [each.rank for each in leaves] == [4, 2]
    with nullcontext() if message is None else pytest.raises(ArgumentError, match=message):
        leaves[leaf].check_extents(shape, {"num_heads": 4, "sq": 7})


def test_a_misspelt_extent_is_refused() -> None:
    @dataclass(frozen=True)
    class Misspelt(Mask):
        table: TensorLeaf = tensor_leaf(dims=("num_heads", "batch|num_head"))
        name: ClassVar[str] = "test.misspelt"

    @dataclass(frozen=True)
    class OfColumns(Activation):
        table: TensorLeaf = tensor_leaf(dims=("n",))
        name: ClassVar[str] = "test.of_columns"

    want = r"want batch\|num_heads\|sq\|sk\|a number\|None \(None is any extent\)"
    with pytest.raises(ArgumentError, match=rf"Misspelt\.table: got 'num_head' in dims\[1\], {want}"):
        _ = Misspelt(LeafKind.TENSOR).canonical_name
    with pytest.raises(ArgumentError, match=r"OfColumns\.table: got 'n' in dims\[0\], want a number\|None "):
        _ = OfColumns(LeafKind.TENSOR).canonical_name


def test_dims_of_another_kind_are_refused() -> None:
    for dims, message in (
        ("num_heads", r"tensor_leaf\.dims: got 'num_heads', want a tuple of names, numbers and None"),
        ((True,), r"tensor_leaf\.dims\[0\]: got True, want a name, a number or None"),
        (("sq", 1.5), r"tensor_leaf\.dims\[1\]: got 1\.5, want a name"),
        ((-1,), r"tensor_leaf\.dims\[0\]: got -1, want at least 0"),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            tensor_leaf(dims=dims)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"tensor_leaf\.dims: got 2 dims, want at most rank = 1"):
        tensor_leaf(rank=1, dims=(None, 3))


@pytest.mark.parametrize(
    ("family", "fusion"), [("fmha_fwd", AttentionFusion), ("fmha_fwd", BlockSparse), ("mx_gemm", Activation)]
)
def test_a_familys_schema_knows_the_extents_that_its_fusions_may_name(family: str, fusion: type[Fusion]) -> None:
    assert fusion.extent_names is not None
    assert set(fusion.extent_names) <= {size.name for size in registry.schema(family).sizes}


def test_a_static_value_without_a_stable_spelling_is_refused() -> None:
    @dataclass(frozen=True)
    class Lambda(Mask):
        function: Any
        name: ClassVar[str] = "test.function"

    with pytest.raises(ArgumentTypeError, match="got function, want an int, bool, enum, str or None"):
        _ = Lambda(lambda: 0).canonical_name


def test_a_class_has_a_name_of_its_own() -> None:
    """Kernels are found by it: a subclass of Causal with Causal's name would get Causal's kernel."""
    with pytest.raises(ArgumentError, match=r"Strict\.name: got 'causal', that of a base, want a name of its own"):

        class Strict(Causal):
            pass


def test_a_class_without_a_name_is_refused() -> None:
    @dataclass(frozen=True)
    class Nameless(Mask):
        pass

    with pytest.raises(ArgumentTypeError, match=r"Nameless\.name: got None, want PLUGIN\.fusion"):
        spec.call(*[np.zeros((1, 1, 1, 8), np.float16)] * 3, mask=Nameless()).fusion.leaves()  # type: ignore[union-attr]


def test_a_mask_derived_from_residual_is_a_mask() -> None:
    @dataclass(frozen=True)
    class FirstKey(Residual):
        name: ClassVar[str] = "test.first_key"

    both = FirstKey() & Causal()
    assert both.canonical_name == "test.first_key&causal[align=bottom_right]"
    assert spec.call(*[np.zeros((1, 1, 1, 8), np.float16)] * 3, mask=FirstKey()).fusion == FirstKey()


def test_names_and_keys_tell_static_values_apart() -> None:
    nested = [Outer(1, Everything("t", strict=strict), 2) for strict in (True, False)]
    assert nested[0].canonical_name == "test.outer[inner=test.everything[cap=none,side=1,strict=true]]"
    assert nested[0].canonical_name != nested[1].canonical_name
    assert Everything("t", strict=True).static_key != Everything("t", strict=1).static_key  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"test\.outer\.inner: got NoneType, want a Fusion"):
        _ = Outer(1, None, 2).canonical_name  # type: ignore[arg-type]


def test_no_more_leaves_than_packs_have_room_for() -> None:
    mask: Mask = Outer(1, Everything("t", cap=2.0), 3)  # 5 leaves
    three = mask & mask & mask
    assert len(three.leaves()) == 15
    with pytest.raises(ArgumentError, match=r"leaves of .*: got 20, want at most 16"):
        (three & mask).leaves()


def test_identity_depends_on_statics_and_not_on_leaves() -> None:
    assert identity(Everything("a", width=1)) == identity(Everything("b", width=2))
    assert identity(Everything("a")) != identity(Everything("a", strict=False))
    assert identity(Everything("a")) != identity(Everything("a", cap=1.0))
    assert identity(Causal()) != identity(Causal(align="top_left"))


PLUGIN = """
from dataclasses import dataclass
from opdeck.core.fusion import Mask
from bandlib import WIDTH

@dataclass(frozen=True)
class Band(Mask):
    name = "band.band"
"""


def _identity_of_plugin(folder: Path) -> str:
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from opdeck.core.fusion.identity import identity\n"
    code += "import band; print(identity(band.Band()))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_identity_follows_the_sources_that_a_plugin_imports(tmp_path: Path) -> None:
    (tmp_path / "band.py").write_text(textwrap.dedent(PLUGIN))
    (tmp_path / "bandlib.py").write_text("WIDTH = 1\n")
    first = _identity_of_plugin(tmp_path)
    assert _identity_of_plugin(tmp_path) == first
    (tmp_path / "bandlib.py").write_text("WIDTH = 2\n")
    assert _identity_of_plugin(tmp_path) != first


def test_importing_fusions_imports_no_dsl() -> None:
    code = "import sys, opdeck.core.fusion; sys.exit('cutlass' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
