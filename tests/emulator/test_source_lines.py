# SPDX-License-Identifier: Apache-2.0
"""Reports name the source file and line of the PTX's .file and .loc, of both sides of a race."""

from __future__ import annotations

import pytest
from emulator_driver import Emulator, EmulatorError, Launch, Schedule, run_body

DECLARATIONS = '.file 1 "/src/kernel.py"\n.file 2 "role.py", 1700000000, 12\n.shared .align 8 .b64 word;\n'


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (".loc 2 7 3\n st.shared.b32 [word+16384], 1;", ["(role.py:7), lanes 0xffffffff, `st.shared.b32`"]),
        (
            "setp.lt.u32 %q0, %tid, 32;\n.loc 1 41 9\n@%q0 st.shared.b32 [word], 1;\n"
            ".loc 2 9 1, function_name $L1, inlined_at 1 44 5\n@!%q0 st.shared.b32 [word], 2;",
            ["(role.py:9), lanes", "`st.shared.b32` at PTX line 21 (/src/kernel.py:41) of warp 0"],
        ),
        (
            "setp.lt.u32 %q0, %tid, 32;\n.loc 1 50 1\n@%q0 bar.sync 3, 64;",
            ["(/src/kernel.py:50), lanes 0xffffffff, `bar.sync` waits for named barrier 3"],
        ),
    ],
    ids=["fault", "hazard", "deadlock"],
)
def test_report_names_the_source(emulator: Emulator, body: str, places: list[str]):
    with pytest.raises(EmulatorError) as caught:
        run_body(
            emulator,
            body,
            [],
            Launch(block=(64, 1, 1)),
            Schedule(hazards=1),
            target="sm_90a",
            declarations=DECLARATIONS,
        )
    for place in places:
        assert place in caught.value.text
