# SPDX-License-Identifier: Apache-2.0
"""identity.py: what makes a compiled fusion the same fusion again: the key under which its kernels are cached.

Who calls it: opdeck.aot (cache keys), Fusion.slug (third parties' variant ids). Not on the launch path.

Identity = distribution name and version, qualified name, static values, and SHA-256 of the sources of the class's
module and of the modules of the same plugin that it imports. Never `id` or `repr`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from opdeck.core.errors import ArgumentTypeError
from opdeck.core.fusion.base import FieldKind, Fusion, field_specs, static_text


def identity(fusion: Fusion) -> str:
    """64 hex digits. Leaf values have no part in it."""
    digest = hashlib.sha256()
    for token in _tokens(fusion):
        digest.update(token.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _tokens(fusion: Fusion) -> Iterator[str]:
    cls = type(fusion)
    yield from distribution(cls.__module__.partition(".")[0])
    yield f"{cls.__module__}:{cls.__qualname__}"
    for base in cls.__mro__:
        if base is not Fusion and issubclass(base, Fusion):
            yield from source_hashes(base.__module__)
    for name, value in fusion.statics():
        yield f"{name}={type(value).__qualname__}:{static_text(value)}"
    for spec in field_specs(cls):
        if spec.kind is FieldKind.FUSION:
            yield f"{spec.name}={identity(getattr(fusion, spec.name))}"


@functools.cache
def distribution(top_level: str) -> tuple[str, ...]:
    """Name and version of the installed distributions that offer a top-level module; none for a loose file."""
    names = importlib.metadata.packages_distributions().get(top_level, [])
    return tuple(f"{name}=={importlib.metadata.version(name)}" for name in sorted(set(names)))


@functools.cache
def source_hashes(module_name: str) -> tuple[str, ...]:
    """name=sha256 of a module and, transitively, of the modules of the same plugin that it imports."""
    hashes: dict[str, str] = {}
    pending = [module_name]
    while pending:
        name = pending.pop()
        if name in hashes:
            continue
        source = _source(name)
        hashes[name] = hashlib.sha256(source.encode()).hexdigest()
        pending.extend(imported for imported in _imports(name, source) if _same_plugin(imported, module_name))
    return tuple(f"{name}={hashes[name]}" for name in sorted(hashes))


def _source(module_name: str) -> str:
    path = _path(module_name)
    if path is not None:
        return path.read_text(encoding="utf-8")
    try:
        return inspect.getsource(sys.modules[module_name])
    except (KeyError, OSError, TypeError):
        want = "a module whose source can be read"
        raise ArgumentTypeError("fusion", f"a class of module {module_name}", want, "its hash keys the cache") from None


def _path(module_name: str) -> Path | None:
    loaded = sys.modules.get(module_name)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(module_name)
        except (ImportError, ValueError):
            return None
        origin = spec.origin if spec is not None else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _imports(module_name: str, source: str) -> Iterator[str]:
    """Names of the modules that a source imports, `from package import module` and relative ones included."""
    path = _path(module_name)
    is_package = path is not None and path.name == "__init__.py"
    package = module_name if is_package else module_name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - (node.level - 1)]
                parent = ".".join([*anchor, *filter(None, [node.module])])
            yield parent
            yield from (f"{parent}.{alias.name}" for alias in node.names)


def _same_plugin(imported: str, module_name: str) -> bool:
    """Whether `imported` is a module of module_name's plugin: of its package, or a file beside a loose module.

    opdeck's own sources are in every cache key already.
    """
    path = _path(imported)
    if path is None or imported.split(".")[0] in sys.stdlib_module_names:
        return False
    if imported.split(".")[0] == module_name.split(".")[0]:
        return True
    home = _path(module_name)
    return "." not in module_name and "." not in imported and home is not None and path.parent == home.parent
