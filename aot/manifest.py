# SPDX-License-Identifier: Apache-2.0
"""manifest.py: NAME.json beside NAME.opdeck.so: what is in a pack, for people and build systems.

Who calls it: builder.py. libopdeck does not read it: the pack's own tables say the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import opdeck.abi
from opdeck.aot.compile import KernelFacts
from opdeck.aot.pack_source import PackIdentity
from opdeck.core.errors import PackError
from opdeck.core.variant import Variant


@dataclass(frozen=True)
class Head:
    """What a manifest says of the pack as a whole. key: of all that went into it."""

    identity: PackIdentity
    key: str
    pack_sha256: str


def path_of(pack_path: Path) -> Path:
    """NAME.json of NAME.opdeck.so."""
    return pack_path.with_name(pack_path.name.partition(".opdeck.")[0] + ".json")


def is_current(pack_path: Path, key: str) -> bool:
    """Whether the pack is there, was made of what `key` stands for, and has not been changed since."""
    try:
        head = json.loads(path_of(pack_path).read_text())
        pack_sha256 = hashlib.sha256(pack_path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return False
    return bool(head.get("key") == key and head.get("sha256") == pack_sha256)


def write(pack_path: Path, head: Head, kernels: Sequence[tuple[Variant, KernelFacts]]) -> None:
    """Writes the manifest of a pack, whole or not at all."""
    content = {
        "name": head.identity.name,
        "abi": pack_abi(),
        "dsl_version": head.identity.dsl_version,
        "host_triple": head.identity.host_triple,
        "sha256": head.pack_sha256,
        "key": head.key,
        "kernels": [_kernel(variant, facts) for variant, facts in kernels],
    }
    path = path_of(pack_path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(path)


def _kernel(variant: Variant, facts: KernelFacts) -> dict[str, object]:
    return {
        "id": variant.id,
        "family": variant.family,
        "arch": variant.arch,
        "dtype": variant.dtype,
        "fusion": variant.fusion_name,
        "config": dict(variant.config),
        "cubin_sha256": facts.cubin_sha256,
        "smem_bytes": facts.smem_bytes,
        "num_registers": facts.num_registers,
        "num_threads": facts.num_threads,
        "kernel_names": list(facts.kernel_names),
    }


def pack_abi() -> int:
    """OPDECK_PACK_ABI of the installed pack.h."""
    for path in opdeck.abi.shim_sources():
        found = re.search(r"#define OPDECK_PACK_ABI (\d+)", Path(path).read_text())
        if found:
            return int(found.group(1))
    raise PackError("pack.h: got no OPDECK_PACK_ABI in the sources of opdeck.abi")
