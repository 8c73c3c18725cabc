# SPDX-License-Identifier: Apache-2.0
"""Runs flash-attention-4's CuTe DSL kernels, unchanged, on the emulator and prints what came out as a table.

Usage: python benchmarks/emulator_peers.py [--only PATTERN]
Needs torch, flash-attn-4 and what that imports (quack-kernels, triton). Inputs: normal, bf16; the reference is float64.
A case is a process of its own. Its hazards are those that the detector stops for; it is then run without them.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import json
import math
import os
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """shape: batches, queries, keys, query heads, key heads, head dim."""

    direction: str
    arch: str
    schedule: str
    shape: tuple[int, int, int, int, int, int]
    causal: bool = False

    @property
    def name(self) -> str:
        mask = ", causal" if self.causal else ""
        return f"{self.direction} {self.arch} {','.join(map(str, self.shape))}{mask} {self.schedule}"


CASES = (
    Case("forward", "sm_100a", "eager", (1, 256, 256, 2, 2, 128)),
    Case("forward", "sm_100a", "random:1", (1, 256, 256, 4, 2, 128), causal=True),
    Case("forward", "sm_100a", "lazy", (1, 200, 300, 2, 2, 64), causal=True),
    Case("forward", "sm_100a", "eager", (1, 256, 256, 2, 2, 256)),
    Case("forward", "sm_100a", "eager", (1, 1024, 1024, 1, 1, 128)),
    Case("forward", "sm_103a", "eager", (1, 256, 256, 2, 2, 128), causal=True),
    Case("backward", "sm_100a", "eager", (1, 256, 256, 2, 2, 128)),
    Case("backward", "sm_100a", "random:1", (1, 256, 256, 4, 2, 128), causal=True),
    Case("backward", "sm_100a", "eager", (1, 256, 256, 2, 2, 64), causal=True),
    Case("forward", "sm_90a", "eager", (1, 256, 256, 2, 2, 128), causal=True),
    Case("backward", "sm_90a", "eager", (1, 256, 256, 2, 2, 128), causal=True),
)


def attention(case: Case, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """O and the LSE in float64; q, k, v: (batch, sequence, head, dim)."""
    import torch

    _, num_queries, num_keys, q_heads, k_heads, head_dim = case.shape
    k, v = (x.repeat_interleave(q_heads // k_heads, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(head_dim)
    if case.causal:
        last_key = torch.arange(num_queries)[:, None] + num_keys - num_queries
        scores = scores.masked_fill(torch.arange(num_keys)[None] > last_key, -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


def relative_errors(case: Case) -> dict[str, float]:
    """||x - ref|| / ||ref|| of what the kernel gives."""
    import torch
    from flash_attn.cute import interface

    torch.manual_seed(0)
    batches, num_queries, num_keys, q_heads, k_heads, head_dim = case.shape
    shapes = ((num_queries, q_heads), (num_keys, k_heads), (num_keys, k_heads), (num_queries, q_heads))
    q, k, v, d_o = (torch.randn(batches, rows, heads, head_dim).bfloat16() for rows, heads in shapes)
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    o, lse = attention(case, *wide)
    if case.direction == "forward":
        names = ("o", "lse")
        got = interface._flash_attn_fwd(q, k, v, causal=case.causal, return_lse=True)[:2]
        wanted = [o, lse]
    else:
        names = ("dq", "dk", "dv")
        o.backward(d_o.double())
        forward = (o.detach().bfloat16(), d_o, lse.detach().float().contiguous())
        got = interface._flash_attn_bwd(q, k, v, *forward, causal=case.causal)[:3]
        wanted = [x.grad for x in wide]
    pairs = zip(names, got, wanted, strict=True)
    return {name: float((x.double() - want).norm() / want.norm()) for name, x, want in pairs}


def run_case(case: Case, hazards: str) -> dict[str, Any]:
    """What came out, in this process: errors, the seconds of the longest kernel, and what stopped it."""
    from opdeck.core.emulator import attach
    from opdeck.core.emulator.cuda_on_cpu import redirect_cuda

    attachment = attach(case.arch, schedule=case.schedule, hazards=hazards)
    importlib.import_module("torch._dynamo")  # before the redirection: it looks for GPUs of its own

    redirect_cuda(attachment)
    outcome: dict[str, Any] = {"errors": {}, "stopped": ""}
    try:
        outcome["errors"] = relative_errors(case)
    except Exception as error:
        traceback.print_exc()
        outcome["stopped"] = re.sub(r"kernel kernel_\S+ ", "", " ".join(str(error).split()))
    outcome["seconds"] = max((report.seconds for report in attachment.reports), default=0.0)
    return outcome


def in_process(case: Case, hazards: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--only", case.name, "--hazards", hazards]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"errors": {}, "stopped": "the process died", "seconds": 0.0}


def main() -> None:
    """Prints a table of the cases that --only matches."""
    parser = argparse.ArgumentParser(description="Runs flash-attention-4 on the emulator.")
    parser.add_argument("--only", default="*", help="names of cases, as a shell pattern")
    parser.add_argument("--hazards", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in CASES if fnmatch.fnmatchcase(case.name, options.only)]
    if options.hazards is not None:
        print(json.dumps(run_case(cases[0], options.hazards)))
        return
    print("| kernel | relative error | hazards | seconds |\n|---|---|---|---|", flush=True)
    for case in cases:
        outcome = in_process(case, "on")
        hazard = outcome["stopped"]
        if hazard:
            outcome = in_process(case, "off")
        errors = ", ".join(f"{name} {error:.1e}" for name, error in outcome["errors"].items())
        print(
            f"| {case.name} | {errors or outcome['stopped']} | {hazard or 'none'} | {outcome['seconds']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
