# SPDX-License-Identifier: Apache-2.0
"""sass.py: the hot loops of a cubin in SASS, their instructions by pipe, and how often the emulator ran them.

Who calls it: benchmarks/fmha_slots.py; authors of kernels.
How: nvdisasm (extra "bench") lists the cubin. A loop is what a branch backwards spans, with no EXIT and no NANOSLEEP
in it and no such loop inside. Its trips are not in the cubin: they are what the emulator counted for PTX instructions
that ptxas keeps one for one (anchors), where as many of them share one count as the loop has.
Limits: a loop that ptxas unrolled has more anchors than its PTX, and so no trips; nor have two like loops whose PTX ran
equally often. Only listings of one function.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from opdeck.core.errors import OpdeckError
from opdeck.core.profile.counts import Profile

MIN_LOOP_INSTRUCTIONS = 32  # shorter ones only wait
_NO_HOT_LOOP = ("EXIT", "NANOSLEEP")
_LABEL = re.compile(r"\s*(\.L\w+):")
_LINE = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);")
_TARGET = re.compile(r"`\((\.L\w+)\)")

# By the first row whose pattern fits; SASS has no public table of pipes, so this is by analogy with PTX's.
_PIPES: tuple[tuple[str, str], ...] = (
    (r"MUFU", "mufu"),
    (r"F(FMA|ADD|MUL)2", "f32x2"),
    (r"F(FMA|ADD|MUL)|FSWZADD", "fp32"),
    (r"D(FMA|ADD|MUL|SETP)", "fp64"),
    (r"H(FMA2|ADD2|MUL2|SETP2|MNMX2)", "half"),
    (r"F2|I2|FRND", "convert"),
    (r"FMNMX|FSEL|FSET|SEL|ISETP|VIMNMX|VIADDMNMX|IMNMX|R2P|P2R|PLOP3", "compare"),
    (r"UTC.*(MMA|CP)|HGMMA|QGMMA|IGMMA|HMMA|IMMA", "mma"),
    (r"UTM|UBLK|UTMA", "tma"),
    (r"UTCBAR|SYNCS|BAR|FENCE|MEMBAR|DEPBAR|WARPSYNC|BSSY|BSYNC|WARPGROUP|UCGABAR|ERRBAR|CCTL", "sync"),
    (r"LDTM|STTM", "tmem"),
    (r"LDS|STS|ATOMS", "shared_memory"),
    (r"LDG|STG|LD|ST|LDL|STL", "global_memory"),
    (r"SHFL|VOTE|ELECT|MATCH|REDUX|MOVM", "shuffle"),
    (r"MOV|S2R|CS2R|S2UR|R2UR", "move"),
    (r"BRA|BRX|CALL|RET|NOP|EXIT|USETMAXREG|NANOSLEEP|JMP|BREAK|YIELD|WARPSYNC", "control"),
    (r"U", "uniform"),
    (r"IADD|IMAD|LOP3|SHF|LEA|PRMT|VIADD|IABS|POPC|FLO|BREV|BMSK|SGXT|IDP", "integer"),
)
# PTX instructions that have one SASS instruction each, and which.
_ANCHORS: tuple[tuple[str, str], ...] = (
    (r"ex2\.", r"MUFU\.EX2"),
    (r"tcgen05\.ld\.red\.", r"LDTM\.STAT"),
    (r"tcgen05\.ld\.(?!red)", r"LDTM(?!\.STAT)"),
    (r"tcgen05\.st\.", r"STTM"),
    (r"tcgen05\.mma\.", r"UTC\w*MMA"),
    (r"cp\.async\.bulk\.tensor\..*\.shared::cluster\.global", r"UTMALDG"),
    (r"mul.*\.f32x2", r"FMUL2"),
)


@dataclass(frozen=True)
class Instruction:
    opcode: str
    target: str  # the label that a branch goes to, "" for others

    @property
    def pipe(self) -> str:
        return next((pipe for pattern, pipe in _PIPES if re.match(pattern, self.opcode)), "other")


@dataclass(frozen=True)
class Loop:
    """first: its index in the function. spans: what each forward branch inside passes over, first and last."""

    first: int
    instructions: Sequence[Instruction]
    spans: Sequence[tuple[int, int]]

    @property
    def by_pipe(self) -> dict[str, int]:
        return dict(Counter(instruction.pipe for instruction in self.instructions).most_common())

    def slots_without(self, pattern: str) -> int:
        """Instructions left when the nearest branch around each one of the pattern is taken."""
        passed: set[int] = set()
        for index, instruction in enumerate(self.instructions):
            around = [span for span in self.spans if span[0] <= index <= span[1]]
            if re.match(pattern, instruction.opcode) and around:
                begin, end = min(around, key=lambda span: span[1] - span[0])
                passed |= set(range(begin, end + 1))
        return len(self.instructions) - len(passed)

    def count(self, pattern: str) -> int:
        """Instructions whose opcode begins with the pattern."""
        return sum(re.match(pattern, instruction.opcode) is not None for instruction in self.instructions)

    def warp_trips(self, role: Profile) -> int | None:
        """How often the warps of a role went round, summed over warps and CTAs; None when the counters do not tell."""
        possible: set[int] | None = None
        for ptx, sass in _ANCHORS:
            wanted = self.count(sass)
            if wanted == 0:
                continue
            completed: Counter[int] = Counter()
            for row in role.rows:
                if re.match(ptx, row.opcode):
                    completed[row.op_idx] += row.completed
            shared = Counter(completed.values())
            found = {count for count, num_ops in shared.items() if num_ops == wanted}
            possible = found if possible is None else possible & found
        return possible.pop() if possible is not None and len(possible) == 1 else None


def disassemble(cubin: Path) -> str:
    """nvdisasm's listing.

    Raises: OpdeckError when there is no nvdisasm, or it fails.
    """
    with tempfile.NamedTemporaryFile("w+") as listing:
        result = subprocess.run(
            [_nvdisasm(), "-c", str(cubin)], stdout=listing, stderr=subprocess.PIPE, text=True, check=False
        )
        if result.returncode != 0:
            raise OpdeckError(f"nvdisasm {cubin}: {result.stderr.strip()}")
        listing.seek(0)
        return listing.read()


def instructions(listing: str) -> list[Instruction]:
    """Of the one function of a listing, the padding behind its last jump left out."""
    code, _ = _parse(listing)
    while code and code[-1].opcode == "NOP":
        code.pop()
    return code


def hot_loops(listing: str) -> list[Loop]:
    """Of the one function of a listing, in order."""
    code, labels = _parse(listing)
    found = []
    for last, instruction in enumerate(code):
        first = labels.get(instruction.target, last + 1)
        body = code[first : last + 1]
        is_hot = not any(one.opcode.startswith(_NO_HOT_LOOP) for one in body)
        if len(body) >= MIN_LOOP_INSTRUCTIONS and is_hot:
            found.append((first, last))
    loops = []
    for first, last in sorted(found):
        if any(other != (first, last) and first <= other[0] and other[1] <= last for other in found):
            continue
        body = code[first : last + 1]
        targets = [labels.get(instruction.target, 0) - first for instruction in body]
        spans = [(i + 1, target - 1) for i, target in enumerate(targets) if i < target - 1 < len(body)]
        loops.append(Loop(first, body, spans))
    return loops


def _parse(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        label, instruction = _LABEL.match(line), _LINE.match(line)
        if label:
            labels[label[1]] = len(code)
        elif instruction:
            opcode, operands = instruction["opcode"], instruction["operands"]
            target = _TARGET.search(operands) if opcode.startswith("BRA") else None
            code.append(Instruction(opcode, target[1] if target else ""))
    return code, labels


def _nvdisasm() -> str:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else None
    packaged = [path for folder in folders or () for path in Path(folder).glob("*/bin/nvdisasm")]
    found = shutil.which("nvdisasm") or (str(packaged[0]) if packaged else None)
    if found is None:
        raise OpdeckError("nvdisasm: not found; it comes with the extra opdeck[bench] (nvidia-cuda-nvdisasm)")
    return found
