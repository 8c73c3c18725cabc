# SPDX-License-Identifier: Apache-2.0
"""scores.py: the built-in score functions, and the sink.

Who calls it: users (`mask=Alibi(slopes) & Causal()`), kernels through the Score interface.
Source: ALiBi (Press, Smith and Lewis 2021) with flash-attention's distance; the soft cap of Gemma 2; the learned sink
of gpt-oss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from opdeck.core import dtypes
from opdeck.core.errors import ArgumentError, ArgumentTypeError
from opdeck.core.fusion.attention import AttentionFusion, Coords, Extent, Score
from opdeck.core.fusion.base import Float32Leaf, LeafKind, TensorLeaf, tensor_leaf
from opdeck.core.fusion.floatmath import abs_, tanh, to_float
from opdeck.core.fusion.intmath import IntLike, broadcast_index, min_
from opdeck.core.scalars import is_number


@dataclass(frozen=True)
class Alibi(Score):
    """Takes slope * |q + sk - sq - k| from a logit: the further a key from the query's own, the less it counts.

    slopes: (Hq,) or (B or 1, Hq) fp32, per unit of distance, after softmax_scale. Leaf alibi.slopes has two dims.
    """

    slopes: TensorLeaf = tensor_leaf(dims=("batch|1", "num_heads"))

    name: ClassVar[str] = "alibi"
    is_finite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if getattr(self.slopes, "ndim", 2) == 1:
            object.__setattr__(self, "slopes", self.slopes[None])

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        return self.replace(slopes=self.slopes[broadcast_index(batch, self.slopes.shape[0]), head])

    def score(self, score: Any, coords: Coords) -> Any:
        own_key = coords.q + (coords.sk - coords.sq)
        return score - self.slopes * abs_(to_float(coords.k - own_key))

    def sample(self, extent: Extent, rng: np.random.Generator) -> Alibi:
        return self.replace(slopes=rng.uniform(0.0, 0.5, (extent.batch, extent.num_heads)).astype(np.float32))


@dataclass(frozen=True)
class Softcap(Score):
    """cap * tanh(logit / cap): logits stay within (-cap, cap). cap: > 0, a run-time number.

    Raises: ArgumentError for a cap that is not positive.
    """

    cap: Float32Leaf = 50.0

    name: ClassVar[str] = "softcap"
    is_finite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if is_number(self.cap) and not self.cap > 0:
            raise ArgumentError("Softcap.cap", self.cap, "a cap > 0")

    def score(self, score: Any, coords: Coords) -> Any:
        return self.cap * tanh(score * (1.0 / self.cap))


class TensorScore(Score):
    """A score function of a logit and of its own element of a tensor, which kernels load ahead, tile by tile.

    A subclass has one tensor leaf of dims TENSOR_DIMS and align_bytes 16, and says what becomes of one logit.
    """

    @property
    def tensor(self) -> Any:
        """The leaf: (B or 1, Hq or 1, Sq or 1, Sk) fp32, fp16 or bf16; for packed sequences at least the longest's
        Sq and Sk."""
        raise self.lacks("tensor")

    def score_with(self, score: Any, element: Any, coords: Coords) -> Any:
        """The new logit of query coords.q and key coords.k; element: that of the tensor, as a float."""
        raise self.lacks("score_with")

    def apply_score_with(self, scores: Any, elements: Any, coords: Coords) -> None:
        """Changes registers `scores`, logits of keys coords.k + i, in a kernel; elements[i]: as in score_with."""
        from cutlass import cute

        for idx in range(cute.size(scores)):
            scores[idx] = self.score_with(scores[idx], elements[idx], coords._replace(k=coords.k + idx))

    def score(self, score: Any, coords: Coords) -> Any:
        tensor = self.tensor
        batch, head, q = (
            broadcast_index(index, extent)
            for index, extent in zip((coords.batch, coords.head, coords.q), tensor.shape, strict=False)
        )
        return self.score_with(score, to_float(tensor[batch, head, q, min_(coords.k, coords.sk - 1)]), coords)


TENSOR_DIMS = ("batch|1", "num_heads|1", "sq|1", "sk")


@dataclass(frozen=True)
class Bias(TensorScore):
    """Adds bias[b, h, q, k] to a logit; -inf there hides the key.

    bias: (B or 1, Hq or 1, Sq or 1, Sk) fp32, fp16 or bf16, the last stride 1 and the others multiples of 16 bytes.
    dtype: that of bias, and is taken from it.
    """

    bias: TensorLeaf = tensor_leaf(dims=TENSOR_DIMS, dtype_field="dtype", align_bytes=16)
    dtype: str = ""

    name: ClassVar[str] = "bias"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "bf16")

    def __post_init__(self) -> None:
        if self.dtype == "" and not isinstance(self.bias, LeafKind):
            given = str(getattr(self.bias, "dtype", "")).removeprefix("torch.")
            row = dtypes.by_numpy_name(given)
            if row is None:
                got = f"dtype {given}" if given else type(self.bias).__qualname__
                raise ArgumentTypeError("bias.bias", got, "|".join(self.dtypes))
            object.__setattr__(self, "dtype", row.name)
        if self.dtype not in self.dtypes:
            raise ArgumentError("Bias.dtype", repr(self.dtype), "|".join(self.dtypes), "that of bias")

    @property
    def tensor(self) -> Any:
        return self.bias

    def score_with(self, score: Any, element: Any, coords: Coords) -> Any:
        return score + element

    def apply_score_with(self, scores: Any, elements: Any, coords: Coords) -> None:
        from cutlass import cute

        for idx in range(0, cute.size(scores), 2):
            pair, addends = (scores[idx], scores[idx + 1]), (elements[idx], elements[idx + 1])
            scores[idx], scores[idx + 1] = cute.arch.add_packed_f32x2(pair, addends)

    def sample(self, extent: Extent, rng: np.random.Generator) -> Bias:
        return self.replace(bias=padded_rows(rng.standard_normal((extent.batch, 1, extent.sq, extent.sk)), self.dtype))


def padded_rows(values: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[Any]:
    """The values as a tensor that a TensorScore takes: of that type, rows starting at multiples of 16 bytes."""
    rows = dtypes.dtype(dtype)
    row_elems = -(-values.shape[-1] // 16) * 16
    padded = np.full((*values.shape[:-1], row_elems), np.nan, rows.numpy)
    padded[..., : values.shape[-1]] = values
    return padded[..., : values.shape[-1]]


@dataclass(frozen=True)
class Sink(AttentionFusion):
    """One more key for every query of a head, of logit logits[h] and a value of zeros: it takes weight and gives none.

    logits: (Hq,) fp32; -inf is no sink. LSE includes it: a query that sees no key gets O = 0 and LSE = logits[h].
    """

    logits: TensorLeaf = tensor_leaf(dims=("num_heads",))

    name: ClassVar[str] = "sink"

    def at(self, batch: IntLike, head: IntLike) -> AttentionFusion:
        return self.replace(logits=self.logits[head])

    def reference(self, scores: Any, coords: Coords) -> Any:
        """The scores as they are: the softmax asks for the sink itself."""
        return scores

    @property
    def sinks(self) -> tuple[Any, ...]:
        return (self,)

    @property
    def logit(self) -> Any:
        """Of one head: after at()."""
        return self.logits

    def sample(self, extent: Extent, rng: np.random.Generator) -> Sink:
        return self.replace(logits=rng.standard_normal(extent.num_heads).astype(np.float32))
