# SPDX-License-Identifier: Apache-2.0
"""mutants.py: copies of a kernel's PTX with one synchronisation left out.

Who calls it: gate.py; authors of kernels, to test their own.
Source: the PTX ISA's instructions that order threads, async copies and the tensor pipe, one rule each (RULES).
Limits: edits text statement by statement; a statement must not contain a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """One PTX instruction. guard: "@%p1 " or "". begin, end: its place in the text, end behind the semicolon."""

    guard: str
    opcode: str
    operands: str
    begin: int
    end: int


def _deleted(statement: Statement) -> str:
    return ""


def _true_at_once(statement: Statement) -> str:
    """A wait whose predicate is its first operand: a loop around it ends at the first try."""
    predicate = statement.operands.partition(",")[0].strip()
    return f"{statement.guard}setp.eq.u32 {predicate}, 0, 0;"


def _without_expect_tx(statement: Statement) -> str:
    """The arrive alone: the phase may complete before the bytes have come."""
    state, address, _num_bytes = statement.operands.split(",")
    return f"{statement.guard}{statement.opcode.replace('.expect_tx', '')} {state},{address};"


def _trap(statement: Statement) -> str:
    return f"{statement.guard}trap;"


@dataclass(frozen=True)
class Rule:
    """How one kind of instruction is left out. opcode: matched from its start."""

    kind: str
    opcode: str
    edit: Callable[[Statement], str]


RULES = (
    Rule("mbarrier wait", r"mbarrier\.(?:try|test)_wait\b", _true_at_once),
    Rule("mbarrier arrive", r"mbarrier\.arrive(?:_drop)?\b", _deleted),
    Rule("expect_tx of an arrive", r"mbarrier\.arrive(?:_drop)?\.expect_tx\b", _without_expect_tx),
    Rule("expect_tx", r"mbarrier\.expect_tx\b", _deleted),
    Rule("complete_tx", r"mbarrier\.complete_tx\b", _deleted),
    Rule("mbarrier_init fence", r"fence\.mbarrier_init\b", _deleted),
    Rule("proxy fence", r"fence\.proxy\b", _deleted),
    Rule("fence", r"(?:fence\.(?:sc|acq_rel|acquire|release|cta|cluster|gpu|sys)|membar)\b", _deleted),
    # Not bar.warp.sync: accesses are ordered by warp, whose lanes run in lockstep on the emulator.
    Rule("barrier", r"(?:bar|barrier)(?:\.cta)?\.(?:sync|arrive|red)\b", _deleted),
    Rule("cluster barrier arrive", r"barrier\.cluster\.arrive\b", _deleted),
    Rule("cluster barrier wait", r"barrier\.cluster\.wait\b", _deleted),
    Rule("bulk commit_group", r"cp\.async\.bulk\.commit_group\b", _deleted),
    Rule("bulk wait_group", r"cp\.async\.bulk\.wait_group\b", _deleted),
    Rule("cp.async commit", r"cp\.async\.(?:commit_group|mbarrier\.arrive)\b", _deleted),
    Rule("cp.async wait", r"cp\.async\.wait_(?:group|all)\b", _deleted),
    Rule("wgmma fence", r"wgmma\.fence\b", _deleted),
    Rule("wgmma commit_group", r"wgmma\.commit_group\b", _deleted),
    Rule("wgmma wait_group", r"wgmma\.wait_group\b", _deleted),
    Rule("tcgen05 commit", r"tcgen05\.commit\b", _deleted),
    Rule("tcgen05 wait::ld", r"tcgen05\.wait::ld\b", _deleted),
    Rule("tcgen05 wait::st", r"tcgen05\.wait::st\b", _deleted),
    Rule("tcgen05 fence before", r"tcgen05\.fence::before_thread_sync\b", _deleted),
    Rule("tcgen05 fence after", r"tcgen05\.fence::after_thread_sync\b", _deleted),
)

_STATEMENT = re.compile(
    r"(?<=[\s{};:])(?P<guard>@!?%?\w+\s+)?(?P<opcode>"
    + "|".join(f"(?:{rule.opcode})" for rule in RULES)
    + r")(?P<modifiers>[\w.:]*)(?P<operands>[^;/]*);"
)


@dataclass(frozen=True)
class Mutant:
    """A statement of `ptx`, and the rule that leaves it out. line: of the PTX, from 1."""

    rule: Rule
    line: int
    statement: Statement

    @property
    def instruction(self) -> str:
        """The statement on one line."""
        return " ".join(f"{self.statement.guard}{self.statement.opcode} {self.statement.operands}".split())

    def edit(self, ptx: str) -> str:
        """The text without the synchronisation, all lines in their places."""
        return self._replace(ptx, self.rule.edit(self.statement))

    def probe(self, ptx: str) -> str:
        """The text with a trap in the place of the statement: it runs to its end only if that is never executed."""
        return self._replace(ptx, _trap(self.statement))

    def _replace(self, ptx: str, text: str) -> str:
        begin, end = self.statement.begin, self.statement.end
        return ptx[:begin] + text + "\n" * ptx.count("\n", begin, end) + ptx[end:]


def mutants(ptx: str) -> Iterator[Mutant]:
    """Every mutant of a PTX text, in the order of the text."""
    for statement in _statements(ptx):
        line = 1 + ptx.count("\n", 0, statement.begin)
        for rule in RULES:
            if re.match(rule.opcode, statement.opcode):
                yield Mutant(rule, line, statement)


def _statements(ptx: str) -> Iterator[Statement]:
    for match in _STATEMENT.finditer(ptx):
        line_begin = ptx.rfind("\n", 0, match.start()) + 1
        if "//" in ptx[line_begin : match.start()]:
            continue
        opcode = match["opcode"] + match["modifiers"]
        yield Statement(match["guard"] or "", opcode, match["operands"].strip(), match.start(), match.end())
