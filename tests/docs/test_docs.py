# SPDX-License-Identifier: Apache-2.0
"""README.md and docs/: every fenced block of Python, C and console runs, and the support table is the rows'.

A block whose first line is `# file: NAME` or `/* file: NAME */` is a file of the reader's; a pyproject.toml is
installed for its entry points. Blocks of one page share a folder, and its Python blocks a process.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from opdeck.core import registry
from opdeck.core.support_table import support_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^(?:#|/\*) file: (\S+)")


def _install(pyproject: str, folder: pathlib.Path) -> None:
    """What pip would leave of the distribution's metadata."""
    project = tomllib.loads(pyproject)["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _environment(folder: pathlib.Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def _run(command: list[str], folder: pathlib.Path) -> None:
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", [p for p in PAGES if _BLOCK.search(p.read_text())], ids=lambda page: page.name)
def test_blocks_run(page: pathlib.Path, tmp_path: pathlib.Path) -> None:
    python: list[str] = []
    for language, text in _BLOCK.findall(page.read_text()):
        named = _FILE.match(text)
        if named:
            (tmp_path / named[1]).write_text(text)
            if named[1] == "pyproject.toml":
                _install(text, tmp_path)
        elif language == "python":
            python.append(text)
        elif language == "console":
            for line in text.splitlines():
                _run(["bash", "-c", line.removeprefix("$ ")], tmp_path)
    if python:
        (tmp_path / "snippets.py").write_text("\n".join(python))
        _run([sys.executable, "snippets.py"], tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_support_table_is_generated() -> None:
    text = (ROOT / "README.md").read_text()
    written = re.search(r"<!-- support table:.*?-->\n(.*?)<!-- end of the support table -->", text, re.DOTALL)
    assert written is not None
    assert written[1].strip() == support_table(registry).strip(), (
        "run `opdeck list --table` and paste it into README.md"
    )
