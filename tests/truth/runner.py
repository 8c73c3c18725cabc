# SPDX-License-Identifier: Apache-2.0
"""Runs one unit kernel on a `Driver`, real or emulated, and returns what it wrote."""

from __future__ import annotations

import numpy as np
from driver import Driver
from elementwise import NUM_ELEMS, NUM_THREADS, Unit
from tensor_units import MAP_TYPES, SMEM_BYTES, SWIZZLES, TmaUnit, WgmmaUnit


def run_unit(driver: Driver, unit: Unit, num_elems: int = NUM_ELEMS) -> np.ndarray:
    """(num_elems, 2) uint32: words d and e of each thread."""
    words = unit.input_words()[:num_elems]
    source, target = driver.alloc(words.nbytes), driver.alloc(num_elems * 8)
    try:
        driver.upload(source, words)
        driver.launch(driver.load(unit.ptx), num_elems // NUM_THREADS, NUM_THREADS, [source, target])
        return driver.download(target, np.zeros((num_elems, 2), np.uint32))
    finally:
        driver.free_all()


def encode_map(driver: Driver, unit: TmaUnit) -> bytes:
    """The tensor map of the unit, at base address 0x10000000, as a real driver encodes it."""
    return driver.encode_tiled(
        0x10000000,
        MAP_TYPES[unit.dtype][0],
        unit.dims,
        unit.strides_bytes,
        unit.box,
        unit.elem_strides or (1,) * len(unit.dims),
        SWIZZLES[unit.swizzle],
    )


def run_tma(driver: Driver, unit: TmaUnit, tensor_map: bytes) -> np.ndarray:
    """Bytes of shared memory after a load, of global memory after a store or reduction."""
    smem, tensor = unit.smem_image(), unit.global_image()
    source, target, dump = driver.alloc(SMEM_BYTES), driver.alloc(len(tensor)), driver.alloc(SMEM_BYTES)
    try:
        driver.upload(source, smem)
        driver.upload(target, tensor)
        driver.upload(dump, np.zeros(SMEM_BYTES, np.uint8))
        based = target.to_bytes(8, "little") + tensor_map[8:]
        driver.launch(driver.load(unit.ptx), 1, NUM_THREADS, [source, dump, 0, based])
        where, size = (dump, SMEM_BYTES) if unit.op == "load" else (target, len(tensor))
        return driver.download(where, np.zeros(size, np.uint8))
    finally:
        driver.free_all()


def run_wgmma(driver: Driver, unit: WgmmaUnit) -> np.ndarray:
    """(num_d_regs, 128) uint32: register r of thread t."""
    source, target, desc = driver.alloc(SMEM_BYTES), driver.alloc(unit.num_d_regs * 512), driver.alloc(16)
    try:
        driver.upload(source, unit.smem_image())
        driver.upload(desc, np.array(unit.descriptors(), np.uint64))
        driver.launch(driver.load(unit.ptx), 1, NUM_THREADS, [source, target, desc, bytes(128)])
        return driver.download(target, np.zeros((unit.num_d_regs, 128), np.uint32))
    finally:
        driver.free_all()
