# SPDX-License-Identifier: Apache-2.0
"""cache.py: the user's cache of compiled kernels and of packs, keyed by all that goes into them.

Who calls it: builder.py. A folder is filled under another name and renamed into place, so that processes that build the
same thing at once do not disturb each other, and an interrupted build leaves nothing that looks finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from opdeck.aot import toolchain
from opdeck.aot.compile import CompileRequest
from opdeck.core.errors import PackError
from opdeck.core.fusion.identity import identity, source_hashes

# What every kernel depends on besides its own sources: third parties' kernels import these too.
_COMMON_PACKAGES = ("opdeck.core.kernels", "opdeck.core.fusion")
_COMMON_MODULE = "opdeck.aot.compile"


def cache_dir() -> Path:
    """OPDECK_CACHE_DIR, else the platform's folder for caches."""
    return Path(os.environ.get("OPDECK_CACHE_DIR") or platformdirs.user_cache_path("opdeck"))


def kernel_key(request: CompileRequest) -> str:
    """64 hex digits of all that a compiled kernel depends on. Its acceptance is not among that: it is in the pack."""
    variant, schema = request.variant, request.schema
    content = {
        "args": [dataclasses.astuple(arg) for arg in schema.args],
        "id": variant.id,
        "dtype": variant.dtype,
        **{f"dtype.{symbol}": dtype for symbol, dtype in variant.symbol_dtypes.items()},
        "config": dict(variant.config),
        "factory": variant.factory,
        "static_dims": dict(variant.static_dims),
        "fusion": None if variant.fusion is None else identity(variant.fusion),
        "sources": [*source_hashes(variant.factory.partition(":")[0]), *_common_sources()],
        "options": toolchain.compile_options(variant.arch, "."),
        "dsl": toolchain.dsl_version(),
    }
    return digest([json.dumps(content, sort_keys=True).encode()])


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of the parts, each with its length."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()


@functools.cache
def _common_sources() -> tuple[str, ...]:
    hashes = list(source_hashes(_COMMON_MODULE))
    for package in _COMMON_PACKAGES:
        spec = find_spec(package)
        folders = (spec.submodule_search_locations or []) if spec is not None else []
        for path in sorted(path for folder in folders for path in Path(folder).rglob("*.py")):
            hashes.append(f"{package}/{path.name}={hashlib.sha256(path.read_bytes()).hexdigest()}")
    return tuple(hashes)


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turns what the file system refuses into a PackError. Also a decorator."""
    try:
        yield
    except OSError as error:
        raise PackError(f"writing a pack: {error} (compiled kernels are kept in OPDECK_CACHE_DIR)") from error


@contextlib.contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when the block ends without an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".filling-", dir=folder.parent) as parent:
        work_dir = Path(parent) / "new"
        work_dir.mkdir()
        yield work_dir
        publish(work_dir, folder)


def publish(work_dir: Path, folder: Path) -> None:
    """Renames work_dir to `folder`, unless another process was first with the same content."""
    try:
        work_dir.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
