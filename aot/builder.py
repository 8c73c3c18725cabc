# SPDX-License-Identifier: Apache-2.0
"""builder.py: variants -> a pack in a folder (`build`), or one variant -> a pack in the user's cache (`ensure`).

Who calls it: the CLI, operators at a first call, third parties' build scripts.
Compiled kernels are kept in the user's cache, so that a second build of the same pack compiles and links nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opdeck.aot import cache, manifest, toolchain
from opdeck.aot.compile import CUBIN, OBJECT, PTX, CompileRequest, KernelFacts
from opdeck.aot.link import link_inputs, link_pack
from opdeck.aot.pack_source import PackIdentity, PackVariant, pack_source
from opdeck.aot.worker import compile_all
from opdeck.core.errors import ArgumentError, PackError
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant

SUFFIX = ".opdeck.so"

Progress = Callable[[int, int, str], None]
"""Called with (variants done, variants in all, id of the last one done)."""


def _no_progress(num_done: int, num_all: int, variant_id: str) -> None:
    pass


@dataclass(frozen=True)
class _Compiled:
    """A variant with its place in the cache."""

    request: CompileRequest
    key: str

    @property
    def folder(self) -> Path:
        return self.request.out_dir


@cache.disk_errors()
def build(
    variants: Sequence[Variant],
    schemas: Mapping[str, FamilySchema],
    out_dir: Path,
    name: str,
    jobs: int | None = None,
    progress: Progress = _no_progress,
) -> Path:
    """Makes the pack NAME of the variants, in their order, which is their priority.

    Writes out_dir/NAME.opdeck.so, the manifest NAME.json, and NAME.kernels/ with each cubin and PTX for people.
    schemas: of the variants' families, by name. jobs: compiling processes, by default one a core.
    Raises: PackError naming the variant that does not compile, the tool that is missing, or the path that cannot be
    written.
    """
    if not variants:
        raise PackError("variants of a pack: got none, want one or more")
    if Path(name).name != name:
        raise ArgumentError("name", repr(name), "a file name without a folder", "the folder is out_dir")
    compiled = _compile_missing(variants, schemas, jobs or os.cpu_count() or 1, progress)
    used = {variant.family: schemas[variant.family] for variant in variants}
    identity = PackIdentity(name, toolchain.dsl_version(), toolchain.host_triple())
    source = pack_source(identity, used, [_pack_variant(row) for row in compiled])
    key = cache.digest([source.encode(), *link_inputs(), *(row.key.encode() for row in compiled)])
    out_dir.mkdir(parents=True, exist_ok=True)
    pack_path = out_dir / f"{name}{SUFFIX}"
    if manifest.is_current(pack_path, key):
        return pack_path
    with tempfile.TemporaryDirectory(prefix=".linking-", dir=out_dir) as folder:
        work_dir = Path(folder)
        for row in compiled:
            shutil.copyfile(row.folder / OBJECT, work_dir / f"{row.request.variant.id}.o")
            shutil.copyfile(row.folder / PTX, work_dir / f"{row.request.variant.id}.ptx")
        linked = link_pack(source, [f"{row.request.variant.id}.o" for row in compiled], work_dir)
        pack_sha256 = hashlib.sha256(linked.read_bytes()).hexdigest()
        _write_dumps(compiled, out_dir / f"{name}.kernels")
        linked.replace(pack_path)
    facts = [(row.request.variant, KernelFacts.read(row.folder)) for row in compiled]
    manifest.write(pack_path, manifest.Head(identity, key, pack_sha256), facts)
    return pack_path


@cache.disk_errors()
def ensure(variant: Variant, schema: FamilySchema | None = None) -> Path:
    """The pack of one variant in the user's cache, compiled when it is not there.

    schema: of the variant's family; by default the registered one.
    Raises: PackError as `build` does.
    """
    if schema is None:
        from opdeck.core.registry import registry

        schema = registry.schema(variant.family)
    request = CompileRequest(schema, variant, Path())
    rules = repr((variant.accept, schema.checks, schema.empty)).encode()
    key = cache.digest([cache.kernel_key(request).encode(), rules, *link_inputs()])
    folder = cache.cache_dir() / "packs" / f"{variant.id}-{key[:16]}"
    if not folder.is_dir():
        with cache.filling(folder) as work_dir:
            build([variant], {schema.name: schema}, work_dir, variant.id, jobs=1)
    return folder / f"{variant.id}{SUFFIX}"


def _compile_missing(
    variants: Sequence[Variant], schemas: Mapping[str, FamilySchema], jobs: int, progress: Progress
) -> list[_Compiled]:
    """Compiles what the cache lacks; all variants with their places in it, in the order given."""
    toolchain.c_compiler()  # its absence is known before the compiling, not after
    compiled = [_place(variant, schemas[variant.family]) for variant in variants]
    missing = {row.folder: row for row in compiled if not row.folder.is_dir()}
    num_done = len(compiled) - len(missing)
    progress(num_done, len(compiled), "")
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=_objects_dir()) as folder:
        by_id = {row.request.variant.id: row for row in missing.values()}
        requests = []
        for row in missing.values():
            out_dir = Path(folder) / row.key
            out_dir.mkdir()
            requests.append(CompileRequest(row.request.schema, row.request.variant, out_dir))
        for request in compile_all(requests, jobs) if requests else ():
            cache.publish(request.out_dir, by_id[request.variant.id].folder)
            num_done += 1
            progress(num_done, len(compiled), request.variant.id)
    return compiled


def _objects_dir() -> Path:
    folder = cache.cache_dir() / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _place(variant: Variant, schema: FamilySchema) -> _Compiled:
    key = cache.kernel_key(CompileRequest(schema, variant, Path()))
    return _Compiled(CompileRequest(schema, variant, _objects_dir() / key), key)


def _pack_variant(row: _Compiled) -> PackVariant:
    variant = row.request.variant
    ptx_bytes = (row.folder / PTX).stat().st_size
    return PackVariant(variant, KernelFacts.read(row.folder), f"{variant.id}.ptx", ptx_bytes)


def _write_dumps(compiled: Sequence[_Compiled], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for row in compiled:
        for file_name in (CUBIN, PTX):
            shutil.copyfile(row.folder / file_name, folder / f"{row.request.variant.id}{Path(file_name).suffix}")
