# SPDX-License-Identifier: Apache-2.0
"""Malformed PTX, instructions and modifiers that are not there, images and launches that a driver would refuse."""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np
import pytest
from emulator_driver import WRITE, Emulator, EmulatorError, Launch, Schedule, Tensor, module_text, run, run_body

INVALID_VALUE, NO_BINARY, INVALID_PTX, NOT_FOUND, ILLEGAL_INSTRUCTION, NOT_SUPPORTED = 1, 209, 218, 500, 715, 801


def refusal(emulator: Emulator, text: str) -> EmulatorError:
    with pytest.raises(EmulatorError) as caught:
        emulator.load(text)
    return caught.value


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize(
    ("instruction", "code", "message"),
    [
        ("frobnicate.b32 %r0, %r1;", NOT_SUPPORTED, "instruction `frobnicate.b32` is not supported"),
        ("add.rq.f32 %r0, %r1, %r2;", NOT_SUPPORTED, "modifier .rq"),
        ("fma.f32 %r0, %r1, %r2, %r3;", NOT_SUPPORTED, "rounding .f32 (one of .rn, .rz, .rm, .rp is wanted)"),
        ("cvt.f16.f32 %h0, %r1;", NOT_SUPPORTED, "without a rounding modifier"),
        ("cvt.rn.bogus.f32 %r0, %r1;", NOT_SUPPORTED, "format .bogus"),
        ("add.rn.s32 %r0, %r1, %r2;", NOT_SUPPORTED, ".rn"),
        ("ld.global.wrong.b32 %r0, [%p_0];", NOT_SUPPORTED, "modifier .wrong"),
        ("mbarrier.arrive.wrong.b64 _, [%p_0];", NOT_SUPPORTED, ".wrong"),
        ("tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %d0, %d1, %r1, %q0;", NOT_SUPPORTED, "this instruction"),
        ("cp.async.bulk.tensor.6d.shared::cta.global [%r0], [%d0, {%r1}], [%r2];", NOT_SUPPORTED, "dimension .6d"),
        ("wgmma.fence.sync.aligned;", NOT_SUPPORTED, "by the target sm_100a"),
        ("add.u32 %r0, %r1;", INVALID_PTX, "2 operands, 3 wanted"),
        ("add.u32 %r0, %r1, %d2;", INVALID_PTX, "operand %d2 has 64 bits, 32 wanted"),
        ("add.u32 %r0, %r1, %nowhere;", NOT_SUPPORTED, "special register %nowhere"),
        ("bra NOWHERE;", INVALID_PTX, "'NOWHERE' is not a label"),
        ("ld.shared.b32 %r0, [nothing];", INVALID_PTX, "'nothing' is not declared"),
        ("@%r0 mov.u32 %r1, 0;", INVALID_PTX, "guard '%r0' is not a declared predicate"),
        ("fence.proxy.tensormap::generic.acquire.gpu [%p_0], 64;", INVALID_PTX, "size 64, 128 wanted"),
        ("fence.proxy.tensormap::generic.release.gpu [%p_0], 128;", INVALID_PTX, "2 operands, 0 wanted"),
        ("mov.u32 %r0, 1.5;", INVALID_PTX, "write floating-point constants as 0f or 0d"),
    ],
)
def test_instruction(emulator: Emulator, instruction: str, code: int, message: str):
    text = module_text(instruction, 1)
    error = refusal(emulator, text)
    assert message in error.text
    assert error.code == code
    if "declared" not in message or "guard" in message:
        assert f"PTX line {line_of(text, instruction)}" in error.text


def test_refusal_cites_the_manual(emulator: Emulator):
    assert '(PTX ISA, "' in refusal(emulator, module_text("shfl.sync.sideways.b32 %r0, %r1, 0, 31, -1;", 0)).text


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("sm_90a", "tcgen05.fence::before_thread_sync;"),
        ("sm_90a", "fma.rn.f32x2 %d0, %d1, %d2, %d3;"),
        ("sm_103a", "tcgen05.mma.cta_group::1.kind::i8 [%r0], %d0, %d1, %r1, %q0;"),
        ("sm_100a", "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {%r0, %r1}, %r2, [%r3];"),
    ],
)
def test_what_a_target_lacks(emulator: Emulator, target: str, instruction: str):
    error = refusal(emulator, module_text(instruction, 0, target))
    assert error.code == NOT_SUPPORTED
    assert f"by the target {target}" in error.text


def test_every_truncation_is_an_error_and_no_crash(emulator: Emulator):
    body = """
      { .reg .pred P1; setp.eq.u32 P1, %tid, 3; @P1 bra DONE; }
      mov.b64 {%r0, %r1}, %d0;
      /* a comment */ ld.global.v2.b32 {%r2, %r3}, [%p_0+8];
      shfl.sync.idx.b32 %r4|%q0, %r0, 0x1f, 31, -1;
    DONE:
    """
    text = module_text(body, 1, declarations='.global .align 8 .b8 text[4] = {1, 2, 3, 4};\n.file 1 "a.py"')
    emulator.load(text)
    for end in range(text.index("run("), text.rindex("}"), 3):
        assert refusal(emulator, text[:end]).code in (INVALID_PTX, NOT_SUPPORTED, NO_BINARY)


def test_every_deleted_token_is_survived(emulator: Emulator):
    """Deleting one word either still makes a legal kernel or is refused with a line."""
    words = module_text("mov.b64 {%r0, %r1}, %d0;\n add.u32 %r0, %r0, 7;\n @%q0 bra END;\n END:", 1).split(" ")
    for i in range(len(words)):
        with contextlib.suppress(EmulatorError):
            emulator.load(" ".join(words[:i] + words[i + 1 :]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((".target sm_100a", ".target sm_80"), "PTX .target sm_80: the emulator has sm_90a, sm_100a and sm_103a"),
        ((".target sm_100a\n", ""), "PTX has no .target directive"),
        ((".address_size 64", ".address_size 32"), "only .address_size 64 is supported"),
        ((".reg .b16", ".reg .b17"), "register type '.b17' is not supported"),
        (("ret;", "ret"), "PTX line"),
    ],
)
def test_module(emulator: Emulator, change: tuple[str, str], message: str):
    assert message in refusal(emulator, module_text("", 1).replace(*change)).text


def test_image_that_is_nothing(emulator: Emulator):
    with pytest.raises(EmulatorError, match=r"no cubin, no fatbin with one, and no PTX text"):
        emulator.load(b"some other bytes" * 8)


def test_unknown_cubin_is_named_by_its_hash(emulator: Emulator):
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    with pytest.raises(EmulatorError, match=r"no PTX is registered for the cubin with SHA-256 [0-9a-f]{64}") as caught:
        emulator.load(bytes(header))
    assert caught.value.code == NO_BINARY


def test_registered_cubin_loads_and_clashes_are_refused(emulator: Emulator):
    header = bytearray(64)
    header[:5], header[20] = b"\x7fELF\x02", 77
    text = module_text("", 0)
    emulator.register(bytes(header), text)
    emulator.register(bytes(header), text)
    emulator.load(bytes(header)).kernel("run")
    with pytest.raises(EmulatorError, match="another PTX text is registered"):
        emulator.register(bytes(header), text + "\n")


def test_unknown_kernel(emulator: Emulator):
    with pytest.raises(EmulatorError, match="the library has no kernel 'walk'") as caught:
        emulator.load(module_text("", 0)).kernel("walk")
    assert caught.value.code == NOT_FOUND


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch(grid=(0, 1, 1)), "grid 0x1x1"),
        (Launch(block=(1025, 1, 1)), "block 1025x1x1"),
        (Launch(block=(1, 1, 65)), "block 1x1x65"),
        (Launch(grid=(3, 1, 1), cluster=(2, 1, 1)), "grid 3x1x1 is not a multiple of cluster 2x1x1"),
        (Launch(grid=(16, 1, 1), cluster=(16, 1, 1)), "cluster 16x1x1 has more than 8 CTAs"),
        (Launch(smem_bytes=48 * 1024 + 1), "49153 bytes of dynamic shared memory, 49152 are allowed"),
    ],
)
def test_launch_shape(emulator: Emulator, launch: Launch, message: str):
    with pytest.raises(EmulatorError) as caught:
        run_body(emulator, "", [], launch)
    assert caught.value.code == INVALID_VALUE
    assert message in caught.value.text


def test_required_threads(emulator: Emulator):
    text = module_text("", 0).replace(")\n{", ")\n.reqntid 64, 1, 1\n{")
    kernel = emulator.load(text).kernel("run")
    emulator.use_device("sm_100a")
    run(emulator, kernel, Launch(block=(64, 1, 1)), [], [])
    with pytest.raises(EmulatorError, match=r"block 32x1x1, .reqntid is 64x1x1"):
        run(emulator, kernel, Launch(), [], [])


def test_kernel_of_another_device(emulator: Emulator):
    kernel = emulator.load(module_text("", 0, "sm_103a")).kernel("run")
    emulator.use_device("sm_100a")
    with pytest.raises(EmulatorError, match="is for device 2 of the emulator, the current one is 1"):
        run(emulator, kernel, Launch(), [], [])


def test_dynamic_shared_memory_attribute(emulator: Emulator):
    kernel = emulator.load(module_text("", 0)).kernel("run")
    emulator.use_device("sm_100a")
    most = 227 * 1024
    with pytest.raises(EmulatorError, match="at most 232448 are possible"):
        emulator.check(emulator.lib.cuKernelSetAttribute(8, most + 1, kernel, 1))
    emulator.check(emulator.lib.cuKernelSetAttribute(8, most, kernel, 1))
    run(emulator, kernel, Launch(smem_bytes=most), [], [])


def test_device_heap(emulator: Emulator):
    """cuMemAlloc, copies, use by a kernel without registering, red zones, free."""
    address = ctypes.c_uint64()
    emulator.check(emulator.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(128)))
    source = np.arange(32, dtype=np.uint32)
    pointer = ctypes.c_void_p(source.ctypes.data)
    emulator.check(emulator.lib.cuMemcpyHtoDAsync_v2(address, pointer, ctypes.c_size_t(128), None))
    body = "mul.wide.u32 %d0, %tid, 4; add.s64 %d1, %p_0, %d0; red.global.add.u32 [%d1+{offset}], 5;"
    emulator.use_device("sm_100a")
    inside = emulator.load(module_text(body.format(offset=0), 1)).kernel("run")
    run(emulator, inside, Launch(), [address], [])
    result = np.zeros(32, np.uint32)
    pointer = ctypes.c_void_p(result.ctypes.data)
    emulator.check(emulator.lib.cuMemcpyDtoHAsync_v2(pointer, address, ctypes.c_size_t(128), None))
    assert (result == source + 5).all()
    outside = emulator.load(module_text(body.format(offset=4), 1)).kernel("run")
    with pytest.raises(EmulatorError, match="behind the end of 'device allocation of 128 bytes'"):
        run(emulator, outside, Launch(), [address], [])
    ctypes.memset(address.value + 130, 0, 1)
    with pytest.raises(EmulatorError, match="red zone of device allocation"):
        emulator.check(emulator.lib.cuMemFree_v2(address))
    ctypes.memset(address.value + 130, 0xFD, 1)
    emulator.check(emulator.lib.cuMemFree_v2(address))
    with pytest.raises(EmulatorError, match="not the start of an allocation"):
        emulator.check(emulator.lib.cuMemFree_v2(address))


def test_error_report_names_kernel_cta_warp_and_line(emulator: Emulator):
    body = """
      mov.u32 %r0, %ctaid.x;
      setp.eq.u32 %q1, %tid, 40;
      setp.eq.and.u32 %q0, %r0, 2, %q1;
      @%q0 trap;
    """
    with pytest.raises(EmulatorError) as caught:
        run_body(emulator, body, [], Launch(grid=(4, 1, 1), block=(64, 1, 1)))
    assert caught.value.code == ILLEGAL_INSTRUCTION
    line = line_of(module_text(body, 0), "@%q0 trap")
    assert f"kernel run, CTA (2, 0, 0), warp 1, PTX line {line}" in caught.value.text


def test_sessions_do_not_nest(emulator: Emulator):
    emulator.begin([], Schedule())
    with pytest.raises(EmulatorError, match="this thread is in a session"):
        emulator.begin([], Schedule())
    emulator.end()
    with pytest.raises(EmulatorError, match="opdeck_emu_end without opdeck_emu_begin"):
        emulator.end()


def test_wrong_tensor(emulator: Emulator):
    with pytest.raises(EmulatorError, match="tensor 'odd': access must be 1, 2 or 3, got 0"):
        run_body(emulator, "", [Tensor(np.zeros(1, np.uint32), 0, "odd")])
    run_body(emulator, "", [Tensor(np.zeros((0, 4), np.uint32), WRITE)])
