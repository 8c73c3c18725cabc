# SPDX-License-Identifier: Apache-2.0
"""cli.py: `opdeck aot plan` and `opdeck aot build`.

Who calls it: opdeck.core.cli mounts `app`; it also prints an OpdeckError as one message and exits with 1.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opdeck.aot.builder import build, without_spills
from opdeck.aot.plan import Rows, Selection, plan, stand_ins
from opdeck.core.cli.text import print_table
from opdeck.core.registry import registry

app = typer.Typer(help="Compile kernels ahead of time into packs.", no_args_is_help=True)

# Each may be given again or hold several, separated by commas; not --fusion, whose names have commas in them.
Families = Annotated[list[str] | None, typer.Option("--family", help="Operator families, a,b. Default: all.")]
Archs = Annotated[list[str] | None, typer.Option("--arch", help="sm_100a,sm_103a,sm_90a or some. Default: all.")]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", help="Element types of rows, a,b. Default: all.")]
Fusions = Annotated[
    list[str] | None, typer.Option("--fusion", help="Canonical name, 'none' without one; repeatable. Default: all.")
]
Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", help="Only kernels of these plugins' families, and with their fusions.")
]
Variants = Annotated[
    list[str] | None, typer.Option("--variant", help="Only those of --rows whose ids fit a shell pattern, a,b.")
]
RowsOption = Annotated[
    Rows, typer.Option("--rows", help="What packs hold unasked, or all types, head dims and schedules.")
]


@app.command("plan")
def plan_command(
    family: Families = None,
    arch: Archs = None,
    dtype: Dtypes = None,
    fusion: Fusions = None,
    plugin: Plugins = None,
    rows: RowsOption = Rows.DEFAULT,
    variant: Variants = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of variants.")] = False,
) -> None:
    """List the variants that `aot build` would compile with the same options."""
    narrowed = _split(family), _split(arch), _split(dtype), tuple(fusion or ()), _split(plugin)
    planned = plan(registry, Selection(*narrowed, rows, _split(variant)))
    if count:
        print(len(planned))
        return
    header = ("variant", "arch", "dtype", "fusion", "config")
    print_table(header, [(row.id, row.arch, row.dtype, row.fusion_name, row.config_text) for row in planned])


@app.command("build")
def build_command(
    family: Families = None,
    arch: Archs = None,
    dtype: Dtypes = None,
    fusion: Fusions = None,
    plugin: Plugins = None,
    rows: RowsOption = Rows.DEFAULT,
    variant: Variants = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the pack to.")] = Path("opdeck-packs"),
    name: Annotated[str, typer.Option("--name", help="Name of the pack.")] = "opdeck",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Compiling processes. Default: the cores.")
    ] = None,
) -> None:
    """Compile the variants that `aot plan` lists into OUT/NAME.opdeck.so.

    A kernel that spills registers is not packed. Another that serves all its problems is, in its place, and a line says
    which; the build fails where there is none, and where --variant asks for the one that spills.
    """
    narrowed = _split(family), _split(arch), _split(dtype), tuple(fusion or ()), _split(plugin)
    planned = plan(registry, Selection(*narrowed, rows, _split(variant)))
    schemas = {row.family: registry.schema(row.family) for row in planned}
    begin = time.monotonic()
    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("", total=len(planned))

        def show(num_done: int, num_all: int, variant_id: str) -> None:
            bar.update(task, completed=num_done, total=num_all, description=variant_id)

        others = (lambda row: ()) if variant else partial(stand_ins, registry)
        kept, left_out = without_spills(planned, schemas, others, jobs, show)
        pack_path = build(kept, schemas, out, name, jobs, show)
    for row, stand_in in left_out.items():
        print(f"{row.id} spills: {stand_in.id} in its place")
    size_kib = pack_path.stat().st_size / 1024
    print(f"{pack_path}: {len(kept)} variants, {size_kib:.0f} KiB, {time.monotonic() - begin:.1f} s")


def _split(options: list[str] | None) -> tuple[str, ...]:
    return tuple(word for option in options or () for word in option.split(","))
