# SPDX-License-Identifier: Apache-2.0
"""Launches and kernels with absurd numbers in them: parameters that are missing, grids and clusters beyond every limit,
shared memory that no GPU has, descriptors that point outside it. Each is an error that says what was wrong."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from emulator_driver import (
    WRITE,
    Emulator,
    EmulatorError,
    Launch,
    Schedule,
    Tensor,
    launch_config,
    module_text,
    run_body,
)
from tmem_frame import framed

INVALID_VALUE, INVALID_PTX, ILLEGAL_ADDRESS, ILLEGAL_INSTRUCTION = 1, 218, 700, 715
OUTSIDE = "reaches shared address 0x[0-9a-f]+ at line .*the CTA has [0-9]+ bytes"


def launch_code(emulator: Emulator, config: object, kernel: object, params: object) -> int:
    return emulator.lib.cuLaunchKernelEx(config, kernel, params, None)


def loaded(emulator: Emulator, num_params: int) -> ctypes.c_void_p:
    kernel = emulator.load(module_text("st.global.b32 [%p_0], 7;" if num_params else "", num_params)).kernel("run")
    emulator.use_device("sm_100a")
    return kernel


@pytest.mark.parametrize("given", [0, 1, 2])
def test_parameters_that_end_too_early(emulator: Emulator, given: int):
    """A NULL stands behind the last parameter that the caller has."""
    kernel = loaded(emulator, 3)
    out = np.zeros(1, np.uint32)
    pointer = ctypes.c_uint64(out.ctypes.data)
    params = (ctypes.c_void_p * 4)(*[ctypes.addressof(pointer)] * given)
    emulator.begin([Tensor(out, WRITE)], Schedule())
    code = launch_code(emulator, ctypes.byref(launch_config(Launch())), kernel, params)
    text = emulator.lib.opdeck_emu_last_error().decode()
    emulator.end()
    assert (code, out[0]) == (INVALID_VALUE, 0)
    assert f"parameter {given} is NULL" in text


@pytest.mark.parametrize(
    ("config", "kernel", "message"),
    [
        (True, True, "parameter 0 is NULL"),  # the array of parameters is
        (False, True, "config is NULL"),
        (True, False, "the kernel handle is not one of a loaded library"),
    ],
)
def test_null_arguments(emulator: Emulator, config: bool, kernel: bool, message: str):
    handle = loaded(emulator, 1)
    shape = ctypes.byref(launch_config(Launch())) if config else None
    with pytest.raises(EmulatorError, match=message) as caught:
        emulator.check(launch_code(emulator, shape, handle if kernel else None, None))
    assert caught.value.code == INVALID_VALUE


def test_attributes_that_are_not_there(emulator: Emulator):
    kernel = loaded(emulator, 0)
    config = launch_config(Launch())
    config.attrs = None
    with pytest.raises(EmulatorError, match="attrs is NULL"):
        emulator.check(launch_code(emulator, ctypes.byref(config), kernel, None))


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch(grid=(1, 0, 1)), "grid 1x0x1"),
        (Launch(grid=(1, 1, 0)), "grid 1x1x0"),
        (Launch(grid=(1 << 31, 1, 1)), "grid 2147483648x1x1"),
        (Launch(grid=(1, 65536, 1)), "grid 1x65536x1"),
        (Launch(block=(0, 1, 1)), "block 0x1x1"),
        (Launch(block=(0xFFFFFFFF, 0xFFFFFFFF, 64)), "block 4294967295x4294967295x64"),
        # 4 * (2^62 + 1) threads, which are 4 in 64 bits.
        (Launch(block=(2147418113, 2147549185, 4)), "block 2147418113x2147549185x4"),
        (Launch(cluster=(0, 1, 1)), "is not a multiple of cluster 0x1x1"),
        (Launch(grid=(1 << 30, 1 << 15, 1), cluster=(1 << 30, 4, 1)), "cluster 1073741824x4x1 has more than 8 CTAs"),
        (Launch(smem_bytes=0xFFFFFFFF), "4294967295 bytes of dynamic shared memory"),
    ],
)
def test_absurd_shapes(emulator: Emulator, launch: Launch, message: str):
    with pytest.raises(EmulatorError) as caught:
        run_body(emulator, "", [], launch)
    assert caught.value.code == INVALID_VALUE
    assert message in caught.value.text


@pytest.mark.parametrize("num_bytes", [-1, 1 << 30, 0x7FFFFFFF])
def test_absurd_limit_of_dynamic_shared_memory(emulator: Emulator, num_bytes: int):
    kernel = loaded(emulator, 0)
    with pytest.raises(EmulatorError, match="at most 232448 are possible") as caught:
        emulator.check(emulator.lib.cuKernelSetAttribute(8, num_bytes, kernel, 1))
    assert caught.value.code == INVALID_VALUE


@pytest.mark.parametrize("num_bytes", [227 * 1024 + 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1])
def test_absurd_static_shared_memory(emulator: Emulator, num_bytes: int):
    """As a static array in the module; a driver refuses it when it loads or when it launches."""
    with pytest.raises(EmulatorError) as caught:
        run_body(emulator, "", [], declarations=f".shared .align 8 .b8 much[{num_bytes}];")
    assert caught.value.code in (INVALID_VALUE, INVALID_PTX)
    assert "shared" in caught.value.text or "bytes" in caught.value.text


LAST_16_BYTES = 0x3FFF  # the start address of a descriptor, in units of 16 bytes: 256 KiB - 16
MIDDLE = 0x400
MMA = """
  mov.b64 %d1, {a:#x};
  mov.b64 %d2, {b:#x};
  mov.b32 %r1, 0x08080010;
  setp.ne.u32 %q2, %tid, %tid;
  setp.eq.u32 %q1, %tid, 0;
  @%q1 {instruction};
"""
PLAIN = 8 << 32 | 1 << 46  # stride 128 bytes
TMEM = {"declarations": ".shared .align 8 .b32 slot;\n.shared .align 128 .b8 room[65536];"}


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (LAST_16_BYTES | PLAIN, MIDDLE | PLAIN, "A: matrix descriptor .*" + OUTSIDE),
        (MIDDLE | PLAIN, LAST_16_BYTES | PLAIN, "B: matrix descriptor .*" + OUTSIDE),
        (MIDDLE | 0x3FFF << 16 | PLAIN, MIDDLE | PLAIN, "A: matrix descriptor .*" + OUTSIDE),  # its leading bytes
        (MIDDLE | PLAIN, MIDDLE | 0x3FFF << 32 | PLAIN, "B: matrix descriptor .*" + OUTSIDE),  # its stride
        (0xFFFFFFFFFFFFFFFF, MIDDLE | PLAIN, "A: tcgen05 shared-memory descriptor"),
        (0, MIDDLE | PLAIN, "A: tcgen05 shared-memory descriptor .* bits .48:46. is 0, want 1"),
    ],
)
def test_descriptor_of_tcgen05_mma_outside_shared_memory(emulator: Emulator, a: int, b: int, message: str):
    instruction = "tcgen05.mma.cta_group::1.kind::f16 [%r100], %d1, %d2, %r1, %q2"
    body = framed(MMA.format(a=a, b=b, instruction=instruction))
    with pytest.raises(EmulatorError, match=message) as caught:
        run_body(emulator, body, [], **TMEM)
    assert caught.value.code == ILLEGAL_INSTRUCTION


@pytest.mark.parametrize("shape", ["128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "32x128b.warpx4"])
def test_descriptor_of_tcgen05_cp_outside_shared_memory(emulator: Emulator, shape: str):
    body = framed(MMA.format(a=LAST_16_BYTES | PLAIN, b=0, instruction=f"tcgen05.cp.cta_group::1.{shape} [%r100], %d1"))
    with pytest.raises(EmulatorError, match=OUTSIDE) as caught:
        run_body(emulator, body, [], **TMEM)
    assert caught.value.code == ILLEGAL_INSTRUCTION


@pytest.mark.parametrize("operand", ["A", "B"])
@pytest.mark.parametrize("wrong", [LAST_16_BYTES | 8 << 32, MIDDLE | 0x3FFF << 16, MIDDLE | 0x3FFF << 32])
def test_descriptor_of_wgmma_outside_shared_memory(emulator: Emulator, operand: str, wrong: int):
    a, b = (wrong, MIDDLE | 8 << 32) if operand == "A" else (MIDDLE | 8 << 32, wrong)
    body = f"""
      mov.b64 %d1, {a:#x};
      mov.b64 %d2, {b:#x};
      setp.eq.u32 %q3, %tid, 1000;
      wgmma.fence.sync.aligned;
      wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16
        {{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}}, %d1, %d2, %q3, 1, 1, 0, 0;
      wgmma.commit_group.sync.aligned;
      wgmma.wait_group.sync.aligned 0;
    """
    with pytest.raises(EmulatorError, match=f"{operand}: .*{OUTSIDE}") as caught:
        run_body(emulator, body, [], Launch(block=(128, 1, 1)), target="sm_90a", **TMEM)
    assert caught.value.code == ILLEGAL_INSTRUCTION
