# SPDX-License-Identifier: Apache-2.0
"""native.py: GPUs and emulated GPUs, through libopdeck.

Who calls it: find.py. The C library selects, checks, packs arguments and launches; this file only fills its structs.
Kernels come from the packs that the library finds by itself, else from the user's cache, else they are compiled now.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opdeck.core import dtypes
from opdeck.core.arch import arch
from opdeck.core.arrays import TensorView
from opdeck.core.devices.base import KernelResources, LaunchArgs, LaunchReport
from opdeck.core.devices.workspaces import Workspaces
from opdeck.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DriverError,
    HazardError,
    OpdeckError,
    PackError,
    Unsupported,
)
from opdeck.core.fusion import LeafKind
from opdeck.core.problem import Target
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant

_DEVICE_TYPES = {"cpu": 1, "cuda": 2}
_ARG_KINDS = {"tensor": 1, "i32": 2, "f32": 3}
_HAZARDS = {None: 0, "on": 1, "off": 2, "strict": 3}


PACK_GROUP = "opdeck.packs"
PACK_PATTERN = "*.opdeck.so"


class PackWarning(UserWarning):
    """A pack was skipped. Its message says which and why."""


class NativeDevice:
    """A device of libopdeck, with the packs that are loaded for it. Used from any thread."""

    def __init__(self, name: str, memory: str, schedule: str | None = None, hazards: str | None = None) -> None:
        if hazards not in _HAZARDS:
            raise ArgumentError("hazards", repr(hazards), "on|off|strict")
        from opdeck import abi

        self.name = name
        self.memory = memory
        self._ffi, self._lib = abi.lib()
        self._lock = threading.Lock()
        self.workspaces = Workspaces()
        self._ctx = self._new_ctx(schedule, _HAZARDS[hazards])
        self.target = self._ask_target()
        self._load_installed_packs()

    def load_pack(self, path: Path) -> None:
        """Adds a pack's kernels behind those already loaded.

        Raises: PackError when it does not fit this library or this machine.
        """
        self.check(self._lib.opdeck_ctx_load_pack(self._ctx, os.fsencode(path)))

    def can_launch(self, variant: Variant) -> bool:
        if variant.id in self._kernels():
            return True
        from opdeck.aot import toolchain

        return toolchain.is_complete()

    def launcher(self, schema: FamilySchema, variant: Variant) -> NativeLauncher:
        with self._lock:
            if variant.id not in self._kernels():
                from opdeck.aot import ensure

                self.load_pack(ensure(variant, schema))
        return NativeLauncher(self, schema, variant)

    def last_report(self) -> LaunchReport | None:
        """Counts of the last launch on this device; None for a GPU, which counts nothing."""
        if not self.name.startswith("emulator:"):
            return None
        report = self._ffi.new("opdeck_launch_report *")
        report.struct_size = self._ffi.sizeof("opdeck_launch_report")
        self.check(self._lib.opdeck_ctx_last_report(self._ctx, report))
        sha256 = self._ffi.string(report.cubin_sha256).decode()
        names = ("num_launches", "num_ctas", "warp_instructions", "mma_macs", "tma_load_bytes", "tma_store_bytes")
        return LaunchReport(sha256, *(int(getattr(report, name)) for name in names))

    def cubin_sha256(self, variant: Variant) -> str | None:
        """Hex digits of the hash of the variant's cubin; None when no loaded pack has it."""
        kernel = self._kernels().get(variant.id)
        return None if kernel is None else kernel[0]

    def resources(self, variant: Variant) -> KernelResources | None:
        """What the variant's kernel takes; None when no loaded pack has it."""
        kernel = self._kernels().get(variant.id)
        return None if kernel is None else kernel[1]

    def check(self, status: int) -> None:
        """Raises the exception that a status of libopdeck stands for, with the library's message."""
        if status == self._lib.OPDECK_OK:
            return
        raise _error(status, self._last_error())

    def _load_installed_packs(self) -> None:
        """Packs that the library finds, then those of entry points; one that does not fit is reported and skipped."""
        self.check(self._lib.opdeck_ctx_load_default_packs(self._ctx))
        skipped = self._last_error()
        if skipped:
            warnings.warn(f"packs were skipped: {skipped}", PackWarning, stacklevel=4)
        for path in _packs_of_entry_points():
            try:
                self.load_pack(path)
            except PackError as error:
                warnings.warn(f"pack {path} was skipped: {error}", PackWarning, stacklevel=4)

    def _last_error(self) -> str:
        return str(self._ffi.string(self._lib.opdeck_last_error()).decode(errors="replace"))

    def _new_ctx(self, schedule: str | None, hazards: int) -> Any:
        ffi = self._ffi
        device_text = ffi.new("char[]", self.name.encode())
        schedule_text = ffi.NULL if schedule is None else ffi.new("char[]", schedule.encode())
        desc = ffi.new("opdeck_ctx_desc *")
        desc.struct_size = ffi.sizeof("opdeck_ctx_desc")
        desc.device, desc.schedule, desc.hazards = device_text, schedule_text, hazards
        ctx = ffi.new("opdeck_ctx **")
        self.check(self._lib.opdeck_ctx_create(desc, ctx))
        return self._owned(ctx[0], self._lib.opdeck_ctx_destroy)

    def _owned(self, pointer: Any, destroy: Any) -> Any:
        """The pointer, destroyed with its last reference. cffi's function does not keep its library loaded at exit."""
        lib = self._lib

        def destroy_while_loaded(pointer: Any, _lib: Any = lib) -> None:
            destroy(pointer)

        return self._ffi.gc(pointer, destroy_while_loaded)

    def _ask_target(self) -> Target:
        info = self._ffi.new("opdeck_device_info *")
        info.struct_size = self._ffi.sizeof("opdeck_device_info")
        self.check(self._lib.opdeck_ctx_device_info(self._ctx, info))
        return Target(arch(self._ffi.string(info.arch).decode(), "device").name, info.num_sms)

    def _kernels(self) -> dict[str, tuple[str, KernelResources]]:
        """The cubin's hash of each loaded kernel, and what it takes, by variant; of two packs with one variant the
        first counts."""
        ffi, lib = self._ffi, self._lib
        num_kernels = ffi.new("uint32_t *")
        self.check(lib.opdeck_ctx_num_kernels(self._ctx, num_kernels))
        info = ffi.new("opdeck_kernel_info *")
        info.struct_size = ffi.sizeof("opdeck_kernel_info")
        kernels: dict[str, tuple[str, KernelResources]] = {}
        for kernel_idx in range(num_kernels[0]):
            self.check(lib.opdeck_ctx_kernel_info(self._ctx, kernel_idx, info))
            resources = KernelResources(info.smem_bytes, info.num_registers, info.num_threads)
            sha256 = ffi.string(info.cubin_sha256).decode()
            kernels.setdefault(ffi.string(info.variant).decode(), (sha256, resources))
        return kernels


def _packs_of_entry_points() -> list[Path]:
    """The packs in the packages that entry points of the group "opdeck.packs" name. The packages are not imported."""
    packs: list[Path] = []
    for entry_point in sorted(importlib.metadata.entry_points(group=PACK_GROUP), key=lambda row: row.name):
        spec = importlib.util.find_spec(entry_point.value)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            packs.extend(sorted(Path(folder).glob(PACK_PATTERN)))
    return packs


def _error(status: int, text: str) -> OpdeckError:
    if status == 1:  # OPDECK_INVALID_ARGUMENT
        return ArgumentError.from_text(text.removeprefix("desc."))
    if status == 2:  # OPDECK_UNSUPPORTED
        return Unsupported.from_text(text)
    kinds: dict[int, type[OpdeckError]] = {3: DriverError, 4: DriverError, 5: DriverError, 6: PackError, 7: PackError}
    kinds[8] = HazardError
    return kinds.get(status, OpdeckError)(text)


class NativeLauncher:
    """A variant on a device. Its C plan is made from the first call's tensors; later calls only change addresses."""

    def __init__(self, device: NativeDevice, schema: FamilySchema, variant: Variant) -> None:
        self._device = device
        self._schema = schema
        self._variant = variant
        self._plan: Any = None
        self._workspace_bytes = 0
        self._lock = threading.Lock()
        # A launch reads a filled-in problem while other threads may launch too: each takes one of its own.
        self._frames: deque[_Frame] = deque()

    def prepare(self, args: LaunchArgs) -> None:
        frame = self._frame(args)
        try:
            self._ready_plan(frame)
            self._workspace(args, stream_address(args.stream, args.tensors))
        finally:
            self._frames.append(frame)

    def __call__(self, args: LaunchArgs) -> None:
        device = self._device
        frame = self._frame(args)
        try:
            plan = self._ready_plan(frame)
            frame.fill(args)
            stream, cast = stream_address(args.stream, args.tensors), device._ffi.cast
            workspace = cast("void *", self._workspace(args, stream))
            launch = device._lib.opdeck_plan_launch
            device.check(launch(plan, frame.problem, workspace, self._workspace_bytes, cast("void *", stream)))
        except ArgumentError as error:
            tensor = args.tensors.get(error.argument)
            if tensor is None or tensor.argument == error.argument:
                raise
            raise ArgumentError(tensor.argument, error.got, error.want) from None  # by the user's name for it
        finally:
            self._frames.append(frame)

    def _workspace(self, args: LaunchArgs, stream: int) -> int:
        """Address of that of a launch; 0 where it needs none."""
        if self._workspace_bytes == 0:
            return 0
        first = next(iter(args.tensors.values()))
        return self._device.workspaces.address(self._workspace_bytes, stream, first)

    def _frame(self, args: LaunchArgs) -> _Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return _Frame(self._device._ffi, self._schema, self._variant, args)

    def _ready_plan(self, frame: _Frame) -> Any:
        device, lib, ffi = self._device, self._device._lib, self._device._ffi
        if self._plan is None:
            with self._lock:
                if self._plan is None:
                    plan = ffi.new("opdeck_plan **")
                    device.check(lib.opdeck_plan_create(device._ctx, frame.problem, plan))
                    owned = device._owned(plan[0], lib.opdeck_plan_destroy)
                    device.check(lib.opdeck_plan_prepare(owned))
                    num_bytes = ffi.new("size_t *")
                    device.check(lib.opdeck_plan_workspace_bytes(owned, num_bytes))
                    self._workspace_bytes = num_bytes[0]
                    self._plan = owned
        return self._plan


class _Frame:
    """An opdeck_problem with all that it points to, filled but for addresses and scalars."""

    def __init__(self, ffi: Any, schema: FamilySchema, variant: Variant, args: LaunchArgs) -> None:
        self._ffi = ffi
        self._kept: list[Any] = []  # what the struct points to and cffi would free
        self._tensors: list[tuple[str, Any]] = []
        self._scalars: list[tuple[str, Any, str]] = []
        self._leaves: list[tuple[int, Any, str]] = []
        rows = [arg for arg in schema.args if arg.name in args.tensors or arg.name in args.scalars]
        c_args = self._keep(ffi.new("opdeck_arg[]", len(rows)))
        for c_arg, arg in zip(c_args, rows, strict=True):
            self._name(c_arg, arg.name, _ARG_KINDS[arg.kind])
            if arg.kind == "tensor":
                self._tensors.append((arg.name, self._tensor(c_arg, args.tensors[arg.name])))
            else:
                self._scalars.append((arg.name, c_arg.value, arg.kind))
        self.problem = ffi.new("opdeck_problem *")
        self.problem.struct_size = ffi.sizeof("opdeck_problem")
        self.problem.num_args, self.problem.args = len(rows), c_args
        self.problem.family = self._text(schema.name)
        self.problem.variant = self._text(variant.id)
        self.problem.fusion = ffi.NULL if args.fusion is None else self._fusion(args)

    def fill(self, args: LaunchArgs) -> None:
        """Puts in the addresses and numbers of a call."""
        cast = self._ffi.cast
        for name, tensor in self._tensors:
            tensor.data = cast("void *", args.tensors[name].data)
        for name, value, kind in self._scalars:
            setattr(value, kind, args.scalars[name])
        for leaf_idx, target, kind in self._leaves:
            leaf = args.leaves[leaf_idx]
            if isinstance(leaf, TensorView):
                target.data = cast("void *", leaf.data)
            else:
                setattr(target, kind, leaf)

    def _fusion(self, args: LaunchArgs) -> Any:
        ffi = self._ffi
        assert args.fusion is not None
        rows = args.fusion.leaves()
        c_leaves = self._keep(ffi.new("opdeck_arg[]", max(1, len(rows))))
        for leaf_idx, (leaf, value) in enumerate(zip(rows, args.leaves, strict=True)):
            c_leaf = c_leaves[leaf_idx]
            self._name(c_leaf, leaf.name, leaf.kind.value)
            if isinstance(value, TensorView):
                self._leaves.append((leaf_idx, self._tensor(c_leaf, value), "tensor"))
            else:
                self._leaves.append((leaf_idx, c_leaf.value, "i32" if leaf.kind is LeafKind.INT32 else "f32"))
        fusion = self._keep(ffi.new("opdeck_fusion *"))
        fusion.struct_size = ffi.sizeof("opdeck_fusion")
        fusion.num_leaves, fusion.leaves = len(rows), c_leaves
        fusion.name = self._text(args.fusion.canonical_name)
        return fusion

    def _tensor(self, c_arg: Any, view: TensorView) -> Any:
        ffi, row = self._ffi, dtypes.dtype(view.dtype)
        tensor = self._keep(ffi.new("opdeck_tensor *"))
        kind, _, index = view.device.partition(":")
        tensor.device_type, tensor.device_id = _DEVICE_TYPES[kind], int(index or 0)
        tensor.ndim = len(view.shape)
        tensor.dtype_code, tensor.dtype_bits, tensor.dtype_lanes = row.dlpack_code, row.bits, 1
        tensor.shape = self._keep(ffi.new("int64_t[]", view.shape))
        tensor.strides = self._keep(ffi.new("int64_t[]", view.strides))
        tensor.data = ffi.cast("void *", view.data)
        c_arg.value.tensor = tensor
        return tensor

    def _name(self, c_arg: Any, name: str, kind: int) -> None:
        c_arg.name, c_arg.kind = self._text(name), kind

    def _text(self, text: str) -> Any:
        return self._keep(self._ffi.new("char[]", text.encode()))

    def _keep(self, pointer: Any) -> Any:
        self._kept.append(pointer)
        return pointer


def stream_address(stream: Any, tensors: Mapping[str, TensorView]) -> int:
    """Address of a CUstream: as given, or the current one of torch for torch tensors, else 0, the default stream.

    Raises: ArgumentTypeError when `stream` is none of an int, an object with `cuda_stream` or `__cuda_stream__`.
    """
    if stream is None:
        return _current_stream(next(iter(tensors.values())))
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    if hasattr(stream, "__cuda_stream__"):
        offered = stream.__cuda_stream__
        _version, address = offered() if callable(offered) else offered
        return int(address)
    want = "an int, or an object with cuda_stream or __cuda_stream__"
    raise ArgumentTypeError("stream", type(stream).__qualname__, want)


def _current_stream(tensor: TensorView) -> int:
    torch = sys.modules.get("torch")
    if torch is None or tensor.device == "cpu" or not isinstance(tensor.owner, torch.Tensor):
        return 0
    return int(torch.cuda.current_stream(tensor.owner.device).cuda_stream)
