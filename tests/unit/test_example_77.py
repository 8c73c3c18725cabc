# SPDX-License-Identifier: Apache-2.0
"""Each command line of example 77's forward and MLA forward tests is one of `opdeck run`, and its case is in the table.

Source: its CMake file, restated: what its programs are called with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from opdeck.core.cli.main import command_line
from opdeck.core.variant import fusion_key
from opdeck.plugins.fmha_fwd import case_table, commands
from opdeck.plugins.fmha_fwd.cases import Case

FORWARD, MLA = "forward", "mla"
COMMON = (
    "--b=1 --h=4 --q=512 --k=512 --mask=no",
    "--b=1 --h=4 --q=512 --k=512 --mask=causal",
    "--b=1 --h=4 --q=512 --k=512 --mask=residual --varlen",
)
HEAD_DIM_64 = ("--b=2 --h=4 --q=512 --k=512", "--b=2 --h=4 --h_k=2 --q=512 --k=512")
OFFSET = "--iterations=0 --b=1 --h=1 --h_k=1 --q=1013 --k=1024 --d=128 --mask=causal --causal-type=qend"
# Head dim, heads, and rows of each sequence, by number; (0, 0): as the MLA program has it.
VARLEN = {
    0: (128, (8, 4), "128", "128"),
    1: (64, (4, 4), "128", "128"),
    2: (128, (4, 2), "128", "128"),
    3: (128, (8, 8), "256:256", "512:512"),
    4: (128, (8, 4), "256:256", "512:512"),
    5: (128, (8, 1), "256:256", "512:512"),
    6: (128, (8, 2), "256:256:256:256", "256:768:512:512"),
    7: (128, (8, 2), "256:256:256:256", "256:0:1280:512"),
    8: (128, (8, 2), "256:0:512:256", "256:256:1024:512"),
    9: (64, (16, 16), "100:300", "100:300"),
    10: (64, (4, 4), "3:2", "2:5"),
    11: (64, (4, 2), "17:10", "13:10"),
    12: (64, (4, 4), "177:845", "257:766"),
    13: (64, (4, 2), "177:366:479", "257:0:766"),
    14: (64, (4, 4), "1", "1"),
}
OTHER_ROWS_OF_MLA = {
    10: ("2:3", "2:5"),
    11: ("11:10", "13:10"),
    12: ("177:766", "257:845"),
    13: ("177:0:479", "257:0:766"),
}
ONE_SEQUENCE = (
    *(("qbegin", q, k) for q, k in ((128, 128), (17, 257), (17, 25))),
    *(("qend", q, k) for q, k in ((128, 128), (17, 257), (17, 25), (1013, 1024), (1024, 1035))),
)


def command_lines() -> Iterator[tuple[str, str]]:
    """(program, flags)."""
    for program in (FORWARD, MLA):
        dims = {d: f"--d={d}" if program == FORWARD else "--dl=128 --dr=64" for d in (64, 128)}
        yield from ((program, f"{flags} {dims[128]}") for flags in COMMON)
        yield from ((program, f"{flags} {dims[64]}") for flags in HEAD_DIM_64)
        for number, (d, (h, h_k), q, k) in VARLEN.items():
            q, k = OTHER_ROWS_OF_MLA.get(number, (q, k)) if program == MLA else (q, k)
            rows = f"--h={h} --h_k={h_k} --varlen-q={q} --varlen-k={k}"
            yield program, f"--varlen --mask=causal,residual {rows} {dims[d]}"
        for causal_type, sq, sk in ONE_SEQUENCE:
            rows = f"--h=4 --h_k=4 --varlen-q={sq} --varlen-k={sk}"
            yield program, f"--varlen --mask=causal --causal-type={causal_type} {rows} {dims[128]}"
    yield FORWARD, OFFSET


class Posed(Exception):
    """The case of a command line, instead of its run."""


def posed(flags: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> Case:
    def stop(case: Case, *_: Any) -> None:
        raise Posed(case)

    monkeypatch.setattr(commands, "_inputs", stop)
    result = CliRunner().invoke(command_line(), ["run", "fmha_fwd", "--verify", f"--dtype={dtype}", *flags.split()])
    assert isinstance(result.exception, Posed), result.output
    case: Case = result.exception.args[0]
    return case


def key(case: Case) -> tuple[object, ...]:
    return case.shape, fusion_key(case.fusion), case.dtype, case.lengths, case.scheduling


TABLE = {key(case) for case in (*case_table.cases(), *case_table.varlen_cases(), *case_table.full_cases())}
LINES = list(command_lines())


@pytest.mark.parametrize("dtype", ["fp8", "fp16", "bf16"])
@pytest.mark.parametrize(("program", "flags"), LINES, ids=[" ".join(line) for line in LINES])
def test_the_table_has_it(program: str, flags: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert key(posed(flags, dtype, monkeypatch)) in TABLE


def test_each_flag_is_one_of_ours() -> None:
    """Those that the programs parse, which no line above has too."""
    flags = "--warmup_iterations=0 --tensor_ring_buffers=1 --persistent --verbose --sm-count=0 --kernel-filter=.* "
    flags += "--init-style=r --init-style-q=1 --init-style-k=d --init-style-v=s"
    help_text = CliRunner().invoke(command_line(), ["run", "fmha_fwd", "--help"], env={"COLUMNS": "300"}).output
    for flag in (*flags.split(), "--verify"):
        assert flag.partition("=")[0] in help_text
