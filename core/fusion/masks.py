# SPDX-License-Identifier: Apache-2.0
"""masks.py: the built-in masks.

Who calls it: users (`mask=Causal()`), variant rows, kernels through the Mask interface.
Source: the masks of CUTLASS example 77: residual, causal with the queries at the beginning (`qbegin`, here top_left)
or at the end (`qend`, here bottom_right) of the keys. Window as flash-attention's window_size.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from opdeck.core.errors import ArgumentError
from opdeck.core.fusion.attention import AttentionFusion, BandMask, Extent
from opdeck.core.fusion.base import Int32Leaf, TensorLeaf, tensor_leaf
from opdeck.core.fusion.intmath import IntLike, broadcast_index, clamp, max_, min_
from opdeck.core.scalars import is_number


@dataclass(frozen=True)
class Residual(BandMask):
    """No mask but the end of K: what `mask=None` means. Right for every sk."""

    name: ClassVar[str] = "residual"

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        return 0, sk


class Align(enum.Enum):
    """Which corner of S the diagonal of a causal mask starts from."""

    BOTTOM_RIGHT = "bottom_right"
    TOP_LEFT = "top_left"


@dataclass(frozen=True)
class Causal(BandMask):
    """Query q sees keys k <= q + offset: offset is sk - sq for bottom_right (the default), 0 for top_left.

    Raises: ArgumentError when align is neither.
    """

    align: Align | str = Align.BOTTOM_RIGHT

    name: ClassVar[str] = "causal"

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "align", Align(self.align))
        except ValueError:
            want = "|".join(align.value for align in Align)
            raise ArgumentError("Causal.align", repr(self.align), want) from None

    def _offset(self, sq: IntLike, sk: IntLike) -> IntLike:
        return sk - sq if self.align is Align.BOTTOM_RIGHT else 0

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        return 0, clamp(q + (self._offset(sq, sk) + 1), 0, sk)


@dataclass(frozen=True)
class Window(BandMask):
    """Query q, whose own key is p = q + sk - sq, sees the keys p - left <= k <= p + right. None: no bound on that side.

    left and right are run-time numbers; whether one is None is compiled in.
    Raises: ArgumentError for a negative width.
    """

    left: Int32Leaf = None
    right: Int32Leaf = None

    name: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        for side in ("left", "right"):
            width = getattr(self, side)
            if is_number(width) and width < 0:
                raise ArgumentError(f"Window.{side}", width, "a width >= 0, or None for no bound")

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        own_key = q + (sk - sq)
        # Widths are cut to what reaches all keys, so that no sum overflows.
        begin = 0 if self.left is None else clamp(own_key - min_(self.left, sk), 0, sk)
        end = sk if self.right is None else clamp(own_key + min_(self.right, sq + sk) + 1, 0, sk)
        return begin, end

    def sample(self, extent: Extent, rng: np.random.Generator) -> Window:
        widths = {side: int(rng.integers(0, extent.sk + 1)) for side in ("left", "right")}
        return self.replace(**{side: width for side, width in widths.items() if getattr(self, side) is not None})


@dataclass(frozen=True)
class PrefixLM(BandMask):
    """Every query sees the first lengths[b] keys of its sequence; beyond, it is bottom-right causal.

    lengths: (B,) int32; one that is negative or beyond sk counts as 0 or sk.
    """

    lengths: TensorLeaf = tensor_leaf(dims=("batch",), dtype="int32")

    name: ClassVar[str] = "prefix_lm"

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        return self.replace(lengths=self.lengths[batch])

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        return 0, clamp(max_(q + (sk - sq) + 1, self.lengths), 0, sk)

    def sample(self, extent: Extent, rng: np.random.Generator) -> PrefixLM:
        return self.replace(lengths=rng.integers(0, extent.sk + 1, extent.batch, dtype=np.int32))


@dataclass(frozen=True)
class Document(BandMask):
    """Query q of sequence b sees the keys spans[b, q, 0] <= k < spans[b, q, 1] of its document.

    spans: (B or 1, Sq, 2) int32, whose bounds never decrease with q: documents follow one another. So the ranges of
    tiles are exact, and are had from two rows; ids an element would have to be searched. from_ids makes spans of ids.
    """

    spans: TensorLeaf = tensor_leaf(dims=("batch|1", "sq", 2), dtype="int32")

    name: ClassVar[str] = "document"

    @staticmethod
    def from_ids(q_ids: npt.ArrayLike, k_ids: npt.ArrayLike) -> Document:
        """The mask that shows a query the keys of its id. q_ids: (B, Sq), k_ids: (B, Sk), numpy, each row ascending.

        Raises: ArgumentError when the shapes disagree or a row is not ascending.
        """
        ids = {"q_ids": np.asarray(q_ids), "k_ids": np.asarray(k_ids)}
        for name, array in ids.items():
            if array.ndim != 2 or len(array) != len(ids["q_ids"]):
                raise ArgumentError(f"Document.{name}", f"shape {array.shape}", "(B, S), the same B for both")
            if (np.diff(array, axis=1) < 0).any():
                raise ArgumentError(f"Document.{name}", "ids that decrease along a row", "ascending ones")
        sides: tuple[Literal["left", "right"], ...] = ("left", "right")
        spans = [
            np.stack([np.searchsorted(keys, queries, side) for side in sides], axis=-1)
            for queries, keys in zip(*ids.values(), strict=True)
        ]
        return Document(np.stack(spans).astype(np.int32))

    def check_lengths(self, sq: int, sk: int) -> None:
        """Of spans in numpy, also whether they decrease: kernels would leave out tiles that are seen."""
        if not isinstance(self.spans, np.ndarray) or self.spans.ndim != 3 or self.spans.dtype != np.int32:
            return
        falls = np.argwhere(self.spans[:, 1:] < self.spans[:, :-1])
        if len(falls):
            batch, q, side = falls[0].tolist()
            got = f"{self.spans[batch, q + 1, side]} at [{batch}, {q + 1}, {side}], behind {self.spans[batch, q, side]}"
            raise ArgumentError("document.spans", got, "bounds that never decrease with q")

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        return _SequenceDocuments(self.spans, broadcast_index(batch, self.spans.shape[0]))

    def sample(self, extent: Extent, rng: np.random.Generator) -> Document:
        num_documents = 4
        q_ids, k_ids = (
            np.sort(rng.integers(0, num_documents, (extent.batch, length))) for length in (extent.sq, extent.sk)
        )
        return self.replace(spans=Document.from_ids(q_ids, k_ids).spans)


@dataclass(frozen=True)
class _SequenceDocuments(BandMask):
    """Document for sequence `batch`."""

    spans: TensorLeaf = tensor_leaf(rank=3, dtype="int32")
    batch: Int32Leaf = 0

    name: ClassVar[str] = "document_of_sequence"

    def visible_interval(self, q: IntLike, sq: IntLike, sk: IntLike) -> tuple[IntLike, IntLike]:
        row = min_(q, sq - 1)  # rows of a tile may lie past the last query
        begin, end = (clamp(self.spans[self.batch, row, side], 0, sk) for side in (0, 1))
        return begin, end
