# SPDX-License-Identifier: Apache-2.0
"""explain.py: what `opdeck explain FAMILY` prints of a problem.

Who calls it: the commands of families.
"""

from __future__ import annotations

from opdeck.core.cli.text import print_table
from opdeck.core.operator import Operator, refusal_lines
from opdeck.core.problem import Problem


def print_verdicts(operator: Operator, problem: Problem) -> None:
    """The variants that accept the problem, with their configs, the chosen one first and then in priority order, and a
    line for each reason why others do not."""
    print(problem)
    refusals = operator.explain(problem)
    accepting = [row.variant for row in refusals if not row.reasons]
    chosen = operator.select(problem) if accepting else None
    accepting.sort(key=lambda row: row != chosen)
    rows = [(row.id, "chosen" if row == chosen else "accepts", row.config_text) for row in accepting]
    print_table(("variant", "verdict", "config"), rows)
    print("\n".join(refusal_lines(refusals)))
