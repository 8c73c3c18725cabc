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

from opdeck.core import dtypes
from opdeck.core.errors import ArgumentError
from opdeck.core.fusion.base import (
    AttentionFusion,
    Coords,
    Extent,
    Float32Leaf,
    LeafKind,
    Score,
    TensorLeaf,
    tensor_leaf,
)
from opdeck.core.fusion.floatmath import abs_, tanh, to_float
from opdeck.core.fusion.intmath import IntLike, broadcast_index, min_


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
        if isinstance(self.cap, (int, float, np.number)) and not self.cap > 0:
            raise ArgumentError("Softcap.cap", self.cap, "a cap > 0")

    def score(self, score: Any, coords: Coords) -> Any:
        return self.cap * tanh(score * (1.0 / self.cap))


@dataclass(frozen=True)
class Bias(Score):
    """Adds bias[b, h, q, k] to a logit; -inf there hides the key.

    bias: (B or 1, Hq or 1, Sq or 1, Sk) fp32, fp16 or bf16, any strides. dtype: that of bias, and is taken from it.
    """

    bias: TensorLeaf = tensor_leaf(dims=("batch|1", "num_heads|1", "sq|1", "sk"), dtype_field="dtype")
    dtype: str = ""

    name: ClassVar[str] = "bias"
    dtypes: ClassVar[tuple[str, ...]] = ("fp32", "fp16", "bf16")

    def __post_init__(self) -> None:
        if self.dtype == "" and not isinstance(self.bias, LeafKind):
            row = dtypes.by_numpy_name(str(getattr(self.bias, "dtype", "")).removeprefix("torch."))
            object.__setattr__(self, "dtype", row.name if row is not None else "")
        if self.dtype not in self.dtypes:
            raise ArgumentError("Bias.dtype", repr(self.dtype), "|".join(self.dtypes), "that of bias")

    def score(self, score: Any, coords: Coords) -> Any:
        batch, head, q = (
            broadcast_index(index, extent)
            for index, extent in zip((coords.batch, coords.head, coords.q), self.bias.shape, strict=False)
        )
        return score + to_float(self.bias[batch, head, q, min_(coords.k, coords.sk - 1)])

    def sample(self, extent: Extent, rng: np.random.Generator) -> Bias:
        shape = (extent.batch, 1, extent.sq, extent.sk)
        return self.replace(bias=rng.standard_normal(shape).astype(dtypes.dtype(self.dtype).numpy))


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
