# SPDX-License-Identifier: Apache-2.0
"""attach(): kernels that CuTe DSL compiles in the process run on the emulator, on numpy arrays.

Each process can attach once and before it imports cutlass, so the kernels are in attach_cases.py, run once an arch.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvidia_cutlass_dsl")

CASES = Path(__file__).parent / "attach_cases.py"
ARCHS = ("sm_90a", "sm_100a", "sm_103a")


def python(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


@functools.cache
def cases(arch: str) -> dict[str, Any]:
    done = python(CASES, arch)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("arch", ARCHS)
def test_kernel_runs_on_numpy_arrays(arch: str):
    case = cases(arch)["tensors"]
    assert case["is_right"]
    report = case["report"]
    assert report["num_ctas"] == 4
    assert report["num_launches"] == 1
    assert report["warp_instructions"] > 4 * 4 * 5
    assert "double_kernel" in report["kernel_name"]
    assert len(report["cubin_sha256"]) == 64
    assert report["hazard"] == ""
    assert case["num_reports"] == 2


@pytest.mark.parametrize("arch", ARCHS)
def test_counters_of_a_kernel(arch: str):
    case = cases(arch)["counters"]
    assert case["fp32"] == 4 * 4
    assert case["bytes"] == [4 * 128 * 4, 4 * 128 * 4]
    assert case["roles"] == ["warps 0-3"]
    assert case["num_ctas"] == 4
    kind, text = case["uncounted"]
    assert kind == "DriverError"
    assert "Attachment.counting" in text


def test_access_beyond_an_argument_names_it():
    case = cases("sm_100a")["tensors"]
    kind, text = case["beyond"]
    assert kind == "HazardError"
    assert "behind the end of 'x'" in text
    assert "attach_cases.py:" in text
    assert case["report_of_stopped"]["hazard"] == text


def test_gaps_of_a_strided_array_are_no_part_of_it():
    case = cases("sm_100a")["rows_with_gaps"]
    assert case["is_right"]
    assert case["unaware"][0] == "HazardError"
    assert "lies between the elements of" in case["unaware"][1]


def test_pointer_of_unknown_memory_wants_it_exposed():
    case = cases("sm_100a")["pointers"]
    assert case["unknown"][0] == "HazardError"
    assert "Attachment.expose" in case["unknown"][1]
    assert case["is_right"]


def test_exploring_stops_at_the_schedule_that_shows_a_missing_wait():
    case = cases("sm_100a")["exploring"]
    assert case["with wait"]["failure"] == ""
    assert case["with wait"]["schedules"][:3] == ["eager", "lazy", "random:1"]
    assert case["with wait"]["num_orders"] == 1
    assert case["without wait"]["schedules"] == ["eager", "lazy"]
    assert "128 elements of output 0 differ, first (0,): -1.0, under eager 127.0" in case["without wait"]["failure"]
    assert case["schedule after"] == "eager"


def test_schedules_show_a_missing_wait():
    assert cases("sm_100a")["missing_wait"] == {
        "eager with wait": True,
        "lazy with wait": True,
        "random:3 with wait": True,
        "eager without wait": True,
        "lazy without wait": False,
        "random:3 without wait": False,
    }


def test_functions_of_tvm_ffi_run_too():
    pytest.importorskip("tvm_ffi")
    case = cases("sm_100a")["tvm_ffi"]
    assert case["is_right"]
    assert case["is_right_on_runtime_tensors"]
    assert case["report"]["num_ctas"] == 4
    assert case["beyond"][0] == "HazardError"
    assert "behind the end of 'argument 0'" in case["beyond"][1]


def test_wrong_options_are_refused():
    case = cases("sm_100a")["options"]
    assert case["again"][0] == "DriverError"
    assert case["schedule"] == ["ArgumentError", "schedule: got 'sometimes', want eager|lazy|random[:SEED]"]
    assert case["seed"][0] == "ArgumentError"
    assert case["hazards"] == ["ArgumentError", "hazards: got 'maybe', want off|on|strict"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import cutlass; from opdeck.core.emulator import attach; attach()", "cutlass was imported before"),
        ("from opdeck.core.emulator import attach; attach('sm_80')", "arch: got 'sm_80', want sm_100a|sm_103a|sm_90a"),
    ],
)
def test_attach_that_cannot_be_says_why(code: str, message: str):
    done = python("-c", code)
    assert done.returncode != 0
    assert message in done.stderr


def test_script_runs_with_the_emulator_attached(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "import cutlass\n"
        "from cutlass import cute\n"
        "@cute.kernel\n"
        "def idle_kernel():\n"
        "    pass\n"
        "@cute.jit\n"
        "def idle():\n"
        "    idle_kernel().launch(grid=[3, 1, 1], block=[32, 1, 1])\n"
        "idle()\n"
        "print(__name__, sys.argv[1:], cutlass.utils.HardwareInfo().get_max_active_clusters(2))\n"
        "sys.exit(5)\n"
    )
    done = python("-m", "opdeck.core.emulator", "--arch", "sm_90a", "--schedule", "random:1", script, "--n", "3")
    assert done.returncode == 5, done.stderr[-2000:]
    assert done.stdout.split("\n")[0] == "__main__ ['--n', '3'] 66"
    assert "idle_kernel" in done.stderr
    assert "3 CTAs" in done.stderr


def test_script_with_cuda_tensors_runs(tmp_path: Path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from cutlass import cute\n"
        "from cutlass.cute.runtime import from_dlpack\n"
        "@cute.kernel\n"
        "def increment_kernel(x: cute.Tensor):\n"
        "    thread_idx, _, _ = cute.arch.thread_idx()\n"
        "    x[thread_idx] = x[thread_idx] + 1.0\n"
        "@cute.jit\n"
        "def increment(x: cute.Tensor):\n"
        "    increment_kernel(x).launch(grid=[1, 1, 1], block=[32, 1, 1])\n"
        "assert torch.cuda.is_available()\n"
        "x = torch.zeros(32, device='cuda')\n"
        "assert x.is_cuda\n"
        "compiled = cute.compile(increment, from_dlpack(x))\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    compiled(from_dlpack(x))\n"
        "torch.cuda.synchronize()\n"
        "assert (x == 0).all()\n"
        "for _ in range(3):\n"
        "    graph.replay()\n"
        "print(x.cpu().tolist() == [3.0] * 32, torch.cuda.get_device_capability())\n"
    )
    done = python("-m", "opdeck.core.emulator", "--arch", "sm_103a", script)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "True (10, 3)"
