# SPDX-License-Identifier: Apache-2.0
"""tvm_ffi_calls.py: functions that were compiled with --enable-tvm-ffi, called on CPU arrays.

Who calls it: attach.py, where tvm_ffi is installed. Such a function is called by tvm_ffi itself, checks that its
tensors are on a GPU, and loads its own cubin at its first call. So the PTX is handed over when the function is made,
and arrays go in labelled as on a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opdeck.core.emulator.arguments import GpuArray, tensor_memory
from opdeck.core.emulator.library import HostTensor

if TYPE_CHECKING:
    from opdeck.core.emulator.attach import Attachment


def install(attachment: Attachment) -> None:
    """Puts the emulator under tvm-ffi's functions of the DSL."""
    provider = importlib.import_module("cutlass.cutlass_dsl.tvm_ffi_provider")
    base = provider.TVMFFIJitCompiledFunctionBase
    base._create_tvm_ffi_function = _registering(base._create_tvm_ffi_function, attachment)
    for compiled_type in (provider.TVMFFIJitCompiledFunction, provider.TVMFFIJitCompiledFunctionWithKwargs):
        compiled_type.__call__ = _calling(compiled_type.__call__, attachment)


def _registering(original: Callable[[Any], Any], attachment: Attachment) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def create(compiled: Any) -> Any:
        if compiled.has_gpu_module:
            attachment.register(compiled)
        return original(compiled)

    return create


def _calling(original: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(compiled: Any, *args: Any, **kwargs: Any) -> Any:
        memory: list[HostTensor] = []
        shown = [_shown(value, f"argument {index}", memory) for index, value in enumerate(args)]
        named = {name: _shown(value, name, memory) for name, value in kwargs.items()}
        with attachment.session(memory):
            return original(compiled, *shown, **named)

    return call


def _shown(value: Any, name: str, memory: list[HostTensor]) -> Any:
    """The value with its arrays labelled as on a GPU; what they hold is added to `memory`."""
    if isinstance(value, (tuple, list)):
        items = [_shown(item, f"{name}[{index}]", memory) for index, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        shown = {key: _shown(item, f"{name}.{key}", memory) for key, item in fields.items()}
        return dataclasses.replace(value, **shown)
    runtime = importlib.import_module("cutlass.cute.runtime")
    if type(value) is runtime._Tensor:  # isinstance takes it for its base class
        memory.append(tensor_memory(value, name))
    elif hasattr(value, "__dlpack__"):
        memory.append(tensor_memory(runtime.from_dlpack(value), name))
        return importlib.import_module("tvm_ffi").from_dlpack(GpuArray(value))
    return value
