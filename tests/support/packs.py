# SPDX-License-Identifier: Apache-2.0
"""packs.py: packs of the family "copy", and what libopdeck selects among packs, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from copy_plugin.family import SCHEMA

from opdeck.aot import build
from opdeck.core.devices import LaunchArgs
from opdeck.core.devices.native import NativeDevice, _Frame
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant

SCHEMAS = {"copy": SCHEMA}


@dataclass(frozen=True)
class Pack:
    """A pack that was built, its rows, and the ids reported as they were compiled."""

    path: Path
    variants: tuple[Variant, ...]
    compiled_ids: tuple[str, ...]


def build_pack(variants: tuple[Variant, ...], out_dir: Path, name: str = "copy") -> Pack:
    compiled = []

    def note(num_done: int, num_all: int, variant_id: str) -> None:
        assert 0 <= num_done <= num_all == len(variants)
        if variant_id:
            compiled.append(variant_id)

    path = build(variants, SCHEMAS, out_dir, name, progress=note)
    return Pack(path, variants, tuple(compiled))


def chosen_by_c(device: NativeDevice, schema: FamilySchema, any_variant: Variant, args: LaunchArgs) -> str:
    """The id of the variant that libopdeck selects for these arguments among the packs of a device."""
    ffi, lib = device._ffi, device._lib
    frame = _Frame(ffi, schema, any_variant, args)
    frame.fill(args)
    frame.problem.variant = ffi.NULL
    plan = ffi.new("opdeck_plan **")
    device.check(lib.opdeck_plan_create(device._ctx, frame.problem, plan))
    info = ffi.new("opdeck_kernel_info *", {"struct_size": ffi.sizeof("opdeck_kernel_info")})
    device.check(lib.opdeck_plan_info(plan[0], info))
    variant_id: str = ffi.string(info.variant).decode()
    lib.opdeck_plan_destroy(plan[0])
    return variant_id
