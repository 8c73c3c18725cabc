# SPDX-License-Identifier: Apache-2.0
"""`python -m opdeck.core.emulator [options] SCRIPT args...`: runs a Python script with the emulator attached.

The script is one that compiles CuTe DSL kernels and was written for a GPU: where torch is installed, its "cuda" tensors
live on the CPU. A report of each launch goes to stderr. Exits with the script's own status.
"""

from __future__ import annotations

import argparse
import importlib.util
import runpy
import sys
from pathlib import Path

from opdeck.core.arch import GPU_ARCHS
from opdeck.core.emulator.attach import CallReport, attach
from opdeck.core.errors import OpdeckError


def main() -> None:
    """Parses sys.argv and runs the script in this process."""
    parser = argparse.ArgumentParser("python -m opdeck.core.emulator", description="Runs a script on the emulator.")
    parser.add_argument("--arch", default="sm_100a", choices=[row.name for row in GPU_ARCHS])
    parser.add_argument("--schedule", help="eager, lazy or random[:SEED]; when asynchronous work completes")
    parser.add_argument("--hazards", choices=("on", "off", "strict"), help="whether to look for hazards")
    parser.add_argument("script", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        attachment = attach(options.arch, schedule=options.schedule, hazards=options.hazards)
    except OpdeckError as error:
        parser.error(str(error))
    attachment.on_report = _print_report
    if importlib.util.find_spec("torch") is not None:
        from opdeck.core.emulator.cuda_on_cpu import redirect_cuda

        redirect_cuda(attachment)
    sys.argv = [str(options.script), *options.args]
    sys.path[0] = str(options.script.resolve().parent)  # as `python SCRIPT` has it
    runpy.run_path(str(options.script), run_name="__main__")


def _print_report(report: CallReport) -> None:
    print(report, file=sys.stderr)


if __name__ == "__main__":
    main()
