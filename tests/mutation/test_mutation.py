# SPDX-License-Identifier: Apache-2.0
"""A seeded sample of the mutants of each kernel: none survives. full_run.py judges them all."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import pytest
from subjects import Subject, subjects

from opdeck.core.mutation.gate import Fate, MutationGate
from opdeck.core.mutation.mutants import Rule, Statement

SEED = 1
MUTANTS_PER_KERNEL = 8

SUBJECTS = subjects()
EVERY_KERNEL = pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.variant.id)


@functools.cache
def gate(subject: Subject) -> MutationGate:
    return MutationGate(subject.variant, subject.problems)


@pytest.mark.slow
@EVERY_KERNEL
def test_none_of_a_sample_survives(subject: Subject):
    sample = random.Random(SEED).sample(gate(subject).mutants, MUTANTS_PER_KERNEL)
    verdicts = [gate(subject).judge(mutant) for mutant in sample]
    assert [verdict for verdict in verdicts if verdict.fate is Fate.SURVIVED] == []
    assert any(verdict.fate is Fate.CAUGHT for verdict in verdicts)


def unchanged(statement: Statement) -> str:
    return f"{statement.guard}{statement.opcode} {statement.operands};"


@EVERY_KERNEL
def test_a_mutant_that_lacks_nothing_is_vacuous(subject: Subject):
    """Neither the results nor the happens-before fingerprint depend on the run."""
    wait = next(mutant for mutant in gate(subject).mutants if mutant.rule.kind == "mbarrier wait")
    verdict = gate(subject).judge(replace(wait, rule=Rule("nothing", wait.rule.opcode, unchanged)))
    assert (verdict.fate, verdict.reason) == (Fate.VACUOUS, "same results, same happens-before order")


@EVERY_KERNEL
def test_a_missing_arrive_is_a_deadlock(subject: Subject):
    arrive = next(mutant for mutant in gate(subject).mutants if "expect_tx" in mutant.statement.opcode)
    verdict = gate(subject).judge(arrive)
    assert (verdict.fate, verdict.reason) == (Fate.CAUGHT, "deadlock")


@EVERY_KERNEL
def test_a_missing_fence_is_a_hazard(subject: Subject):
    """But where a cluster's barrier follows, which releases initialised mbarriers, too."""
    kinds = {mutant.rule.kind: mutant for mutant in gate(subject).mutants}
    verdict = gate(subject).judge(kinds["mbarrier_init fence"])
    if "cluster barrier arrive" in kinds:
        assert (verdict.fate, verdict.reason) == (Fate.VACUOUS, "same results, same happens-before order")
    else:
        assert (verdict.fate, verdict.reason) == (Fate.CAUGHT, "hazard [missing-mbarrier-init-fence]")
