# SPDX-License-Identifier: Apache-2.0
"""compile.py: one variant -> an object file, its PTX and cubin, and what is known about them.

Who calls it: worker.py, in a process of its own, since it loads the DSL and its runtime into the process.
Source: CuTe DSL ahead-of-time export (cute.compile with fake tensors, export_to_c).
Limits: DSL 4.8; a leaf of a fusion is a tensor of any strides, an Int32 or a Float32.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opdeck.aot import toolchain
from opdeck.aot.cubin import KernelResources, kernel_resources
from opdeck.aot.entry import Param, entry_params
from opdeck.core.errors import PackError
from opdeck.core.schema import FamilySchema
from opdeck.core.variant import Variant

OBJECT, HEADER, PTX, CUBIN, FACTS = "kernel.o", "kernel.h", "kernel.ptx", "kernel.cubin", "kernel.json"
SPILL = "spill.txt"
"""In the place of all of these, of a kernel that spills: what is said of it."""

_DSL_TYPES = {
    "fp16": "Float16",
    "bf16": "BFloat16",
    "fp32": "Float32",
    "fp8_e4m3": "Float8E4M3FN",
    "fp8_e5m2": "Float8E5M2",
    "fp6_e3m2": "Float6E3M2FN",
    "fp6_e2m3": "Float6E2M3FN",
    "fp4_e2m1": "Float4E2M1FN",
    "e8m0": "Float8E8M0FNU",
    "ue4m3": "Float8E4M3FN",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "Uint8",
}


@dataclass(frozen=True)
class CompileRequest:
    """What a worker needs to compile one variant into out_dir."""

    schema: FamilySchema
    variant: Variant
    out_dir: Path


@dataclass(frozen=True)
class KernelFacts:
    """What the build learned of one variant's kernels, the largest of each when there are several."""

    cubin_sha256: str
    smem_bytes: int
    num_registers: int
    num_threads: int
    kernel_names: tuple[str, ...]

    @staticmethod
    def read(folder: Path) -> KernelFacts:
        facts = json.loads((folder / FACTS).read_text())
        return KernelFacts(**{**facts, "kernel_names": tuple(facts["kernel_names"])})


def entry_name(variant: Variant) -> str:
    """Name of the exported entry, and of the variant's kernels up to a number that the DSL adds."""
    return f"opdeck_{variant.id}"


def compile_variant(request: CompileRequest) -> None:
    """Writes kernel.o, .h, .ptx, .cubin and .json into request.out_dir; spill.txt alone when a kernel spills.

    Raises: PackError when the DSL does not export what the family's schema says.
    """
    toolchain.load_dsl()
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream

    variant = request.variant
    name = entry_name(variant)
    params = entry_params(request.schema, variant)
    entry = _flat_entry(name, params, variant.make())
    fakes = [_fake_argument(param) for param in params]
    with tempfile.TemporaryDirectory() as dump_dir:
        options = toolchain.compile_options(variant.arch, dump_dir)
        compiled = cute.compile(entry, *fakes, make_fake_stream(), options=options)
    kernels = kernel_resources(compiled.__cubin__)
    check_names(kernels, name)
    spill = spill_text(kernels)
    if spill is not None:
        (request.out_dir / SPILL).write_text(spill)
        return
    compiled.export_to_c(file_path=str(request.out_dir), file_name=Path(OBJECT).stem, function_prefix=name)
    check_header((request.out_dir / HEADER).read_text(), name, params)
    (request.out_dir / CUBIN).write_bytes(compiled.__cubin__)
    (request.out_dir / PTX).write_text(compiled.__ptx__)
    facts = KernelFacts(
        cubin_sha256=hashlib.sha256(compiled.__cubin__).hexdigest(),
        smem_bytes=dynamic_smem_bytes(str(compiled.ir_module)),
        num_registers=max(kernel.num_registers for kernel in kernels),
        num_threads=max(kernel.num_threads for kernel in kernels),
        kernel_names=tuple(kernel.name for kernel in kernels),
    )
    (request.out_dir / FACTS).write_text(json.dumps(asdict(facts), indent=1))


def _flat_entry(name: str, params: Sequence[Param], inner: Callable[..., Any]) -> Any:
    """A @cute.jit function of that name with one annotated argument a parameter, which calls `inner` with all of them.

    The DSL exports no varargs and no dataclasses, and reads a function's source through linecache.
    """
    from cuda.bindings.driver import CUstream
    from cutlass import Float32, Int32, cute

    types = {"tensor": "Tensor", "i32": "Int32", "f32": "Float32"}
    arguments = ", ".join(f"{param.name}: {types[param.kind]}" for param in params)
    names = ", ".join(param.name for param in params)
    source = f"def {name}({arguments}, stream: CUstream):\n    inner({names}, stream)\n"
    file_name = f"<{name}>"
    linecache.cache[file_name] = (len(source), None, source.splitlines(keepends=True), file_name)
    scope = {"Tensor": cute.Tensor, "Int32": Int32, "Float32": Float32, "CUstream": CUstream, "inner": inner}
    scope["__name__"] = __name__
    exec(compile(source, file_name, "exec"), scope)
    entry = cute.jit(scope[name])
    entry.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)
    return entry


def _fake_argument(param: Param) -> Any:
    """The argument that stands for `param` when compiling. Extents and strides are 64-bit: 32-bit strides make header
    and code disagree."""
    import cutlass
    from cutlass.cute.runtime import make_fake_tensor

    if param.kind == "i32":
        return cutlass.Int32(0)
    if param.kind == "f32":
        return cutlass.Float32(0.0)
    element = getattr(cutlass, _DSL_TYPES[param.dtype])
    align_bytes = max(param.align_bytes * (2 if element.width < 8 else 1), element.width // 8, 1)
    stride_divisor_elems = align_bytes * 8 // math.gcd(align_bytes * 8, element.width)
    shape = tuple(cutlass.cute.sym_int(64) if extent is None else extent for extent in param.extents)
    inner_dim = len(shape) - 1 if param.contiguous_dim is None else param.contiguous_dim
    strides = tuple(
        cutlass.cute.sym_int(64, divisibility=1 if dim == inner_dim else stride_divisor_elems)
        if dim in param.stride_dims
        else 1
        for dim in range(len(shape))
    )
    return make_fake_tensor(element, shape, stride=strides, assumed_align=align_bytes)


def expected_signature(name: str, params: Sequence[Param]) -> tuple[dict[str, str], str]:
    """Body of each tensor's struct, by type name, and the argument list, as the exported header should have them."""
    structs = {}
    arguments = [f"{name}_Kernel_Module_t *module"]
    scalar_types = {"i32": "int32_t", "f32": "float"}
    for param in params:
        if param.kind != "tensor":
            arguments.append(f"{scalar_types[param.kind]} {param.name}")
            continue
        struct_name = f"{name}_Tensor_{param.name}_t"
        members = ["void *data;"]
        if param.shape_dims:
            members.append(f"int64_t dynamic_shapes[{len(param.shape_dims)}];")
        if param.stride_dims:
            members.append(f"int64_t dynamic_strides[{len(param.stride_dims)}];")
        structs[struct_name] = " ".join(members)
        arguments.append(f"{struct_name} *{param.name}")
    return structs, ", ".join([*arguments, "cudaStream_t stream"])


def check_header(header: str, name: str, params: Sequence[Param]) -> None:
    """Compares the exported header with what libopdeck will pass. Raises: PackError where they differ."""
    structs, arguments = expected_signature(name, params)
    found = {
        struct_name: " ".join(body.split())
        for body, struct_name in re.findall(r"typedef struct \{([^{}]*)\} (\w+_Tensor_\w+_t);", header)
    }
    if found != structs:
        raise PackError(f"tensor structs of {name}: got {found}, want {structs}")
    signature = re.search(rf"cute_dsl_{name}_wrapper\(([^)]*)\)", header)
    got = signature.group(1) if signature else "no wrapper function"
    if got != arguments:
        raise PackError(f"arguments of {name}: got ({got}), want ({arguments})")


def check_names(kernels: Sequence[KernelResources], name: str) -> None:
    """Raises: PackError for a kernel that is not named after its variant."""
    for kernel in kernels:
        if not re.fullmatch(rf"{name}(_\d+)?", kernel.name):
            raise PackError(f"kernel name: got {kernel.name}, want {name}_N (set_name_prefix in the factory)")


def spill_text(kernels: Sequence[KernelResources]) -> str | None:
    """What is to be said of the first kernel that spills; None when none does."""
    for kernel in kernels:
        if kernel.frame_bytes > 0:
            return (
                f"{kernel.name} spills: got a stack frame of {kernel.frame_bytes} bytes at {kernel.num_registers} "
                f"registers, want 0"
            )
    return None


def dynamic_smem_bytes(host_ir: str) -> int:
    """Dynamic shared memory of the launches in the lowered host code: what is stored to field 2 of a launch config.

    The DSL infers it while lowering and reports it nowhere else.
    """
    config = re.escape("!llvm.struct<(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32)>")
    fields = re.findall(rf"(%\d+) = llvm\.getelementptr %\d+\[0, 2\] : \(!llvm\.ptr\) -> !llvm\.ptr, {config}", host_ir)
    stored = {target: value for value, target in re.findall(r"llvm\.store (%\w+), (%\d+) : i64", host_ir)}
    constants = dict(re.findall(r"(%\d+) = llvm\.mlir\.constant\((\d+) : i64\)", host_ir))
    try:
        return max(int(constants[stored[field]]) for field in fields)
    except (KeyError, ValueError) as error:
        raise PackError("shared memory of the launch: want a constant in the exported host code") from error
