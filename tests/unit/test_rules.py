# SPDX-License-Identifier: Apache-2.0
"""Rules: what holds, what the reasons say, and that Python's evaluator and libopdeck's agree on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdeck import abi
from opdeck.core.schema import _HOLDS, Rule

_NUMBER_OF_OP = {op: number for number, op in enumerate(("eq", "ne", "in", "lt", "le", "gt", "ge", "multiple_of"), 1)}


def first_failure_in_c(rules: Sequence[Rule], fields: Mapping[str, int]) -> tuple[int, str]:
    """(index of the first rule that fails, its reason) by libopdeck."""
    ffi, lib = abi.lib()
    kept = []

    def text(value: str) -> object:
        kept.append(ffi.new("char[]", value.encode()))
        return kept[-1]

    c_rules = ffi.new("opdeck_rule[]", len(rules))
    for c_rule, rule in zip(c_rules, rules, strict=True):
        c_rule.field, c_rule.op = text(rule.field), _NUMBER_OF_OP[rule.op]
        c_rule.rhs_field = ffi.NULL if rule.rhs_field is None else text(rule.rhs_field)
        c_rule.rhs_plus = rule.rhs_plus
        when_field, c_rule.when_value = rule.when if rule.when is not None else (None, 0)
        c_rule.when_field = ffi.NULL if when_field is None else text(when_field)
        c_rule.hint = text(rule.hint) if rule.hint else ffi.NULL
        values = rule.values if rule.rhs_divisor == 1 else (rule.rhs_divisor,)
        kept.append(ffi.new("int64_t[]", values))
        c_rule.num_values, c_rule.values = len(values), kept[-1] if values else ffi.NULL
    c_fields = ffi.new("opdeck_field[]", len(fields))
    for c_field, (name, value) in zip(c_fields, fields.items(), strict=True):
        c_field.name, c_field.value = text(name), value
    reason = ffi.new("char[]", 1000)
    failed_idx = lib.opdeck_rules_first_failure(c_rules, len(rules), c_fields, len(fields), reason, 1000)
    return failed_idx, ffi.string(reason).decode()


def first_failure_in_python(rules: Sequence[Rule], fields: Mapping[str, int]) -> tuple[int, str]:
    for rule_idx, rule in enumerate(rules):
        reason = rule.failure(fields)
        if reason is not None:
            return rule_idx, reason
    return len(rules), ""


numbers = st.one_of(st.integers(-3, 16), st.sampled_from([64, 128, 2**31, -(2**63), 2**63 - 1]))
names = st.sampled_from(["b", "sq", "hq", "dtype.T", "has.lse"])


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    op = draw(st.sampled_from(list(_HOLDS)))
    when = draw(st.one_of(st.none(), st.tuples(names, st.integers(0, 1))))
    if op == "in":
        return Rule(draw(names), op, tuple(draw(st.lists(numbers, min_size=1, max_size=3))), when=when)
    if draw(st.booleans()):
        divisor = draw(st.sampled_from([1, 1, 2, 3, 128]))
        return Rule(draw(names), op, rhs_field=draw(names), rhs_divisor=divisor, when=when)
    if draw(st.booleans()):
        return Rule(draw(names), op, rhs_field="small", rhs_plus=draw(st.integers(-2, 2)), when=when)
    return Rule(draw(names), op, (draw(numbers),), when=when, hint=draw(st.sampled_from(["", "larger ones: mla"])))


@settings(deadline=None, max_examples=500)
@given(st.lists(rules(), max_size=4), st.dictionaries(names, numbers, max_size=5), st.integers(-3, 16))
def test_python_and_c_agree(rows: list[Rule], fields: dict[str, int], small: int) -> None:
    if small > 0:  # sums must have 64 bits
        fields = fields | {"small": small}
    assert first_failure_in_python(rows, fields) == first_failure_in_c(rows, fields)


@pytest.mark.parametrize(
    ("rule", "fields", "reason"),
    [
        (Rule("dqk", "in", (64, 128)), {"dqk": 96}, "dqk: got 96, want 64|128"),
        (Rule("dtype.T", "eq", (1,)), {"dtype.T": 2}, "dtype.T: got bf16, want fp16"),
        (Rule("hq", "multiple_of", rhs_field="hk"), {"hq": 3, "hk": 2}, "hq: got 3, want a multiple of hk = 2"),
        (Rule("sq", "ge", (1,)), {}, "sq: not among the fields of the problem"),
        (Rule("hq", "multiple_of", rhs_field="hk"), {"hq": 0, "hk": 0}, None),
        (Rule("hq", "multiple_of", rhs_field="hk"), {"hq": 1, "hk": 0}, "hq: got 1, want a multiple of hk = 0"),
        (Rule("tiles", "eq", rhs_field="m", rhs_divisor=128), {"tiles": 2, "m": 129}, None),
        (
            Rule("tiles", "eq", rhs_field="m", rhs_divisor=128),
            {"tiles": 2, "m": 128},
            "tiles: got 2, want m / 128 rounded up = 1",
        ),
        (Rule("n", "eq", rhs_field="m", rhs_plus=1), {"n": 3, "m": 3}, "n: got 3, want m + 1 = 4"),
        (Rule("b", "eq", (1,), when=("has.x", 1)), {"b": 2, "has.x": 1}, "b: got 2, want 1"),
        (Rule("b", "eq", (1,), hint="more: gen"), {"b": 2}, "b: got 2, want 1 (more: gen)"),
        (Rule("b", "eq", (1,), when=("has.x", 1)), {"b": 2, "has.x": 0}, None),
        (Rule("n", "eq", rhs_field="b", when=("has.x", 0)), {"b": 2, "has.x": 0}, None),  # n is nobody's dim here
        (Rule("scale", "gt", (0,)), {"scale": 0.5}, None),
        (Rule("scale", "gt", (0,)), {"scale": -0.5}, "scale: got -0.5, want > 0"),
    ],
)
def test_reasons(rule: Rule, fields: dict[str, float], reason: str | None) -> None:
    assert rule.failure(fields) == reason
