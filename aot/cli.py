# SPDX-License-Identifier: Apache-2.0
"""cli.py: `opdeck aot plan` and `opdeck aot build`.

Who calls it: opdeck.core.cli mounts `app`; it also prints an OpdeckError as one message and exits with 1.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from opdeck.aot.builder import build
from opdeck.aot.plan import Selection, plan
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
    list[str] | None, typer.Option("--plugin", help="Only what these plugins offer, their fusions included.")
]


@app.command("plan")
def plan_command(
    family: Families = None,
    arch: Archs = None,
    dtype: Dtypes = None,
    fusion: Fusions = None,
    plugin: Plugins = None,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of variants.")] = False,
) -> None:
    """List the variants that `aot build` would compile with the same options."""
    rows = plan(registry, _selection(family, arch, dtype, plugin, fusions=fusion))
    if count:
        print(len(rows))
        return
    header = ("variant", "arch", "dtype", "fusion", "config")
    print_table(header, [(row.id, row.arch, row.dtype, row.fusion_name, row.config_text) for row in rows])


@app.command("build")
def build_command(
    family: Families = None,
    arch: Archs = None,
    dtype: Dtypes = None,
    fusion: Fusions = None,
    plugin: Plugins = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the pack to.")] = Path("opdeck-packs"),
    name: Annotated[str, typer.Option("--name", help="Name of the pack.")] = "opdeck",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Compiling processes. Default: the cores.")
    ] = None,
) -> None:
    """Compile the variants that `aot plan` lists into OUT/NAME.opdeck.so."""
    rows = plan(registry, _selection(family, arch, dtype, plugin, fusions=fusion))
    schemas = {row.family: registry.schema(row.family) for row in rows}
    begin = time.monotonic()
    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("", total=len(rows))

        def show(num_done: int, num_all: int, variant_id: str) -> None:
            bar.update(task, completed=num_done, total=num_all, description=variant_id)

        pack_path = build(rows, schemas, out, name, jobs, show)
    size_kib = pack_path.stat().st_size / 1024
    print(f"{pack_path}: {len(rows)} variants, {size_kib:.0f} KiB, {time.monotonic() - begin:.1f} s")


def _selection(
    families: list[str] | None,
    archs: list[str] | None,
    dtypes: list[str] | None,
    plugins: list[str] | None,
    *,
    fusions: list[str] | None,
) -> Selection:
    return Selection(_split(families), _split(archs), _split(dtypes), tuple(fusions or ()), _split(plugins))


def _split(options: list[str] | None) -> tuple[str, ...]:
    return tuple(word for option in options or () for word in option.split(","))
