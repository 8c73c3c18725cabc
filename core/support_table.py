# SPDX-License-Identifier: Apache-2.0
"""support_table.py: the rows of all families in short, as a Markdown table.

Who calls it: `opdeck list --table`, and the test that keeps README.md's table true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdeck.core.registry import Registry
    from opdeck.core.variant import Variant

_HEADER = ("family", "arch", "types", "head dims", "masks, activations")


def support_table(registry: Registry) -> str:
    """One line a family and arch: its types (of A*B each), head dims and fusions."""
    groups: dict[tuple[str, str], list[Variant]] = {}
    for row in registry.variants():
        if "." not in row.fusion_name:  # a third party's mask is not of this table
            groups.setdefault((row.family, row.arch), []).append(row)
    lines = [_HEADER, tuple("---" for _ in _HEADER)]
    for (family, arch), rows in groups.items():
        dims = _unique(map(_head_dims, rows))
        types = _unique(word for row in rows for word in row.dtype.split("*"))
        lines.append((family, arch, types, dims, _unique(row.fusion_name for row in rows)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _head_dims(row: Variant) -> str:
    """Of q and k, and behind a slash of v where it has another; "<=" where they may be smaller."""
    d_qk, d_v = (_limit(row, name) for name in ("dqk", "dv"))
    if d_qk is None:
        return "any"
    return ("" if row.static_dims else "<= ") + (str(d_qk) if d_v == d_qk else f"{d_qk}/{d_v}")


def _limit(row: Variant, field: str) -> int | None:
    """What a field is at most, by the row's rules."""
    return next((rule.values[0] for rule in row.accept if rule.field == field and rule.op in ("eq", "le")), None)


def _unique(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
