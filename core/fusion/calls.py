# SPDX-License-Identifier: Apache-2.0
"""calls.py: calls of users' code, on the host and while a kernel is traced: what it sees, and how it fails.

Who calls it: functions.py; base.py, for the methods of fusions that are not opdeck's. Numbers mean the same in both:
`//` and `%` round as Python does. A tensor takes one index a dim, none of them negative.
Whatever goes wrong is an ArgumentError that names the function, its file and the line.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from opdeck.core.errors import ArgumentError, ArgumentTypeError, OpdeckError

_WANTED = "arithmetic that runs on numpy arrays and traced numbers alike"
_HINT = "&, |, ~ and floatmath.select for and, or, not and if; functions of floatmath for numpy's and math's"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def place(function: types.FunctionType) -> str:
    """A function's name, with that of its class, its file and line."""
    code = inspect.unwrap(function).__code__
    return f"{function.__qualname__.rpartition('<locals>.')[2]} ({code.co_filename}:{code.co_firstlineno})"


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
        with _python_divisions(_numbers(arg for arg in args if isinstance(arg, tuple))):
            return function(*args)
    except Exception as error:
        raise _failure("fn", function, error) from error


def guarded(called: str, method: types.FunctionType) -> Callable[..., Any]:
    """A method that kernels call of a fusion, by the name `called`. Its arguments are indices, lengths, tiles of these,
    and values of scores.

    It raises: ArgumentError from what the method raises, but for opdeck's errors; ArgumentTypeError when it returns
    something of another kind than CHECKS says.
    """
    check = CHECKS.get(called)

    @functools.wraps(method)
    def guard(self: Any, *args: Any, **kwargs: Any) -> Any:
        argument = f"{self.name}.{called}"
        try:
            with _python_divisions(_numbers((*args, *kwargs.values()))):
                result = method(self.with_indexed_tensors(), *args, **kwargs)
        except OpdeckError:
            raise
        except Exception as error:
            raise _failure(argument, method, error) from error
        return result if check is None else check(argument, method, result)

    return guard


def _failure(argument: str, function: types.FunctionType, error: Exception) -> ArgumentError:
    cause = next(iter(_COLOURS.sub("", str(error)).strip().splitlines()), "")  # the DSL quotes sources behind it
    got = f"{place(function)}, which fails in line {_line(function, error)}: {type(error).__name__}: {cause}"
    return ArgumentError(argument, got, _WANTED, _HINT)


def _line(function: types.FunctionType, error: Exception) -> int:
    """The last line of the function's file that the error went through."""
    code = inspect.unwrap(function).__code__
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return (lines[-1] if lines else None) or code.co_firstlineno


def checked_logit(argument: str, function: types.FunctionType, result: Any) -> Any:
    """A score function's result. Raises: ArgumentTypeError unless it is a number or numbers."""
    if isinstance(result, np.ndarray) and result.dtype.kind in "iuf":
        return result.astype(np.float64, copy=False)
    if isinstance(result, (int, float, np.integer, np.floating)) and not isinstance(result, bool):
        return float(result)
    number = _traced(result)
    if number is not None and not _is_truth(number):
        return sys.modules["cutlass"].Float32(number)
    raise ArgumentTypeError(argument, _returned(function, result), "a number, the new logit")


def checked_truth(argument: str, function: types.FunctionType, result: Any) -> Any:
    """A mask's result. Raises: ArgumentTypeError unless it is a truth value or truth values."""
    number = _traced(result)
    if _is_truth(result if number is None else number):
        return result if number is None else number
    want = "a truth value, comparisons joined by &, | and ~"
    raise ArgumentTypeError(argument, _returned(function, result), want)


def checked_interval(argument: str, function: types.FunctionType, result: Any) -> Any:
    """The keys that a mask shows. Raises: ArgumentTypeError unless they are two integers or arrays of integers."""
    if isinstance(result, tuple) and len(result) == 2 and all(map(_is_integer, result)):
        return result
    raise ArgumentTypeError(argument, _returned(function, result), "(k_begin, k_end), two integers")


CHECKS: Mapping[str, Callable[[str, types.FunctionType, Any], Any]] = {
    "score": checked_logit,
    "score_with": checked_logit,
    "visible": checked_truth,
    "visible_interval": checked_interval,
}
"""By the name of a fusion's method, what makes of its result one of the kind that kernels take."""


def _returned(function: types.FunctionType, result: Any) -> str:
    kind = f"an array of {result.dtype}" if isinstance(result, np.ndarray) else f"an object of {type(result)}"
    return f"{place(function)}, which returns {'None' if result is None else kind}"


def _is_truth(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == np.bool_)
    kinds = (bool, np.bool_) if "cutlass" not in sys.modules else (bool, np.bool_, sys.modules["cutlass"].Boolean)
    return isinstance(value, kinds)


def _is_integer(value: Any) -> bool:
    """Whether it is an integer or an array of them, traced or not; no truth value is."""
    number = _traced(value)
    if number is not None:
        return bool(type(number).is_integer) and not _is_truth(number)
    return isinstance(value, (int, np.integer, np.ndarray)) and np.asarray(value).dtype.kind in "iu"


def _traced(value: Any) -> Any:
    """The DSL's number of a traced value; None of another, and where the DSL is not imported: then none can be."""
    if "cutlass" not in sys.modules:
        return None
    import cutlass
    from cutlass._mlir import ir

    return cutlass.as_numeric(value) if isinstance(value, (cutlass.Numeric, ir.Value)) else None


@dataclass(frozen=True)
class IndexedTensor:
    """A tensor as users' code sees it: its shape and, by one index a dim, its elements.

    With fewer indices numpy would give a row, and the DSL an element of some row. tensor: itself.
    """

    tensor: Any
    name: str

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.tensor.shape)

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != len(self.shape):
            got = f"{self.name} has {len(self.shape)} dims, and got {len(indices)} indices"
            raise IndexError(f"{got}: index with all dims at once")
        for dim, each in enumerate(indices):
            self._check(each, dim)
        return self.tensor[indices if len(indices) > 1 else indices[0]]

    def _check(self, index: Any, dim: int) -> None:
        if not _is_integer(index):
            raise TypeError(f"{self.name} got {index!r} as index of dim {dim}, and takes integers")
        if _traced(index) is None and np.size(index) and np.min(index) < 0:
            raise IndexError(f"{self.name} got {np.min(index)} as index of dim {dim}, and none is less than 0")


def _numbers(args: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments, and in the place of tuples, such as coordinates, what these hold."""
    return tuple(number for arg in args for number in (arg if isinstance(arg, tuple) else (arg,)))


_naturals: ContextVar[tuple[Any, ...] | None] = ContextVar("naturals", default=None)
"""Within _python_divisions, what it was given."""


@contextlib.contextmanager
def _python_divisions(naturals: tuple[Any, ...]) -> Iterator[None]:
    """Gives `//` and `%` of the DSL's numbers Python's meaning while a kernel is traced. naturals: integers among them
    are not negative. A call within another adds none, since it may be given what the other made of them."""
    if _naturals.get() is not None or not _is_tracing():
        yield
        return
    token = _naturals.set(naturals)
    try:
        with _swapped:
            yield
    finally:
        _naturals.reset(token)


def _is_tracing() -> bool:
    """Whether this thread builds a kernel."""
    if "cutlass" not in sys.modules:
        return False
    from cutlass._mlir import ir

    return ir.Context.current is not None


class _SwappedOperators:
    """While a thread is in it, the DSL's numbers have operators that ask whose call it is: threads share the class, and
    to those that are not in _python_divisions operators mean what they did."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_threads = 0
        self._kept: dict[str, Any] = {}

    def __enter__(self) -> None:
        numbers = sys.modules["cutlass"].Numeric
        with self._lock:
            self._num_threads += 1
            if self._num_threads == 1:
                self._kept = {name: getattr(numbers, name) for name in _OPERATORS}
                for name, kept in self._kept.items():
                    setattr(numbers, name, _asking(kept, _OPERATORS[name]))

    def __exit__(self, *_: object) -> None:
        numbers = sys.modules["cutlass"].Numeric
        with self._lock:
            self._num_threads -= 1
            if self._num_threads == 0:
                for name, kept in self._kept.items():
                    setattr(numbers, name, kept)


_swapped = _SwappedOperators()


def _asking(kept: Callable[..., Any], pythons: Callable[..., Any]) -> Callable[..., Any]:
    """The operator that is `pythons` of `kept` within _python_divisions, else `kept`."""

    def operator(a: Any, b: Any, **kwargs: Any) -> Any:
        return kept(a, b, **kwargs) if _naturals.get() is None else pythons(kept, a, b)

    return operator


def _quotient(kept: Callable[..., Any], a: Any, b: Any) -> Any:
    """The DSL's rounds down, but for numbers that come of layouts."""
    return kept(_without_layout(a), _without_layout(b))


def _remainder(kept: Callable[..., Any], a: Any, b: Any) -> Any:
    is_integer = isinstance(a, sys.modules["cutlass"].Integer)
    if is_integer and isinstance(b, int) and b > 0 and b & (b - 1) == 0:
        return a & (b - 1)
    rest = kept(_without_layout(a), _without_layout(b))
    is_natural = is_integer and any(a is number for number in _naturals.get() or ())
    if rest is NotImplemented or (is_natural and isinstance(b, int) and b > 0):
        return rest
    return _with_sign_of(rest, b)


def _reflected_remainder(kept: Callable[..., Any], a: Any, b: Any) -> Any:
    rest = kept(_without_layout(a), _without_layout(b))
    return rest if rest is NotImplemented else _with_sign_of(rest, a)


_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "__floordiv__": _quotient,
    "__rfloordiv__": _quotient,
    "__mod__": _remainder,
    "__rmod__": _reflected_remainder,
}


def _without_layout(number: Any) -> Any:
    """The same number. Coordinates and extents of layouts divide as layouts do, which knows no negative ones."""
    from cutlass._mlir_helpers.arith import ArithValue
    from cutlass.cute.core import IntValue

    value = getattr(number, "value", None)
    return type(number)(ArithValue(value, True)) if isinstance(value, IntValue) else number


def _with_sign_of(rest: Any, divisor: Any) -> Any:
    """The remainder of a division that rounds down, from that of one that rounds to zero."""
    is_off = rest < 0 if isinstance(divisor, int) and divisor > 0 else (rest != 0) & ((rest < 0) != (divisor < 0))
    return type(rest)(sys.modules["cutlass"].select_(is_off, rest + divisor, rest))
