# SPDX-License-Identifier: Apache-2.0
"""coverage.py: which instructions, modifiers and types the emulator decodes, asked of its decode functions themselves.

Who calls it: tests/support/coverage_table.py makes docs/coverage.md of it. Nothing here lists instructions:
opdeck_emu_probe decodes one opcode with operands that fit everywhere, and tells which modifiers the decode function
looked for and did not find. The search starts with the bare name and puts those in, one after the other.
Limits: a modifier is tried with each type that it may stand beside, not with every other modifier; what depends on
operands (their number, the values of descriptors) is not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from opdeck.core.emulator.library import DEVICES, EmulatorLibrary, Probe

Form = tuple[str, ...]  # the modifiers of an opcode
TYPES = frozenset(
    {f"{kind}{bits}" for kind in "bus" for bits in (8, 16, 32, 64)}
    | {"pred", "b128", "f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32", "e4m3", "e5m2", "ue8m0x2"}
    | {f"{elem}x{count}" for elem in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1") for count in (2, 4)}
)
PROBES_A_CANDIDATE = 400  # after which a beginning is given up
PROBES_A_LEVEL = 1000
MANY_MODIFIERS = 12


class Instruction(NamedTuple):
    """A name of the emulator's table, and its section of the PTX ISA manual."""

    name: str
    section: str


def type_of(form: Form) -> str:
    """The last modifier where it is a type, else ""."""
    return form[-1] if form and form[-1] in TYPES else ""


@dataclass
class Search:
    """The accepted forms of one instruction."""

    probe: Callable[[Form], Probe]
    accepted: list[Form] = field(default_factory=list)
    _probes_left: int = 0
    _tried: set[Form] = field(default_factory=set)
    _modifiers: set[str] = field(default_factory=set)
    _offers: set[tuple[Form, str]] = field(default_factory=set)

    def run(self) -> list[Form]:
        """A form for each modifier, and for each modifier beside each type."""
        queue = [self._first_complete(()) or self._shortest()]
        while queue:
            form = queue.pop(0)
            if form is not None and not self._modifiers.issuperset(form or ("",)):
                self._modifiers.update(form or ("",))
                self.accepted.append(form)
                queue.extend(self._first_complete(candidate) for candidate in self._neighbours(form))
        types = [modifier for modifier in self._modifiers if modifier in TYPES]
        for form in [form for form in self.accepted if type_of(form)]:
            others = ((*form[:-1], other) for other in sorted(types) if other != form[-1])
            self.accepted.extend(other for other in others if self.probe(other).accepted)
        return list(dict.fromkeys(self.accepted))

    def _neighbours(self, form: Form) -> Iterator[Form]:
        """The form with one more modifier, or another one; each of its beginnings with another one behind."""
        for at, modifier in self.probe(form).offered:
            yield (*form[:at], modifier, *form[at:])
        for end in range(len(form)):
            for at, modifier in self.probe((*form[:end], *form[end + 1 :])).offered:
                if at == end:
                    yield (*form[:at], modifier, *form[at + 1 :])
            offered = [modifier for at, modifier in self.probe(form[:end]).offered if at == end]
            # Where much may follow, whatever stands far before does not matter.
            before = form[:end] if len(offered) < MANY_MODIFIERS else (*sorted(offered), *form[:end][-1:])
            for modifier in offered:
                if (before, modifier) not in self._offers:
                    self._offers.add((before, modifier))
                    yield (*form[:end], modifier)

    def _first_complete(self, form: Form) -> Form | None:
        self._probes_left = PROBES_A_CANDIDATE
        return self._complete(form)

    def _shortest(self) -> Form | None:
        """For names that say of no modifier that it is wanted: one of each that they look for, to a depth of ten."""
        level: list[Form] = [()]
        for _ in range(10):
            longer: list[Form] = []
            for form in level:
                answer = self.probe(form)
                if answer.accepted:
                    return form
                longer += [(*form[:at], modifier, *form[at:]) for at, modifier in answer.wanted or answer.offered]
            level = longer[:PROBES_A_LEVEL]
        return None

    def _complete(self, form: Form, may_guess: bool = True) -> Form | None:
        """The form, or the first accepted one with what it lacks: what must follow it, or one modifier elsewhere."""
        if form in self._tried or self._probes_left <= 0:
            return None
        self._probes_left -= 1
        self._tried.add(form)
        answer = self.probe(form)
        if answer.accepted:
            return form
        for at, modifier in answer.wanted or (answer.offered if may_guess else ()):
            longer = (*form[:at], modifier, *form[at:])
            if at == len(form) and (answer.wanted or not form):
                found = self._complete(longer, may_guess=False)
            else:
                found = longer if self._probes_left > 0 and self.probe(longer).accepted else None
            self._probes_left -= 1
            if found is not None:
                return found
        return None


def instructions(library: EmulatorLibrary) -> list[Instruction]:
    """The emulator's table."""
    return [Instruction(*line.split("\t")) for line in library.instructions().splitlines()]


def forms(library: EmulatorLibrary, name: str) -> list[Form]:
    """Forms of one instruction that the emulator accepts for some target, one at least for each modifier and type."""

    @functools.cache
    def probe(form: Form) -> Probe:
        for arch in DEVICES:
            answer = library.probe(arch, ".".join((name, *form)))
            if "by the target" not in answer.refusal:
                break
        return answer

    return Search(probe).run()
