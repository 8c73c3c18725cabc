# SPDX-License-Identifier: Apache-2.0
"""cuda_on_cpu.py: torch's "cuda" device on the CPU, so that a script written for a GPU runs with the emulator attached.

Who calls it: __main__.py, for whole scripts; benchmarks/emulator_examples.py. Needs torch; attach() alone does not.
Tensors that a script asks for on "cuda" are CPU tensors that answer is_cuda with True; there is one stream, and nothing
is asynchronous. A CUDA graph keeps the calls of compiled functions that are made during its capture, for replay. CuTe
DSL's benchmark helper takes no times: the emulator's are not a GPU's.
Limits: what torch itself computes during a capture is not part of the graph. Events and memory pools are not there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from opdeck.core.emulator.attach import Attachment
from opdeck.core.emulator.library import COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, MULTIPROCESSOR_COUNT


class _Stream:
    """The default stream."""

    cuda_stream = 0

    def synchronize(self) -> None:
        """Launches have ended when they return."""

    def wait_stream(self, stream: object) -> None:
        """There is one stream."""


class _Graph:
    """The calls of compiled functions that were made during a capture. kept: what their arguments belong to."""

    capturing: ClassVar[_Graph | None] = None

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.kept: list[Any] = []

    def replay(self) -> None:
        """Makes the calls, in their order."""
        for call in self.calls:
            call()


@contextlib.contextmanager
def _capture(graph: _Graph, **_options: object) -> Iterator[None]:
    _Graph.capturing = graph
    try:
        yield
    finally:
        _Graph.capturing = None


def redirect_cuda(attachment: Attachment) -> None:
    """Redirects torch's CUDA device, and the calls that scripts make to look for a GPU, for the whole process."""
    import torch

    _redirect_tensors(torch)
    major, minor, num_sms = (
        attachment.library.device_attribute(attribute, attachment.arch)
        for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, MULTIPROCESSOR_COUNT)
    )
    name = f"emulator:{attachment.arch}"
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (major, minor),
        "get_device_name": name,
        "get_device_properties": types.SimpleNamespace(
            name=name, major=major, minor=minor, multi_processor_count=num_sms
        ),
        "current_stream": _Stream(),
        "default_stream": _Stream(),
        "Stream": _Stream(),
        "synchronize": None,
        "set_device": None,
        "empty_cache": None,
    }
    for question, answer in answers.items():
        setattr(torch.cuda, question, _always(answer))
    torch.cuda.CUDAGraph = _Graph
    torch.cuda.graph = _capture
    executor: Any = importlib.import_module("cutlass.base_dsl.jit_executor").JitExecutor
    executor.run_compiled_program = _capturable(executor.run_compiled_program, attachment)
    driver: Any = importlib.import_module("cuda.bindings.driver")
    success = driver.CUresult.CUDA_SUCCESS
    driver.cuInit = _always((success,))
    driver.cuDeviceGetCount = _always((success, 1))
    for name in ("cutlass.testing", "cutlass.cute.testing"):
        testing: Any = importlib.import_module(name)
        testing.benchmark = _always(math.nan)


def _redirect_tensors(torch: Any) -> None:
    is_cuda = torch.Tensor.is_cuda.__get__
    on_cpu = torch.device("cpu")

    def here(argument: Any) -> Any:
        if isinstance(argument, torch.device):
            return on_cpu if argument.type == "cuda" else argument
        return "cpu" if isinstance(argument, str) and argument.split(":")[0] == "cuda" else argument

    class CudaOnCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == is_cuda:
                return True
            if function is torch.Tensor.cuda:
                return args[0]
            named = {name: here(argument) for name, argument in (kwargs or {}).items()}
            return function(*map(here, args), **named)

    CudaOnCpu().__enter__()  # for as long as the process lives


def _capturable(original: Callable[[Any, Any], Any], attachment: Attachment) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    def run(executor: Any, descriptors: Any) -> Any:
        if _Graph.capturing is None:
            return original(executor, descriptors)
        _Graph.capturing.kept += attachment.arguments.owners(descriptors)
        _Graph.capturing.calls.append(functools.partial(original, executor, list(descriptors)))
        return 0

    return run


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer
