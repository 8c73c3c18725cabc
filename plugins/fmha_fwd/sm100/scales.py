# SPDX-License-Identifier: Apache-2.0
"""What scores and values are multiplied by: softmax_scale, and the scales of the elements of Q, K, V and O.

Called by: kernel.py, on the host side of the entry and in the kernel; the softmax and correction roles use the results.
Domain: softmax_scale, q_scale and k_scale > 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Float32

from opdeck.core.fusion.attention import AttentionFusion
from opdeck.plugins.fmha_fwd.sm100.sequences import is_given
from opdeck.plugins.fmha_fwd.sm100.work import Work

LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class ElementScales:
    """q_scale, k_scale, v_scale: (num_seqs, Hk) f32 in device memory, each absent when its pointer is null;
    out_scale: what O is multiplied by."""

    q_scale: cute.Tensor
    k_scale: cute.Tensor
    v_scale: cute.Tensor
    out_scale: Float32


@dataclass(frozen=True)
class ScoreScales:
    """logit: what S is multiplied by before score functions run; None where there are none, and masks run on S itself.
    log2: what the exponents of 2 take, softmax_scale * log2(e), or log2(e) of logits."""

    logit: Float32 | None
    log2: Float32


@dataclass(frozen=True)
class Scales:
    """What all CTAs share: the scales of scores without those of Q and K, and the scales of elements."""

    scores: ScoreScales
    elements: ElementScales

    @staticmethod
    def of(fusion: AttentionFusion, softmax_scale: Float32, elements: ElementScales) -> Scales:
        if fusion.scores:
            return Scales(ScoreScales(softmax_scale, Float32(LOG2_E)), elements)
        return Scales(ScoreScales(None, softmax_scale * LOG2_E), elements)

    def of_scores(self, work: Work) -> ScoreScales:
        """For the sequence and the head of a block."""
        factor = scale_of(self.elements.q_scale, work) * scale_of(self.elements.k_scale, work)
        if self.scores.logit is not None:
            return ScoreScales(self.scores.logit * factor, self.scores.log2)
        return ScoreScales(None, self.scores.log2 * factor)

    def of_output(self, work: Work) -> Float32:
        """What O is multiplied by, for the sequence and the head of a block."""
        return scale_of(self.elements.v_scale, work) * self.elements.out_scale


@cute.jit
def scale_of(tensor: cute.Tensor, work: Work) -> Float32:
    """The element of a block's sequence and key head; 1 of an absent tensor."""
    scale = Float32(1.0)
    if is_given(tensor):
        scale = tensor[work.seq, work.kv_head]
    return scale
