# SPDX-License-Identifier: Apache-2.0
"""errors.py: the exceptions that opdeck raises.

Who calls it: every part of opdeck; users catch OpdeckError, or the standard exception that each also is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class OpdeckError(Exception):
    """Base of all errors that opdeck raises on purpose."""


def _describe(argument: str, got: object, want: str, hint: str) -> str:
    text = f"{argument}: got {got}, want {want}"
    return f"{text} ({hint})" if hint else text


class _WrongArgument(OpdeckError):
    """What is wrong with an argument: which one, what it got, what it wants."""

    def __init__(self, argument: str, got: object, want: str, hint: str = "") -> None:
        super().__init__(_describe(argument, got, want, hint))
        self.argument = argument
        self.got = got
        self.want = want
        self.hint = hint

    def __reduce__(self) -> Any:
        """Travels from compiler processes, which may have got what does not."""
        return type(self), (self.argument, str(self.got), self.want, self.hint)


class ArgumentError(_WrongArgument, ValueError):
    """An argument has a value that is not legal: which argument, what it got, what it wants."""

    @classmethod
    def from_text(cls, text: str) -> ArgumentError:
        """The error of a message of libopdeck's, "q: got ..., want ..."."""
        argument, _, got_want = text.partition(": got ")
        got, _, want = got_want.partition(", want ")
        return cls(argument, got, want)


class ArgumentTypeError(_WrongArgument, TypeError):
    """An argument has a type that is not legal, or is not an argument at all."""


class Unsupported(OpdeckError, NotImplementedError):
    """A well-formed problem that no variant accepts. `reasons`: a line a reason, with the variants that have it."""

    def __init__(self, message: str, reasons: Sequence[str]) -> None:
        super().__init__("\n".join([message, *(f"  {reason}" for reason in reasons)]))
        self.reasons = tuple(reasons)

    @classmethod
    def from_text(cls, text: str) -> Unsupported:
        """The error of a message of libopdeck's: a line on the problem, then the reasons."""
        message, *reasons = text.splitlines() or [""]
        return cls(message, [reason.strip() for reason in reasons])


class PluginError(OpdeckError, RuntimeError):
    """A plugin that cannot be used: which one and why."""


class DriverError(OpdeckError, RuntimeError):
    """The CUDA driver, or the emulator in its place, is missing or refused a call."""


class PackError(OpdeckError, RuntimeError):
    """A kernel pack cannot be built, found or loaded."""


class SpillError(PackError):
    """A kernel that needs more registers than its threads have."""


class HazardError(OpdeckError, RuntimeError):
    """The emulator found a fault or a hazard in a kernel."""
