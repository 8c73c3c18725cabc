# SPDX-License-Identifier: Apache-2.0
"""The edits of a PTX text: one statement gone, all else in its place."""

from __future__ import annotations

import pytest

from opdeck.core.mutation.mutants import mutants

HEAD = """//
.version 9.0
.target sm_100a
.visible .entry k()
{
\t// bar.sync 1; a comment is left alone
"""


def edits(statement: str) -> list[tuple[str, str]]:
    """(kind, what stands in the place of the statement) of each mutant of a text with one statement."""
    ptx = f"{HEAD}{statement}\n\tret;\n}}\n"
    found = list(mutants(ptx))
    for mutant in found:
        assert mutant.line == 1 + HEAD.count("\n")
        assert mutant.edit(ptx).startswith(HEAD)
        assert mutant.edit(ptx).endswith("\tret;\n}\n")
    return [(mutant.rule.kind, mutant.edit(ptx)[len(HEAD) : -len("\n\tret;\n}\n")].strip()) for mutant in found]


DELETED = [
    ("mbarrier arrive", "\tmbarrier.arrive.shared.b64 %rd556, [%r32], %r2107;"),
    ("mbarrier arrive", "\t@%p3 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];"),
    ("expect_tx", "\tmbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 128;"),
    ("mbarrier_init fence", "\tfence.mbarrier_init.release.cluster;"),
    ("proxy fence", "\tfence.proxy.async.shared::cta;"),
    ("fence", "\tfence.acq_rel.cluster;"),
    ("fence", "\tmembar.gl;"),
    ("barrier", "\tbar.sync \t0;"),
    ("barrier", "\tbar.arrive 3, 128;"),
    ("barrier", "\tbarrier.cta.sync.aligned 3, 128;"),
    ("cluster barrier arrive", "\tbarrier.cluster.arrive.release.aligned;"),
    ("cluster barrier wait", "\tbarrier.cluster.wait.acquire.aligned;"),
    ("bulk commit_group", "\tcp.async.bulk.commit_group;"),
    ("bulk wait_group", "\tcp.async.bulk.wait_group.read \t0;"),
    ("cp.async wait", "\tcp.async.wait_all;"),
    ("cp.async commit", "\tcp.async.mbarrier.arrive.noinc.shared.b64 [%r1];"),
    ("wgmma fence", "\twgmma.fence.sync.aligned;"),
    ("wgmma commit_group", "\twgmma.commit_group.sync.aligned;"),
    ("wgmma wait_group", "\twgmma.wait_group.sync.aligned \t0;"),
    ("tcgen05 commit", "\ttcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];"),
    ("tcgen05 wait::ld", "\ttcgen05.wait::ld.sync.aligned;"),
    ("tcgen05 wait::st", "\ttcgen05.wait::st.sync.aligned;"),
    ("tcgen05 fence before", "\ttcgen05.fence::before_thread_sync;"),
    ("tcgen05 fence after", "\ttcgen05.fence::after_thread_sync;"),
]


@pytest.mark.parametrize(("kind", "statement"), DELETED, ids=lambda text: text.split()[0])
def test_an_instruction_is_deleted(kind: str, statement: str):
    assert edits(statement) == [(kind, "")]


@pytest.mark.parametrize("wait", ["try_wait.parity.shared.b64", "test_wait.parity.acquire.cta.shared::cta.b64"])
def test_a_wait_is_true_at_once(wait: str):
    statement = f"\tmbarrier.{wait} P1, [%r1+8], %r2, 10000000; "
    assert edits(statement) == [("mbarrier wait", "setp.eq.u32 P1, 0, 0;")]


def test_an_arrive_with_bytes_is_left_out_whole_and_in_part():
    statement = "\t@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r2+64], %r3;"
    assert edits(statement) == [
        ("mbarrier arrive", ""),
        ("expect_tx of an arrive", "@%p1 mbarrier.arrive.shared.b64 %rd1, [%r2+64];"),
    ]


def test_a_guard_goes_with_its_instruction_or_stays_with_the_edit():
    (mutant,) = mutants("{\n@!%p7 mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 1;\n}")
    assert mutant.edit("{\n@!%p7 mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 1;\n}") == (
        "{\n@!%p7 setp.eq.u32 %p2, 0, 0;\n}"
    )


def test_the_statements_of_one_line_are_told_apart():
    ptx = "{ .reg .pred P1; LAB: mbarrier.try_wait.parity.shared.b64 P1, [%r1], 0; @P1 bra DONE; bar.sync 0; }"
    wait, barrier = mutants(ptx)
    assert wait.edit(ptx) == ptx.replace("mbarrier.try_wait.parity.shared.b64 P1, [%r1], 0", "setp.eq.u32 P1, 0, 0")
    assert barrier.edit(ptx) == ptx.replace("bar.sync 0;", "")


def test_a_statement_over_two_lines_leaves_the_lines_that_follow_in_their_places():
    ptx = "{\nbar.sync\n  0;\nret;\n}"
    (mutant,) = mutants(ptx)
    assert mutant.edit(ptx).splitlines().index("ret;") == ptx.splitlines().index("ret;")


def test_what_orders_no_warps_is_left_alone():
    init, load = "mbarrier.init.shared.b64 [%r1], 1;", "ld.shared.u32 %r1, [bar];"
    for untouched in (init, load, "elect.sync _|%p1, -1;", "bar.warp.sync -1;"):
        assert edits(f"\t{untouched}") == []


def test_a_probe_traps_where_the_instruction_stood():
    ptx = "{\n@%p1 bar.sync 0;\nret;\n}"
    (mutant,) = mutants(ptx)
    assert mutant.probe(ptx) == "{\n@%p1 trap;\nret;\n}"
