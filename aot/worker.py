# SPDX-License-Identifier: Apache-2.0
"""worker.py: compiles variants in processes of their own, several at once.

Who calls it: builder.py. A worker loads the DSL once and then serves one request after another, as length-prefixed
pickles on its standard input and output. Plain subprocesses, not multiprocessing: that would run a caller's
`__main__` again, and a call of an operator may come from any script.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import IO, Any

from opdeck.aot.compile import CompileRequest
from opdeck.core.errors import ArgumentError, ArgumentTypeError, PackError
from opdeck.core.fusion import Fusion

_LENGTH = struct.Struct("<Q")
_NUM_TAIL_CHARS = 4000


def compile_all(requests: Sequence[CompileRequest], num_jobs: int) -> Iterator[CompileRequest]:
    """Compiles all requests on num_jobs workers and yields each when it is done.

    Raises: PackError for the first that fails, or the ArgumentError of a function in it; those under way are finished,
    the rest is left.
    """
    num_workers = max(1, min(num_jobs, len(requests)))
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        for _ in range(num_workers):
            idle.put(stack.enter_context(_Worker()))
        pool = stack.enter_context(ThreadPoolExecutor(num_workers))
        futures: dict[Future[None], CompileRequest] = {
            pool.submit(_compile_on_idle, idle, request): request for request in requests
        }
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _compile_on_idle(idle: queue.SimpleQueue[_Worker], request: CompileRequest) -> None:
    worker = idle.get()
    try:
        worker.compile(request)
    finally:
        idle.put(worker)


class _CompilerTraceback(Exception):
    """Where, in a compiler process, the error came from that it caused."""


class _Worker:
    """One compiling process."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from opdeck.aot.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_worker_environment(),
        )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._log.close()

    def compile(self, request: CompileRequest) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        variant_id = request.variant.id
        message = _pickled(request)
        try:
            _write(self._process.stdin, message)
            error, text = pickle.loads(_read(self._process.stdout))
        except (BrokenPipeError, EOFError):
            raise PackError(f"{variant_id}: the compiler process died ({self._log_tail()})") from None
        if error is not None:
            raise error from _CompilerTraceback(f"{variant_id}:\n{text}")
        if text:
            raise PackError(f"{variant_id}: {text}")

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read()[-_NUM_TAIL_CHARS:].decode(errors="replace").strip()


def _pickled(request: CompileRequest) -> bytes:
    """The message of a request. A worker imports the classes of its fusion by their names."""
    variant = request.variant
    for fusion in _with_nested(variant.fusion):
        if type(fusion).__module__ == "__main__":
            got = f"{type(fusion).__qualname__}, a class of the program that runs"
            raise PackError(f"{variant.id}: got {got}, want one of a module that a compiler process can import")
    try:
        return pickle.dumps(request)
    except Exception as error:
        raise PackError(f"{variant.id}: cannot be sent to a compiler process ({error})") from error


def _with_nested(fusion: Fusion | None) -> Iterator[Fusion]:
    if fusion is not None:
        yield fusion
        for _, inner in fusion.nested():
            yield from _with_nested(inner)


def _worker_environment() -> dict[str, str]:
    """The caller's, with its import path, and without the variables that change what the DSL generates."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL_")}
    environment["CUTE_DSL_DISABLE_FILE_CACHING"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment["PYTHONHASHSEED"] = "0"
    return environment


def serve() -> None:
    """The worker's main: compiles what arrives on standard input until that ends."""
    # What the DSL prints must not get between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            message = _read(sys.stdin.buffer)
        except EOFError:
            return
        _write(replies, pickle.dumps(_failure(message)))


def _failure(message: bytes) -> tuple[ArgumentError | ArgumentTypeError | None, str]:
    """What is wrong with a user's function, if that is why; the traceback, "" when nothing failed."""
    from opdeck.aot.compile import compile_variant

    try:
        compile_variant(pickle.loads(message))
    except PackError as error:
        return None, str(error)
    except BaseException as error:  # the DSL raises SystemExit too
        for cause in _causes(error):
            if isinstance(cause, (ArgumentError, ArgumentTypeError)):
                return cause, "".join(traceback.format_exception(cause))
        return None, "".join(traceback.format_exception(error))[-_NUM_TAIL_CHARS:]
    return None, ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it came from: the DSL raises errors of its own on the way."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _write(pipe: IO[Any], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def _read(pipe: IO[Any]) -> bytes:
    prefix = _read_exactly(pipe, _LENGTH.size)
    return _read_exactly(pipe, _LENGTH.unpack(prefix)[0])


def _read_exactly(pipe: IO[Any], num_bytes: int) -> bytes:
    content: bytes = pipe.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError
    return content
