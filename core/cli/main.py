# SPDX-License-Identifier: Apache-2.0
"""main.py: the `opdeck` command: list, explain, run FAMILY, mx, aot, check-plugin, path.

Who calls it: the console script. Exit status: 0 done and right, 1 an error or a failed verification, 2 a wrong command
line.
"""

from __future__ import annotations

import enum
import importlib.metadata
import sys
from typing import Annotated

import typer

from opdeck.core.cli.devices import NO_GPU_DEVICE
from opdeck.core.cli.text import print_table
from opdeck.core.errors import OpdeckError
from opdeck.core.plugin_check import check_plugin
from opdeck.core.registry import registry
from opdeck.core.support_table import support_table

Family = Annotated[str | None, typer.Argument(help="Operator family; all when left out.")]
Arch = Annotated[str | None, typer.Option("--arch", help="sm_100a, sm_103a, sm_90a or cpu.")]
FusionName = Annotated[str | None, typer.Option("--fusion", help="Canonical name, 'none' without one.")]
AsTable = Annotated[bool, typer.Option("--table", help="The rows in short, as a Markdown table.")]


class Installed(enum.Enum):
    """What `opdeck path` knows."""

    INCLUDE = "include"
    LIB = "lib"


Version = Annotated[bool, typer.Option("--version", help="Print the version and leave.")]

_HELP = "Attention kernels, compiled ahead of time: list, explain, run, build."


def main() -> None:
    """Runs the command; an OpdeckError, or too little memory, is one message on stderr and exit status 1."""
    try:
        command_line()()
    except (OpdeckError, MemoryError) as error:
        print(f"opdeck: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def command_line() -> typer.Typer:
    """The whole command, with a subcommand of `run` and `explain` for each family that has one."""
    from opdeck.aot.cli import app as aot_app
    from opdeck.core.cli.mx import app as mx_app

    # A traceback of rich's would hide the one line that matters.
    app = typer.Typer(pretty_exceptions_enable=False)
    run_app = typer.Typer(no_args_is_help=True, help="Run one problem and verify it against the oracle.")
    explain_app = typer.Typer(no_args_is_help=True, help="Show which variants accept a problem, and why others do not.")
    for name in registry.families():
        for verb, verb_app in (("run", run_app), ("explain", explain_app)):
            command = registry.get(name).command(verb)
            if command is not None:
                verb_app.command(name)(command)
    app.callback(invoke_without_command=True, no_args_is_help=True, help=_HELP)(version_callback)
    app.command("list")(list_command)
    app.command("path")(path_command)
    app.command("check-plugin")(check_plugin_command)
    app.add_typer(explain_app, name="explain")
    app.add_typer(run_app, name="run")
    app.add_typer(aot_app, name="aot")
    app.add_typer(mx_app, name="mx")
    return app


def version_callback(version: Version = False) -> None:
    """The options before any command."""
    if version:
        print(f"opdeck {importlib.metadata.version('opdeck')}")
        raise typer.Exit


def list_command(family: Family = None, arch: Arch = None, fusion: FusionName = None, table: AsTable = False) -> None:
    """List the variants, in priority order."""
    if table:
        print(support_table(registry), end="")
        return
    rows = registry.variants(family, arch, fusion)
    cells = [(row.id, row.arch, row.dtype, row.fusion_name, row.config_text) for row in rows]
    print_table(("variant", "arch", "dtype", "fusion", "config"), cells)


def check_plugin_command(
    plugin: Annotated[str, typer.Argument(help="Name of the plugin's entry point.")],
    device: Annotated[str, typer.Option("--device", help="Where kernels run.")] = NO_GPU_DEVICE,
) -> None:
    """Check the fusions of a plugin: names, leaves, tile ranges, and kernels against `reference`. Status 1: a fault."""
    is_right = True
    for finding in check_plugin(registry, plugin, device):
        print(f"{finding.fusion}: {finding.check}: {finding.problem or 'ok'}", flush=True)
        is_right &= finding.problem is None
    print("PASS" if is_right else "FAIL")
    if not is_right:
        raise typer.Exit(1)


def path_command(what: Annotated[Installed, typer.Argument(help="Which folder.")]) -> None:
    """Print the folder of opdeck.h (include) or of libopdeck.so and libopdeck_emu.so (lib)."""
    from opdeck import abi

    print(abi.include_dir() if what is Installed.INCLUDE else abi.library_path().parent)
