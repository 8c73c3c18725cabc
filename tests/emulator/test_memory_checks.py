# SPDX-License-Identifier: Apache-2.0
"""What a kernel may touch: every illegal access stops with a text that names address, tensor and PTX line."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_driver import READ, READWRITE, WRITE, Emulator, EmulatorError, Launch, Tensor, run_body

COPY_ELEMENT = """
  mul.wide.u32 %d0, %tid, 4;
  add.s64 %d1, %p_0, %d0;
  add.s64 %d2, %p_1, %d0;
  ld.global.b32 %r0, [%d1];
  st.global.b32 [%d2], %r0;
"""
ILLEGAL_ADDRESS, MISALIGNED = 700, 716
SMALL = Launch()


def failure(
    emulator: Emulator, body: str, tensors: list[Tensor], launch: Launch = SMALL, **words: str
) -> EmulatorError:
    with pytest.raises(EmulatorError) as caught:
        run_body(emulator, body, tensors, launch, **words)
    return caught.value


def test_copy_of_registered_tensors(emulator: Emulator):
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    report = run_body(emulator, COPY_ELEMENT, [Tensor(x), Tensor(y, WRITE)])
    assert (x == y).all()
    assert (report.num_launches, report.num_ctas) == (1, 1)


def test_read_behind_the_end_names_the_tensor(emulator: Emulator):
    x, y = np.zeros(31, np.uint32), np.zeros(32, np.uint32)
    error = failure(emulator, COPY_ELEMENT, [Tensor(x, READ, "input_x"), Tensor(y, WRITE)])
    assert error.code == ILLEGAL_ADDRESS
    assert "read of 4 bytes" in error.text
    assert "0 bytes behind the end of 'input_x'" in error.text
    assert "ld.global.b32" in error.text


def test_write_before_the_start(emulator: Emulator):
    y = np.zeros(4, np.uint32)
    error = failure(emulator, "st.global.b32 [%p_0+-4], %tid;", [Tensor(y, WRITE, "out")])
    assert error.code == ILLEGAL_ADDRESS
    assert "before 'out'" in error.text


def test_write_to_a_read_only_tensor(emulator: Emulator):
    x = np.zeros(4, np.uint32)
    error = failure(emulator, "st.global.b32 [%p_0], %tid;", [Tensor(x, READ, "q")])
    assert error.code == ILLEGAL_ADDRESS
    assert "'q' is registered for reading only" in error.text
    assert x[0] == 0


@pytest.mark.parametrize(("column", "legal"), [(2, True), (3, False)])
def test_gap_between_rows_of_a_strided_output(emulator: Emulator, column: int, legal: bool):
    storage = np.zeros((4, 8), np.uint32)
    out = Tensor(storage[:, :3], WRITE, "out")
    body = f"st.global.b32 [%p_0+{(8 + column) * 4}], 7;"
    if legal:
        run_body(emulator, body, [out])
        assert storage[1, column] == 7
    else:
        assert "lies between the elements of 'out'" in failure(emulator, body, [out]).text
        assert not storage.any()


def test_access_across_a_row_end(emulator: Emulator):
    storage = np.zeros((4, 8), np.uint32)
    out = Tensor(storage[:, :3], WRITE, "out")
    assert "lies between" in failure(emulator, "mov.b64 %d0, 5; st.global.b64 [%p_0+8], %d0;", [out]).text


def test_negative_strides_and_broadcasts(emulator: Emulator):
    storage = np.arange(16, dtype=np.uint32).reshape(4, 4)
    flipped = Tensor(storage[::-1, 1:3], READ, "flipped")  # its data pointer is the last row
    spread = Tensor(np.broadcast_to(storage[0, :1], (5, 1)), READ, "spread")
    y = np.zeros(2, np.uint32)
    body = """
      ld.global.b32 %r0, [%p_0+-48];
      st.global.b32 [%p_2], %r0;
      ld.global.b32 %r1, [%p_1];
      st.global.b32 [%p_2+4], %r1;
    """
    run_body(emulator, body, [flipped, spread, Tensor(y, WRITE)])
    assert list(y) == [1, 0]
    assert "between" in failure(emulator, "ld.global.b32 %r0, [%p_0+-40];", [flipped]).text


def test_output_is_uninitialised_until_written(emulator: Emulator):
    y = np.zeros(8, np.uint32)
    error = failure(emulator, "ld.global.b32 %r0, [%p_0];", [Tensor(y, WRITE, "out")])
    assert "'out' is an output, and these bytes were not written yet" in error.text
    run_body(
        emulator, "st.global.b32 [%p_0], 3; ld.global.b32 %r0, [%p_0]; st.global.b32 [%p_0+4], %r0;", [Tensor(y, WRITE)]
    )
    assert y[1] == 3
    half_written = "mov.b16 %h0, 1; st.global.b16 [%p_0], %h0; ld.global.b32 %r0, [%p_0];"
    assert "not written yet" in failure(emulator, half_written, [Tensor(y, WRITE)]).text


def test_atomic_on_an_unwritten_output(emulator: Emulator):
    y = np.zeros(8, np.uint32)
    assert "not written yet" in failure(emulator, "red.global.add.u32 [%p_0], 1;", [Tensor(y, WRITE)]).text
    run_body(emulator, "red.global.add.u32 [%p_0], 1;", [Tensor(y, READWRITE)])
    assert y[0] == 32


@pytest.mark.parametrize("access", ["ld.global.b32 %r0, [%p_0+2]", "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%p_0+4]"])
def test_misaligned_access(emulator: Emulator, access: str):
    x = np.zeros(64, np.uint32)
    error = failure(emulator, access + ";", [Tensor(x[-x.ctypes.data // 4 % 4 :])])
    assert error.code == MISALIGNED
    assert "is not aligned to" in error.text


SHARED = ".extern .shared .align 16 .b8 buffer[];"


@pytest.mark.parametrize(
    ("address", "legal"), [("buffer+124", True), ("buffer+128", False), ("0", False), ("16777216", False)]
)
def test_shared_memory_bounds(emulator: Emulator, address: str, legal: bool):
    body = f"ld.shared.b32 %r0, [{address}];"
    launch = Launch(smem_bytes=128)
    if legal:
        run_body(emulator, body, [], launch, declarations=SHARED)
    else:
        assert failure(emulator, body, [], launch, declarations=SHARED).code == ILLEGAL_ADDRESS


def test_parameters_are_read_only_and_bounded(emulator: Emulator):
    x = np.zeros(1, np.uint32)
    generic = "mov.b64 %d0, run_param_0; cvta.param.u64 %d1, %d0;"
    assert "parameter" in failure(emulator, generic + "st.b64 [%d1], %d0;", [Tensor(x)]).text
    assert "parameter" in failure(emulator, generic + "ld.b64 %d2, [%d1+8];", [Tensor(x)]).text


def test_local_memory_is_a_threads_own(emulator: Emulator):
    y = np.zeros(32, np.uint32)
    body = """
      .local .align 16 .b8 stack[16];
      mov.b64 %d0, stack;
      cvta.local.u64 %d1, %d0;
      st.local.b32 [%d0+4], %tid;
      ld.b32 %r0, [%d1+4];
      mul.wide.u32 %d2, %tid, 4;
      add.s64 %d3, %p_0, %d2;
      st.global.b32 [%d3], %r0;
    """
    run_body(emulator, body, [Tensor(y, WRITE)])
    assert (y == np.arange(32)).all()
    assert "local offset 16" in failure(emulator, body + "ld.local.b32 %r1, [%d0+16];", [Tensor(y, WRITE)]).text


def test_constant_and_global_variables(emulator: Emulator):
    y = np.zeros(2, np.uint32)
    declarations = ".const .align 4 .b32 table[2] = {41, 0x2a};\n.global .align 4 .b32 counter = 5;"
    body = """
      ld.const.b32 %r0, [table+4];
      st.global.b32 [%p_0], %r0;
      atom.global.add.u32 %r1, [counter], 1;
      setp.eq.u32 %q0, %tid, 31;
      @%q0 st.global.b32 [%p_0+4], %r1;
    """
    run_body(emulator, body, [Tensor(y, WRITE)], declarations=declarations)
    assert list(y) == [42, 36]
