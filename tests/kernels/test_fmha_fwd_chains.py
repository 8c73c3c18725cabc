# SPDX-License-Identifier: Apache-2.0
"""Fusions of many parts find registers: kernels of pairs and triples of score functions and masks are compiled.

Making a pack refuses a kernel that spills. What such kernels compute is tested in test_fmha_fwd_fusions.py.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdeck.aot import build
from opdeck.core import registry
from opdeck.core.fusion import (
    Alibi,
    AttentionFusion,
    Bias,
    Causal,
    Coords,
    Document,
    Fusion,
    LeafKind,
    PrefixLM,
    Sink,
    Softcap,
    Window,
    mask_mod,
    score_mod,
)
from opdeck.core.variant import Variant, fusion_key
from opdeck.plugins.fmha_fwd import variants
from opdeck.plugins.fmha_fwd.sm100.config import Config, Schedule

LEAF = LeafKind.TENSOR
TABLE = np.zeros((4, 600), np.float32)


def from_table(score: Any, at: Coords, table: Any) -> Any:
    return score + table[at.head, at.k]


def seen_in_table(at: Coords, table: Any) -> Any:
    return table[at.head, at.k] > 0.0


SCORES = (Alibi(LEAF), Softcap(), Bias(LEAF, "fp16"), Bias(LEAF, "fp32"), score_mod(from_table, (TABLE,)))
FUNCTION = mask_mod(seen_in_table, (TABLE,))
MASKS = (Window(40, 30), PrefixLM(LEAF), Document(LEAF), FUNCTION)
TYPES = (("fp16", "fp16"), ("bf16", "bf16"), ("fp8_e4m3", "bf16"))
SCHEDULES = tuple(schedule.value for schedule in Schedule if schedule is not Schedule.PAIR)  # which takes no fusion


def chains() -> Iterator[AttentionFusion]:
    """Two or three score functions and their reverse, behind them the masks in turn; masks alone; some with a sink."""
    parts = [part for count in (2, 3) for part in itertools.combinations(SCORES, count)]
    parts += [part[::-1] for part in parts]
    parts = [part for part in parts if sum(isinstance(score, Bias) for score in part) < 2]
    behind = itertools.cycle(((), (MASKS[0],), (MASKS[1], MASKS[2]), (FUNCTION,), (MASKS[2], Sink(LEAF))))
    yield from (functools.reduce(operator.and_, (*part, *next(behind))) for part in parts)
    yield from (score & FUNCTION for score in (*SCORES, Sink(LEAF)))
    yield SCORES[-1] & score_mod(lambda score, at: score * at.head) & FUNCTION & Sink(LEAF)
    for count in (1, 2, 3, 4):
        yield from (functools.reduce(operator.and_, part) for part in itertools.combinations(MASKS, count))


CHAINS = tuple(chains())


def rows_of(arch: str, fusions: tuple[AttentionFusion, ...]) -> list[Variant]:
    """One row a fusion: types, head dims and schedules by turns."""
    turns = {fusion_key(fusion): idx for idx, fusion in enumerate(fusions)}
    candidates = registry.get("fmha_fwd").variants(fusions)
    chosen = []
    for key, idx in turns.items():
        schedule = SCHEDULES[idx % len(SCHEDULES)]
        of_fusion = [
            row
            for row in candidates
            if (row.arch, fusion_key(row.fusion), row.config.get("schedule")) == (arch, key, schedule)
            and (row.dtype, row.symbol_dtypes["O"]) in TYPES
        ]
        chosen.append(of_fusion[5 * idx % len(of_fusion)])
    return chosen


@pytest.mark.full
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
def test_no_chain_spills(arch: str, tmp_path: Path) -> None:
    rows = rows_of(arch, CHAINS)
    assert {row.config["schedule"] for row in rows} == set(SCHEDULES)
    assert {row.config["tile_n"] for row in rows} == {64, 128}
    build(rows, {"fmha_fwd": registry.schema("fmha_fwd")}, tmp_path, "chains")


@pytest.mark.parametrize(
    ("name", "fusion"),
    [
        ("sm103a_bf16_d128_dynamic", Bias(LEAF, "bf16")),
        ("sm100a_fp16_d128_dynamic", Bias(LEAF, "fp32") & Causal()),
        ("sm100a_bf16_d256_persistent", PrefixLM(LEAF)),
    ],
    ids=lambda value: str(getattr(value, "slug", value)),
)
def test_kernels_whose_ctas_take_several_blocks_do_not_spill(name: str, fusion: Fusion, tmp_path: Path) -> None:
    """With the registers of those for one block they do."""
    rows = [row for row in variants.rows((fusion,)) if row.id == f"fmha_fwd_{name}_{fusion.slug}"]
    build(rows, {"fmha_fwd": registry.schema("fmha_fwd")}, tmp_path, "scheduled")


@pytest.mark.parametrize(
    ("fusion", "tile_n"),
    [
        (SCORES[0] & SCORES[1] & Document(LEAF) & Sink(LEAF), 128),
        (SCORES[1] & Bias(LEAF, "bf16") & Window(40, 30), 128),
        (SCORES[1] & SCORES[4], 64),
        (SCORES[4], 128),
        (SCORES[2] & SCORES[0] & PrefixLM(LEAF) & Document(LEAF), 64),
        (mask_mod(lambda at: at.q % 4 != at.k % 4), 128),
        (Window(40, 30) & Document(LEAF) & PrefixLM(LEAF), 128),
        (SCORES[1] & SCORES[3] & SCORES[0], 64),
        (SCORES[4] & SCORES[2], 64),
        (SCORES[1] & SCORES[2] & Document(LEAF) & Sink(LEAF), 64),
        (SCORES[1] & FUNCTION, 64),
        (FUNCTION, 64),
        (mask_mod(lambda at: at.q % 4 != at.k % 4) & Sink(LEAF), 64),
        (FUNCTION & Document(LEAF), 64),
    ],
    ids=lambda value: str(getattr(value, "slug", value)),
)
def test_fusions_that_take_many_registers_have_smaller_tiles(fusion: AttentionFusion, tile_n: int) -> None:
    """And each of their configs can run. Rows of larger ones for one block a CTA have a spare of 64 keys."""
    configs = [Config.of(row) for row in variants.rows((fusion,)) if row.arch in ("sm_100a", "sm_103a")]
    for config in configs:
        config.check()
    of_8_bits = [config for config in configs if config.elem_bits == 8]
    assert {config.tile_n for config in of_8_bits} == {tile_n, 64}
    assert {config.tile_n for config in of_8_bits if config.schedule is not Schedule.INDIVIDUAL} == {tile_n}
    assert {config.tile_n for config in configs if config.d_qk == 256 and config.elem_bits == 16} == {64}


def test_a_tensor_of_32_bits_has_smaller_tiles_where_ctas_take_several_blocks() -> None:
    """Such kernels wait for a call that names them: one block a CTA is preferred, in tiles of 128 keys."""
    for row in variants.rows((Bias(LEAF, "fp32") & Window(40, 30),)):
        if row.dtype.startswith("fp8") and row.arch == "sm_100a" and "_k64_" not in row.id:
            config = Config.of(row)
            config.check()
            assert config.tile_n == (128 if config.schedule is Schedule.INDIVIDUAL else 64)
            assert row.prefer == ()
