# SPDX-License-Identifier: Apache-2.0
"""rates.py: what the units of one SM do in a clock, each with its source. The only table of them.

Who calls it: bounds.py. Data alone. A rate whose source begins with "assumption" was found in no document of
NVIDIA's; nothing here was measured by this project on Blackwell.
"""

from __future__ import annotations

from dataclasses import dataclass

GUIDE = "CUDA C++ Programming Guide, throughput of native arithmetic instructions"
HOPPER = "NVIDIA H100 Tensor Core GPU Architecture white paper"
FA4 = "FlashAttention-4 (Zadouri et al., 2026), feeds and speeds of B200"
ULTRA = "NVIDIA blog, Making Softmax More Efficient with NVIDIA Blackwell Ultra: twice the rate of MUFU.EX2"
SAME = "assumption: as on sm_90a"


@dataclass(frozen=True)
class Rate:
    """per_clk: of the unit's work, which bounds.py says what it is, in one SM and clock."""

    per_clk: float
    source: str


# Lanes in a clock, unless the unit's name says otherwise.
RATES: dict[str, dict[str, Rate]] = {
    "sm_90a": {
        "issue (warp instructions)": Rate(4, f"{HOPPER}: 4 warp schedulers"),
        "mufu": Rate(16, f"{GUIDE}, 9.0"),
        "fma": Rate(128, f"{GUIDE}, 9.0"),
        "alu": Rate(64, f"{GUIDE}, 9.0: compare, minimum, maximum, shifts, logic"),
        "shuffle": Rate(32, f"{GUIDE}, 9.0"),
        "shared memory (bytes)": Rate(128, f"{GUIDE}: 32 banks of 4 bytes"),
        "global memory, no L2 (bytes)": Rate(4.8e12 / (132 * 1.83e9), "NVIDIA H200: 4.8 TB/s; 132 SMs at 1.83 GHz"),
    },
    "sm_100a": {
        "issue (warp instructions)": Rate(4, SAME),
        "mufu": Rate(16, FA4),
        "fma": Rate(128, f"{FA4}; assumption: a pair of f32x2 counts as two"),
        "alu": Rate(64, SAME),
        "shuffle": Rate(32, SAME),
        "shared memory (bytes)": Rate(128, FA4),
        "tensor memory (bytes)": Rate(512, "assumption: 4 bytes a lane of 128 and clock, either way"),
        "global memory, no L2 (bytes)": Rate(
            8e12 / (148 * 1.85e9), "NVIDIA B200 datasheet: 8 TB/s; 148 SMs, assumed at 1.85 GHz"
        ),
    },
}
RATES["sm_103a"] = RATES["sm_100a"] | {
    "mufu": Rate(32, f"{ULTRA}; assumption: of the other functions too"),
    "global memory, no L2 (bytes)": Rate(
        8e12 / (148 * 1.85e9), "NVIDIA B300 datasheet: 8 TB/s; assumption: 148 SMs at 1.85 GHz, as of B200"
    ),
}

# Multiply-accumulates of MMAs in a clock, by what the opcode contains; the first that fits counts.
_HOPPER_MACS = f"{HOPPER}: dense peak of an SM"
_BLACKWELL_MACS = "NVIDIA B200 datasheet: dense 9, 4.5, 2.25 and 1.1 PFLOPS over 148 SMs at 1.85 GHz, a power of two"
_ULTRA_MACS = "NVIDIA B300 datasheet: dense FP4 14 PFLOPS, some 1.5 times that of B200; by the MMA of K 96 for 64"
MMA_MACS: dict[str, tuple[tuple[str, Rate], ...]] = {
    "sm_90a": (
        (".tf32", Rate(1024, _HOPPER_MACS)),
        (".e4m3", Rate(4096, _HOPPER_MACS)),
        (".e5m2", Rate(4096, _HOPPER_MACS)),
        (".s8", Rate(4096, _HOPPER_MACS)),
        (".u8", Rate(4096, _HOPPER_MACS)),
        ("", Rate(2048, _HOPPER_MACS)),
    ),
    "sm_100a": (
        ("kind::tf32", Rate(2048, _BLACKWELL_MACS)),
        ("kind::mxf8f6f4", Rate(8192, _BLACKWELL_MACS)),
        ("kind::f8f6f4", Rate(8192, _BLACKWELL_MACS)),
        ("kind::i8", Rate(8192, _BLACKWELL_MACS)),
        ("kind::mxf4", Rate(16384, _BLACKWELL_MACS)),
        ("", Rate(4096, _BLACKWELL_MACS)),
    ),
}
MMA_MACS["sm_103a"] = (  # tcgen05.mma has no kind::i8 there
    ("kind::mxf4", Rate(24576, _ULTRA_MACS)),
    *(row for row in MMA_MACS["sm_100a"] if row[0] not in ("kind::mxf4", "kind::i8")),
)
