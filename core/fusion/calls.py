# SPDX-License-Identifier: Apache-2.0
"""calls.py: calls of users' functions, on the host and while a kernel is traced: what they see, and how they fail.

Who calls it: functions.py. Numbers mean the same in both: `%` has the sign of the divisor, as in Python, and a tensor
takes one index a dim, none of them negative. Whatever goes wrong is an ArgumentError that names the function, its file
and the line.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from opdeck.core.errors import ArgumentError, ArgumentTypeError

_WANTED = "arithmetic that runs on numpy arrays and traced numbers alike"
_HINT = "&, |, ~ and floatmath.select for and, or, not and if; functions of floatmath for numpy's and math's"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def place(function: types.FunctionType) -> str:
    """A function's name, file and line."""
    code = function.__code__
    return f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"


def check_parameters(function: types.FunctionType, first: tuple[str, ...], num_aux: int) -> None:
    """Raises: ArgumentTypeError unless the function can be called with the first parameters and num_aux more."""
    signature, names = inspect.signature(function), (*first, *(f"aux[{idx}]" for idx in range(num_aux)))
    try:
        signature.bind(*names)
    except TypeError as error:
        got = f"{place(function)}, a function of ({', '.join(signature.parameters)})"
        raise ArgumentTypeError("fn", got, f"one of ({', '.join(names)})", str(error)) from None


def call(function: types.FunctionType, *args: Any) -> Any:
    """function(*args); the last Coords among args, and aux behind it.

    Raises: ArgumentError from what the function raises.
    """
    try:
        with _python_remainders(args):
            return function(*args)
    except Exception as error:
        cause = next(iter(_COLOURS.sub("", str(error)).strip().splitlines()), "")  # the DSL quotes sources behind it
        got = f"{place(function)}, which fails in line {_line(function, error)}: {type(error).__name__}: {cause}"
        raise ArgumentError("fn", got, _WANTED, _HINT) from error


def _line(function: types.FunctionType, error: Exception) -> int:
    """The last line of the function's file that the error went through."""
    path = function.__code__.co_filename
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return (lines[-1] if lines else None) or function.__code__.co_firstlineno


def checked_logit(function: types.FunctionType, result: Any) -> Any:
    """A score function's result. Raises: ArgumentTypeError unless it is a number or numbers."""
    if isinstance(result, np.ndarray) and result.dtype.kind in "iuf":
        return result.astype(np.float64)
    if isinstance(result, (int, float, np.integer, np.floating)) and not isinstance(result, bool):
        return float(result)
    number = _traced(result)
    if number is not None and not _is_truth(number):
        return sys.modules["cutlass"].Float32(number)
    raise ArgumentTypeError("fn", _returned(function, result), "a number, the new logit")


def checked_truth(function: types.FunctionType, result: Any) -> Any:
    """A mask's result. Raises: ArgumentTypeError unless it is a truth value or truth values."""
    number = _traced(result)
    if _is_truth(result if number is None else number):
        return result if number is None else number
    want = "a truth value, comparisons joined by &, | and ~"
    raise ArgumentTypeError("fn", _returned(function, result), want)


def _returned(function: types.FunctionType, result: Any) -> str:
    kind = f"an array of {result.dtype}" if isinstance(result, np.ndarray) else f"an object of {type(result)}"
    return f"{place(function)}, which returns {'None' if result is None else kind}"


def _is_truth(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == np.bool_)
    kinds = (bool, np.bool_) if "cutlass" not in sys.modules else (bool, np.bool_, sys.modules["cutlass"].Boolean)
    return isinstance(value, kinds)


def _traced(value: Any) -> Any:
    """The DSL's number of a traced value; None of another, and where the DSL is not imported: then none can be."""
    if "cutlass" not in sys.modules:
        return None
    import cutlass
    from cutlass._mlir import ir

    return cutlass.as_numeric(value) if isinstance(value, (cutlass.Numeric, ir.Value)) else None


@dataclass(frozen=True)
class AuxTensor:
    """A tensor as functions see it: its shape and, by one index a dim, its elements."""

    tensor: Any
    name: str

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.tensor.shape)

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != len(self.shape):
            raise IndexError(f"{self.name} has {len(self.shape)} dims, and got {len(indices)} indices")
        for dim, each in enumerate(indices):
            self._check(each, dim)
        return self.tensor[indices if len(indices) > 1 else indices[0]]

    def _check(self, index: Any, dim: int) -> None:
        number = _traced(index)
        if number is not None and not _is_truth(number) and type(number).is_integer:
            return
        is_host = isinstance(index, (int, np.integer, np.ndarray)) and np.asarray(index).dtype.kind in "iu"
        if not is_host:
            raise TypeError(f"{self.name} got {index!r} as index of dim {dim}, and takes integers")
        if np.size(index) and np.min(index) < 0:
            raise IndexError(f"{self.name} got {np.min(index)} as index of dim {dim}, and none is less than 0")


@contextlib.contextmanager
def _python_remainders(args: tuple[Any, ...]) -> Iterator[None]:
    """Gives `%` of the DSL's numbers Python's meaning; `//` has it. args: numbers in a tuple of them, the coordinates,
    are not negative. On the host, whose threads share the DSL's class, nothing is changed."""
    naturals = [number for arg in args if isinstance(arg, tuple) for number in arg]
    if all(_traced(number) is None for number in naturals):
        yield
        return
    numbers = sys.modules["cutlass"]
    kind, kept = numbers.Numeric, (numbers.Numeric.__mod__, numbers.Numeric.__rmod__)

    def remainder(a: Any, b: Any) -> Any:
        if isinstance(a, numbers.Integer) and isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            return a & (b - 1)
        rest = kept[0](a, b)
        is_known = isinstance(b, int) and b > 0
        if rest is NotImplemented or (is_known and any(a is number for number in naturals)):
            return rest
        return _with_sign_of(rest, b, numbers.select_)

    def reflected(a: Any, b: Any) -> Any:
        rest = kept[1](a, b)
        return rest if rest is NotImplemented else _with_sign_of(rest, a, numbers.select_)

    kind.__mod__, kind.__rmod__ = remainder, reflected
    try:
        yield
    finally:
        kind.__mod__, kind.__rmod__ = kept


def _with_sign_of(rest: Any, divisor: Any, select: Callable[..., Any]) -> Any:
    """The remainder of a division that rounds down, from that of one that rounds to zero."""
    is_off = rest < 0 if isinstance(divisor, int) and divisor > 0 else (rest != 0) & ((rest < 0) != (divisor < 0))
    return type(rest)(select(is_off, rest + divisor, rest))
