# SPDX-License-Identifier: Apache-2.0
"""Chunks of tensor memory between a warpgroup's registers and its 128 lanes, one row a thread.

Called by: the roles of sm100 kernels that read or write tensor memory.
Source: PTX ISA 9.x, "tcgen05.ld/st", shape .32x32b: thread t of warp w reaches lane 32 (w % 4) + t.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import tcgen05

LANES = 128
LANE_STRIDE = 1 << 16


def tmem_tensor(base: cute.Pointer, first_col: Any, cols: int) -> cute.Tensor:
    """(128, cols) 32-bit words of tensor memory from column `first_col`."""
    return cute.make_tensor(base + first_col, cute.make_layout((LANES, cols), stride=(LANE_STRIDE, 1)))


def warp_uniform(base: cute.Pointer) -> cute.Pointer:
    """The same address in a uniform register: loads and stores take it from there alone."""
    address = cute.arch.make_warp_uniform(base.toint())
    return cute.make_ptr(base.dtype, address, cute.AddressSpace.tmem, assumed_align=base.alignment)


class RowChunks:
    """Copies `cols` consecutive columns of a thread's row at a time, from any column of a (128, n) tensor.

    row: the thread's, or that of any other lane of the warp. Uniform registers take the address if it is in one.
    """

    def __init__(self, tensor: cute.Tensor, cols: int, row: Int32) -> None:
        self.cols = cols
        chunk = cute.make_tensor(tensor.iterator, cute.make_layout((LANES, cols), stride=(LANE_STRIDE, 1)))
        repetition = tcgen05.copy.Repetition(cols)
        load_atom = cute.make_copy_atom(tcgen05.copy.Ld32x32bOp(repetition), Float32)
        store_atom = cute.make_copy_atom(tcgen05.copy.St32x32bOp(repetition), Float32)
        self.tiled_load = tcgen05.make_tmem_copy(load_atom, chunk)
        self.tiled_store = tcgen05.make_tmem_copy(store_atom, chunk)
        rows = cute.make_identity_tensor((LANES, cols))
        load, store = self.tiled_load.get_slice(row), self.tiled_store.get_slice(row)
        self.source, self.target = load.partition_S(chunk), store.partition_D(chunk)
        self.load_shape, self.store_shape = load.partition_D(rows).shape, store.partition_S(rows).shape

    def load(self, first_col: int, registers: cute.Tensor) -> None:
        """Issues the load into `registers` (cols words); they are valid after fence_view_async_tmem_load."""
        source = cute.make_tensor(self.source.iterator + first_col, self.source.layout)
        cute.copy(self.tiled_load, source, cute.make_tensor(registers.iterator, cute.make_layout(self.load_shape)))

    def store(self, registers: cute.Tensor, first_col: int) -> None:
        """Issues the store of `registers` (cols words)."""
        target = cute.make_tensor(self.target.iterator + first_col, self.target.layout)
        cute.copy(self.tiled_store, cute.make_tensor(registers.iterator, cute.make_layout(self.store_shape)), target)


class RowChunksWithMax:
    """Loads as RowChunks does, and the maximum of the words with them (tcgen05.ld.red, sm_103a only)."""

    def __init__(self, tensor: cute.Tensor, cols: int, row: Int32) -> None:
        chunk = cute.make_tensor(tensor.iterator, cute.make_layout((LANES, cols), stride=(LANE_STRIDE, 1)))
        operation = tcgen05.copy.LdRed32x32bOp(tcgen05.copy.Repetition(cols), redOp=tcgen05.TmemLoadRedOp.MAX)
        self.tiled_load = tcgen05.make_tmem_copy(cute.make_copy_atom(operation, Float32), chunk)
        load = self.tiled_load.get_slice(row)
        self.source = load.partition_S(chunk)[None, 0, 0]
        self.shape = load.partition_D(cute.make_identity_tensor((LANES, cols)))[None, 0, 0].shape

    def load(self, first_col: int, registers: cute.Tensor, maximum: cute.Tensor) -> None:
        """Issues the load into `registers` and `maximum` (one word); valid after fence_view_async_tmem_load."""
        source = cute.make_tensor(self.source.iterator + first_col, self.source.layout)
        values = cute.make_tensor(registers.iterator, cute.make_layout(self.shape))
        cute.copy_atom_call(self.tiled_load, source, (values, maximum))
