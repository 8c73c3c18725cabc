# SPDX-License-Identifier: Apache-2.0
"""The example hosts, compiled with opdeck.h and libopdeck.so alone, on packs and the emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import opdeck.abi
from opdeck.aot import build
from opdeck.core import registry
from opdeck.core.fusion import Causal
from opdeck.core.variant import Variant
from opdeck.plugins.fmha_fwd.cases import Case, Shape, expected_macs
from opdeck.plugins.mx_gemm import cases as mx_cases

EXAMPLES = Path(__file__).parents[2] / "abi" / "examples"
ARCHS = ("sm_100a", "sm_103a", "sm_90a")
DYNAMIC = "fmha_fwd_sm100a_bf16_d128_dynamic_causal_bottom_right"
HOSTS = {
    "fmha_host.c": ("cc", "-std=c99"),
    "fmha_host.cpp": ("c++", "-std=c++17"),
    "fmha_varlen_host.c": ("cc", "-std=c99"),
    "mx_gemm_host.c": ("cc", "-std=c99"),
}


@pytest.fixture(scope="module")
def variants() -> dict[str, Variant]:
    """What the hosts ask for, by id: bf16, causal d128 and unmasked d64, for each arch; and the first of these by
    another schedule."""
    rows = [
        variant
        for fusion, head_dim in ((Causal(), 128), (None, 64))
        for arch in ARCHS
        for variant in registry.variants("fmha_fwd", arch)
        if (variant.in_default_pack or variant.id == DYNAMIC)
        and (variant.dtype, variant.config["d_qk"], variant.fusion) == ("bf16", head_dim, fusion)
    ]
    assert len(rows) == 2 * len(ARCHS) + 1
    return {row.id: row for row in rows}


@pytest.fixture(scope="module")
def pack(variants: dict[str, Variant], tmp_path_factory: pytest.TempPathFactory) -> Path:
    schemas = {"fmha_fwd": registry.schema("fmha_fwd")}
    return build(list(variants.values()), schemas, tmp_path_factory.mktemp("pack"), "hosts")


@pytest.fixture(scope="module")
def mx_rows() -> dict[str, Variant]:
    """What the host of mx_gemm asks for, by arch: the kernel for products of any size."""
    ids = {arch: f"mx_gemm_{arch.replace('_', '')}_mxfp8_e4m3_mxfp8_e4m3_bf16_none" for arch in ("sm_100a", "sm_103a")}
    rows = {row.id: row for row in registry.variants("mx_gemm")}
    return {arch: rows[row_id] for arch, row_id in ids.items()}


@pytest.fixture(scope="module")
def mx_pack(mx_rows: dict[str, Variant], tmp_path_factory: pytest.TempPathFactory) -> Path:
    schemas = {"mx_gemm": registry.schema("mx_gemm")}
    return build(list(mx_rows.values()), schemas, tmp_path_factory.mktemp("mx_pack"), "mx_hosts")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hosts by source. Their folder holds nothing of opdeck but the two libraries."""
    folder = tmp_path_factory.mktemp("hosts")
    shutil.copy(opdeck.abi.library_path(), folder)
    shutil.copy(opdeck.abi.emulator_path(), folder / "libopdeck_emu.so")
    shutil.copy(opdeck.abi.include_dir() / "opdeck.h", folder)
    executables = {}
    for source, (compiler, standard) in HOSTS.items():
        executables[source] = folder / source.replace(".", "_")
        command = [compiler, standard, "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        command += ["-I", folder, EXAMPLES / source, "-o", executables[source]]
        command += ["-L", folder, "-lopdeck", "-lm", "-ldl", "-Wl,-rpath,$ORIGIN"]
        subprocess.run([str(word) for word in command], check=True, timeout=120)
    return executables


def run_host(host: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in (host, *arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    "shape",
    [Shape(b=1, sq=128, sk=256, hq=2, hk=1, d=128), Shape(b=2, sq=100, sk=77, hq=2, hk=2, d=128)],
    ids=["gqa", "residual_and_masked_rows"],
)
def test_c_host_computes_causal_attention(
    hosts: dict[str, Path], variants: dict[str, Variant], pack: Path, arch: str, shape: Shape
):
    sizes = (shape.b, shape.sq, shape.sk, shape.hq, shape.hk, shape.d)
    result = run_host(hosts["fmha_host.c"], pack, f"emulator:{arch}", *sizes)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("PASS\n")
    printed = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[:4])
    assert printed["variant"] == f"fmha_fwd_{arch.replace('_', '')}_bf16_d128_causal_bottom_right"
    assert int(printed["mma_macs"]) == expected_macs(Case(shape), variants[printed["variant"]])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("page_rows", [0, 128, 256])
def test_c_host_computes_on_sequences_of_unequal_lengths(hosts: dict[str, Path], pack: Path, arch: str, page_rows: int):
    """Packed, and with keys in pages; one sequence without queries, one without keys."""
    result = run_host(hosts["fmha_varlen_host.c"], pack, f"emulator:{arch}", page_rows)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"variant fmha_fwd_{arch.replace('_', '')}_bf16_d128_causal_bottom_right\n" in result.stdout
    assert "workspace_bytes 0\n" in result.stdout
    assert result.stdout.endswith("PASS\n")


@pytest.mark.slow
@pytest.mark.parametrize(("page_rows", "workspace_bytes"), [(0, 8 * 5), (128, 8 * 5 + 16 * 4)])
def test_c_host_gives_the_workspace_in_which_sequences_are_sorted(
    hosts: dict[str, Path], pack: Path, page_rows: int, workspace_bytes: int
):
    result = run_host(hosts["fmha_varlen_host.c"], pack, "emulator:sm_100a", page_rows, DYNAMIC)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"variant {DYNAMIC}\n" in result.stdout
    assert f"workspace_bytes {workspace_bytes}\n" in result.stdout
    assert result.stdout.endswith("PASS\n")


@pytest.mark.slow
def test_c_host_tells_which_pages_there_is_no_kernel_for(hosts: dict[str, Path], pack: Path):
    result = run_host(hosts["fmha_varlen_host.c"], pack, "emulator:sm_100a", 192)
    assert result.returncode == 2
    assert "sk: got 192, want a multiple of 128" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
def test_cpp_host_computes_on_packed_views(hosts: dict[str, Path], pack: Path, arch: str):
    result = run_host(hosts["fmha_host.cpp"], pack, f"emulator:{arch}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"fmha_fwd_{arch.replace('_', '')}_bf16_d64_none: accepts (chosen)" in result.stdout
    assert result.stdout.endswith("PASS\n")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("shape", [(200, 136, 160), (1, 8, 32)], ids=str)
def test_c_host_computes_block_scaled_products(
    hosts: dict[str, Path], mx_rows: dict[str, Variant], mx_pack: Path, arch: str, shape: tuple[int, int, int]
):
    result = run_host(hosts["mx_gemm_host.c"], mx_pack, f"emulator:{arch}", *shape)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("PASS\n")
    printed = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[:4])
    assert printed["variant"] == mx_rows[arch].id
    assert int(printed["mma_macs"]) == mx_cases.expected_macs(mx_cases.Shape(*shape), mx_rows[arch])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((200, 136, 48), "INVALID_ARGUMENT: a: got k = 48, want a multiple of 32"),
        ((200, 100, 160), "INVALID_ARGUMENT: d: got stride 100 (200 bytes) in dim 1, want a multiple of 16 bytes"),
    ],
)
def test_c_host_of_block_scaled_products_tells_what_is_wrong(
    hosts: dict[str, Path], mx_pack: Path, shape: tuple[int, int, int], message: str
):
    result = run_host(hosts["mx_gemm_host.c"], mx_pack, "emulator:sm_100a", *shape)
    assert result.returncode == 2
    assert message in result.stderr


@pytest.mark.slow
def test_host_tells_why_it_cannot(hosts: dict[str, Path], pack: Path):
    """No variant of head dim 160; a file that is no pack; a device that is none."""
    unsupported = run_host(hosts["fmha_host.c"], pack, "emulator:sm_100a", 1, 128, 128, 1, 1, 160)
    assert unsupported.returncode == 2
    assert "UNSUPPORTED: fmha_fwd on sm_100a: none of 7 variants (4 of them for other archs)" in unsupported.stderr
    assert "dqk: got 160, want <= 128" in unsupported.stderr
    no_pack = run_host(hosts["fmha_host.c"], __file__, "emulator:sm_100a")
    assert (no_pack.returncode, no_pack.stderr.startswith("PACK: ")) == (2, True)
    no_device = run_host(hosts["fmha_host.cpp"], pack, "emulator:sm_80")
    assert (no_device.returncode, "INVALID_ARGUMENT: desc.device" in no_device.stderr) == (2, True)
