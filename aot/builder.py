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
from opdeck.aot.compile import CUBIN, OBJECT, PTX, SPILL, CompileRequest, KernelFacts
from opdeck.aot.link import link_inputs, link_pack
from opdeck.aot.pack_source import PackIdentity, PackVariant, pack_source
from opdeck.aot.worker import compile_all
from opdeck.core.errors import ArgumentError, PackError, SpillError
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant

SUFFIX = ".opdeck.so"

Progress = Callable[[int, int, str], None]
"""Called with (variants done, variants in all, id of the last one done)."""

StandIns = Callable[[Variant], Sequence[Variant]]
"""The variants that serve all that one serves, in priority order; none for one that a pack may not lack."""


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

    @property
    def spill_path(self) -> Path:
        """Where it is kept that the kernel spills."""
        return _spills_dir() / f"{self.request.variant.id}-{self.key}.txt"

    @property
    def spill(self) -> str | None:
        """What is said of the kernel if it spills."""
        return self.spill_path.read_text() if self.spill_path.exists() else None


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
    written; SpillError for a variant whose kernel spills.
    """
    if not variants:
        raise PackError("variants of a pack: got none, want one or more")
    if Path(name).name != name:
        raise ArgumentError("name", repr(name), "a file name without a folder", "the folder is out_dir")
    compiled = _compile_missing(variants, schemas, jobs, progress)
    for row in compiled:
        if row.spill is not None:
            raise SpillError(f"{row.request.variant.id}: {row.spill}")
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
def without_spills(
    variants: Sequence[Variant],
    schemas: Mapping[str, FamilySchema],
    stand_ins: StandIns,
    jobs: int | None = None,
    progress: Progress = _no_progress,
) -> tuple[tuple[Variant, ...], dict[Variant, Variant]]:
    """Compiles all variants into the user's cache: those that a pack of them can have, and for each that
    spills the one in its place.

    One that spills is left out. Of those that `stand_ins` says of it, one that is there already is in its place, else
    the first comes there. That may spill itself: it is then left out too.
    Raises: PackError as `build` does, SpillError for a variant that spills and for which nothing stands in.
    """
    rows, left_out = list(variants), dict[Variant, Variant]()
    while True:
        compiled = _compile_missing(rows, schemas, jobs, progress)
        spills = {row.request.variant: row.spill for row in compiled if row.spill is not None}
        for variant, spill in spills.items():
            others = [row for row in stand_ins(variant) if row not in spills and row not in left_out]
            if not others:
                raise SpillError(f"{variant.id}: {spill}")
            stand_in = next((row for row in others if row in rows), others[0])
            place = rows.index(variant)
            rows[place : place + 1] = [] if stand_in in rows else [stand_in]
            left_out[variant] = stand_in
        if not spills:
            return tuple(rows), left_out


def known_spill(variant: Variant, schema: FamilySchema) -> str | None:
    """What is said of the variant's kernel if it was compiled here and spilled; nothing is compiled."""
    # Its key, which takes seconds to make if sources must be looked for, is asked for seldom.
    if not any(_spills_dir().glob(f"{variant.id}-*")) or not toolchain.is_complete():
        return None
    return _place(variant, schema).spill


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
    variants: Sequence[Variant], schemas: Mapping[str, FamilySchema], jobs: int | None, progress: Progress
) -> list[_Compiled]:
    """Compiles what the cache lacks; all variants with their places in it, in the order given.

    That a kernel spills is kept too, so that it is not compiled again.
    """
    toolchain.c_compiler()  # its absence is known before the compiling, not after
    compiled = [_place(variant, schemas[variant.family]) for variant in variants]
    missing = {row.folder: row for row in compiled if not row.folder.is_dir() and row.spill is None}
    num_done = len(compiled) - len(missing)
    progress(num_done, len(compiled), "")
    for kept in (_objects_dir(), _spills_dir()):
        kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=_objects_dir()) as folder:
        by_id = {row.request.variant.id: row for row in missing.values()}
        requests = []
        for row in missing.values():
            out_dir = Path(folder) / row.key
            out_dir.mkdir()
            requests.append(CompileRequest(row.request.schema, row.request.variant, out_dir))
        for request in compile_all(requests, jobs or os.cpu_count() or 1) if requests else ():
            _keep(request.out_dir, by_id[request.variant.id])
            num_done += 1
            progress(num_done, len(compiled), request.variant.id)
    return compiled


def _keep(out_dir: Path, row: _Compiled) -> None:
    """Puts into the cache what a worker left of a variant."""
    spill = out_dir / SPILL
    if spill.exists():
        spill.replace(row.spill_path)
    else:
        cache.publish(out_dir, row.folder)


def _objects_dir() -> Path:
    return cache.cache_dir() / "objects"


def _spills_dir() -> Path:
    return cache.cache_dir() / "spills"


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
