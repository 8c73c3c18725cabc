# SPDX-License-Identifier: Apache-2.0
"""Packs in libopdeck: what it lists, what it selects, and that the kernels run, on the emulator."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copy_plugin.family import NUM_COLS, Affine
from packs import Pack

import opdeck.abi
from opdeck.core.arrays import view
from opdeck.core.devices import LaunchArgs
from opdeck.core.devices.find import open_device
from opdeck.core.errors import ArgumentError, Unsupported
from opdeck.core.operator import Operator
from opdeck.core.registry import Registry

ARCHS = ("sm_100a", "sm_103a", "sm_90a")
SCHEDULES = ("eager", "lazy", "random:1")


@pytest.fixture(scope="module")
def copy() -> Operator:
    return Registry([importlib.metadata.EntryPoint("copy_plugin", "copy_plugin.plugin", "opdeck.plugins")]).get("copy")


def check(status: int) -> None:
    ffi, lib = opdeck.abi.lib()
    assert status == lib.OPDECK_OK, ffi.string(lib.opdeck_last_error()).decode()


def listed_kernels(pack: Pack) -> list[Any]:
    """What an offline context says of the pack's kernels."""
    ffi, lib = opdeck.abi.lib()
    device = ffi.new("char[]", b"offline:sm_100a")
    desc = ffi.new("opdeck_ctx_desc *", {"struct_size": ffi.sizeof("opdeck_ctx_desc"), "device": device})
    ctx_out = ffi.new("opdeck_ctx **")
    check(lib.opdeck_ctx_create(desc, ctx_out))
    ctx = ffi.gc(ctx_out[0], lib.opdeck_ctx_destroy)
    check(lib.opdeck_ctx_load_pack(ctx, str(pack.path).encode()))
    count = ffi.new("uint32_t *")
    check(lib.opdeck_ctx_num_kernels(ctx, count))
    rows = []
    for kernel_idx in range(count[0]):
        info = ffi.new("opdeck_kernel_info *", {"struct_size": ffi.sizeof("opdeck_kernel_info")})
        check(lib.opdeck_ctx_kernel_info(ctx, kernel_idx, info))
        texts = {
            name: ffi.string(getattr(info, name)).decode()
            for name in ("variant", "family", "arch", "fusion", "config", "cubin_sha256", "pack")
        }
        numbers = {name: getattr(info, name) for name in ("smem_bytes", "num_registers", "num_threads")}
        rows.append({**texts, **numbers})
    return rows


def test_libopdeck_lists_what_the_manifest_says(copy_pack: Pack):
    manifest = json.loads(copy_pack.path.with_name("copy.json").read_text())
    listed = listed_kernels(copy_pack)
    assert len(listed) == len(manifest["kernels"])
    for found, wanted in zip(listed, manifest["kernels"], strict=True):
        assert found["variant"] == wanted["id"]
        assert found["config"] == "num_threads=128"
        assert found["pack"] == str(copy_pack.path)
        for name in ("family", "arch", "fusion", "cubin_sha256", "smem_bytes", "num_registers", "num_threads"):
            assert found[name] == wanted[name]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_kernel_of_each_row_copies(copy: Operator, arch: str, dtype: Any):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((5, NUM_COLS)).astype(dtype)
    y = copy(x, factor=3.0, device=f"emulator:{arch}")
    np.testing.assert_array_equal(y, (x.astype(np.float32) * 3).astype(dtype))
    assert copy.last_launch.variant.arch == arch
    report = copy.last_launch.device.last_report()
    assert report.num_ctas == 5
    assert report.warp_instructions > 5 * NUM_COLS // 32


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_strided_rows_and_the_default_factor(copy: Operator, schedule: str):
    """Only the elements of x and y are registered with the emulator: one that is touched between them is an error."""
    rng = np.random.default_rng(2)
    wide = rng.standard_normal((7, 3 * NUM_COLS)).astype(np.float32)
    out = np.full((7, 2 * NUM_COLS), 7.0, np.float32)
    y = out[:, NUM_COLS:]
    returned = copy(wide[:, NUM_COLS : 2 * NUM_COLS], out=y, device=open_device("emulator:sm_100a", schedule, "on"))
    assert returned is y
    factor = np.float32(1 / np.sqrt(NUM_COLS))
    np.testing.assert_array_equal(y, wide[:, NUM_COLS : 2 * NUM_COLS] * factor)
    assert (out[:, :NUM_COLS] == 7.0).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_leaves_of_a_third_partys_fusion_arrive(copy: Operator, arch: str):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, NUM_COLS)).astype(np.float32)
    bias = rng.integers(-8, 8, 2 * NUM_COLS).astype(np.float32)[::2]
    for num_times, gain in ((3, 0.5), (-2, 4.0)):
        y = copy(x, factor=2.0, fusion=Affine(bias, num_times, gain), device=f"emulator:{arch}")
        np.testing.assert_allclose(y, x * 2 * gain + bias * num_times, rtol=1e-6)


def test_no_rows_launch_nothing(copy: Operator):
    x = np.ones((0, NUM_COLS), np.float32)
    assert copy(x, device="emulator:sm_90a").shape == (0, NUM_COLS)


def test_what_no_row_accepts_is_refused(copy: Operator):
    x = np.ones((2, 64), np.float32)
    with pytest.raises(Unsupported) as caught:
        copy(x, device="emulator:sm_90a")
    reason = "cols: got 64, want 128 (others: slice them)"
    assert f"{reason} (2 variants, such as copy_sm90a_fp32_none)" in caught.value.reasons
    # libopdeck, asked past Python's selection, has it from the pack.
    args = LaunchArgs({"x": view(x, "x"), "y": view(x.copy(), "out")}, {}, None, (), None)
    row = next(row for row in copy.variants() if row.id == "copy_sm90a_fp32_none")
    with pytest.raises(Unsupported) as caught:
        open_device("emulator:sm_90a").launcher(copy.schema, row).prepare(args)
    assert caught.value.reasons == (f"copy_sm90a_fp32_none: {reason}",)
    with pytest.raises(ArgumentError, match="x"):
        copy(np.ones((2, 2 * NUM_COLS), np.float32)[:, ::2], device="emulator:sm_90a")


PACK_ONLY = """\
import importlib.metadata, sys
import numpy as np
sys.modules["cutlass"] = None  # importing it is an error
from opdeck.core.registry import Registry
entry_point = importlib.metadata.EntryPoint("copy_plugin", "copy_plugin.plugin", "opdeck.plugins")
copy = Registry([entry_point]).get("copy")
x = np.arange(256, dtype=np.float32).reshape(2, 128)
np.testing.assert_array_equal(copy(x, factor=2.0, device="emulator:sm_103a"), 2 * x)
print(copy.last_launch.variant.id)
"""


def test_a_pack_needs_neither_dsl_nor_compiler(copy_pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPDECK_PACK_PATH", str(copy_pack.path.parent))
    monkeypatch.setenv("OPDECK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OPDECK_CC", "no-such-compiler")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    command = [sys.executable, "-c", PACK_ONLY]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "copy_sm103a_fp32_none"
    assert not (tmp_path / "cache").exists()
