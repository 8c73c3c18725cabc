# SPDX-License-Identifier: Apache-2.0
"""pack_source.py: the C source of a pack's tables (pack.h), from the schemas and variants.

Who calls it: builder.py. Data only: opdeck_pack_v1 is in shim.c. PTX comes in by `.incbin`, since C compilers are slow
on string literals of megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opdeck.aot.compile import KernelFacts, entry_name
from opdeck.aot.entry import KIND_NUMBERS, LEAF_KINDS, Param, entry_params
from opdeck.core import dtypes
from opdeck.core.schema import ArgSpec, FamilySchema, Product, Rule, Size, WorkspaceTerm
from opdeck.core.variant import Variant

_ACCESS_NUMBERS = {"read": 1, "write": 2, "readwrite": 3}
_RULE_OP_NUMBERS = {"eq": 1, "ne": 2, "in": 3, "lt": 4, "le": 5, "gt": 6, "ge": 7, "multiple_of": 8}
_DEFAULT_NUMBERS = {"rsqrt": 1, "zero": 2, "one": 3, "num_sms": 4}

_PTX_ROW = """\
__asm__(".section .rodata\\n"
        ".hidden {symbol}\\n"
        ".globl {symbol}\\n"
        "{symbol}: .incbin {path}\\n"
        ".byte 0\\n"
        ".previous\\n");
extern const char {symbol}[];
"""


@dataclass(frozen=True)
class PackVariant:
    """A compiled variant, and the file of its PTX as the C compiler shall find it."""

    variant: Variant
    facts: KernelFacts
    ptx_path: str
    ptx_bytes: int


@dataclass
class _Arrays:
    """Collects static arrays; what `add` returns is the expression that points to one."""

    definitions: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, element: str, rows: Sequence[str]) -> str:
        if not rows:
            return "NULL"
        text = f"[] = {{{', '.join(rows)}}};"
        key = element + text
        if key not in self.names:
            self.names[key] = f"rows{len(self.names)}"
            self.definitions.append(f"static const {element} {self.names[key]}{text}")
        return self.names[key]

    def add_strings(self, strings: Iterable[str]) -> str:
        return self.add("char *const", [_string(text) for text in strings])

    def add_ints(self, ctype: str, values: Iterable[int]) -> str:
        return self.add(ctype, [str(value) for value in values])


@dataclass(frozen=True)
class PackIdentity:
    """What the head of the table says."""

    name: str
    dsl_version: str
    host_triple: str


def pack_source(identity: PackIdentity, schemas: Mapping[str, FamilySchema], variants: Sequence[PackVariant]) -> str:
    """C source of one pack: the tables of `schemas`, by family name, and of `variants`, in priority order."""
    arrays = _Arrays()
    family_idx = {name: idx for idx, name in enumerate(schemas)}
    families = [_family_row(schema, arrays) for schema in schemas.values()]
    declarations: list[str] = []
    variant_rows = []
    for row in variants:
        declarations.append(_declarations(row))
        schema = schemas[row.variant.family]
        variant_rows.append(_variant_row(row, schema, family_idx[row.variant.family], arrays))
    families_array = arrays.add("opdeck_pack_family", families)
    variants_array = arrays.add("opdeck_pack_variant", variant_rows)
    table = _struct(
        struct_size="sizeof(opdeck_pack_table)",
        abi="OPDECK_PACK_ABI",
        name=_string(identity.name),
        dsl_version=_string(identity.dsl_version),
        host_triple=_string(identity.host_triple),
        families=families_array,
        variants=variants_array,
        num_families=len(families),
        num_variants=len(variant_rows),
    )
    parts = [
        '#include "pack.h"',
        *declarations,
        *arrays.definitions,
        f"const opdeck_pack_table opdeck_pack_contents = {table};",
    ]
    return "\n".join(parts) + "\n"


def _string(text: str | None) -> str:
    return "NULL" if text is None else json.dumps(text)


def _struct(**members: object) -> str:
    return "{" + ", ".join(f".{name} = {value}" for name, value in members.items()) + "}"


def _declarations(row: PackVariant) -> str:
    name = entry_name(row.variant)
    functions = (
        f"extern void _mlir_{name}_cuda_init(void **);\n"
        f"extern void _mlir_{name}_cuda_load_to_device(void **);\n"
        f"extern void _mlir_{name}__mlir_ciface_{name}(void **, int32_t);\n"
    )
    return functions + _PTX_ROW.format(
        symbol=f"ptx_{row.variant.id}", path=json.dumps(row.ptx_path).replace('"', '\\"')
    )


def _family_row(schema: FamilySchema, arrays: _Arrays) -> str:
    args = [_arg_row(arg, arrays) for arg in schema.args]
    return _struct(
        name=_string(schema.name),
        args=arrays.add("opdeck_pack_arg", args),
        num_args=len(args),
        num_checks=len(schema.checks),
        checks=_rules(schema.checks, arrays),
        empty=_rules(schema.empty, arrays),
        num_empty=len(schema.empty),
        num_products=len(schema.products),
        products=arrays.add("opdeck_pack_product", [_product_row(product, arrays) for product in schema.products]),
        sizes=arrays.add("opdeck_pack_size", [_size_row(size, arrays) for size in schema.sizes]),
        num_sizes=len(schema.sizes),
    )


def _product_row(product: Product, arrays: _Arrays) -> str:
    counts = _counts(product.counts, arrays)
    return _struct(name=_string(product.name), counts=counts, num_counts=len(product.counts))


def _term_row(term: WorkspaceTerm, arrays: _Arrays) -> str:
    counts = _counts(term.counts, arrays)
    return _struct(factor_bytes=term.num_bytes, counts=counts, num_counts=len(term.counts))


def _counts(counts: Sequence[tuple[str, int]], arrays: _Arrays) -> str:
    return arrays.add(
        "opdeck_pack_count", [_struct(field=_string(field), divisor=divisor) for field, divisor in counts]
    )


def _arg_row(arg: ArgSpec, arrays: _Arrays) -> str:
    numbers = [dtypes.dtype(name).number for name in arg.dtypes] if arg.kind == "tensor" else []
    default_kind, default_field = arg.default if arg.default is not None else (None, None)
    return _struct(
        name=_string(arg.name),
        kind=KIND_NUMBERS[arg.kind],
        access=_ACCESS_NUMBERS[arg.access],
        optional=int(arg.optional),
        rank=len(arg.dims),
        dims=arrays.add_strings(arg.dims),
        dtype_symbol=_string(arg.dtype_symbol or None),
        num_dtypes=len(numbers),
        align_bytes=arg.align_bytes,
        dtypes=arrays.add_ints("int32_t", numbers),
        contiguous_last=2 if arg.transposable else int(arg.contiguous_last),
        default_kind=_DEFAULT_NUMBERS[default_kind] if default_kind is not None else 0,
        default_field=_string(default_field or None),
    )


def _size_row(size: Size, arrays: _Arrays) -> str:
    count = _struct(field=_string(size.field), divisor=size.divisor)
    rules = _rules(size.when, arrays)
    return _struct(name=_string(size.name), count=count, rules=rules, num_rules=len(size.when), plus=size.plus)


def _rules(rules: Sequence[Rule], arrays: _Arrays) -> str:
    return arrays.add("opdeck_rule", [_rule_row(rule, arrays) for rule in rules])


def _rule_row(rule: Rule, arrays: _Arrays) -> str:
    values = rule.values if rule.rhs_divisor == 1 else (rule.rhs_divisor,)
    return _struct(
        field=_string(rule.field),
        op=_RULE_OP_NUMBERS[rule.op],
        num_values=len(values),
        values=arrays.add_ints("int64_t", values),
        rhs_field=_string(rule.rhs_field),
        rhs_plus=rule.rhs_plus,
        when_field=_string(rule.when[0] if rule.when is not None else None),
        when_value=rule.when[1] if rule.when is not None else 0,
        hint=_string(rule.hint or None),
    )


def _variant_row(row: PackVariant, schema: FamilySchema, family_idx: int, arrays: _Arrays) -> str:
    variant, facts = row.variant, row.facts
    name = entry_name(variant)
    params = entry_params(schema, variant)
    leaves = _leaf_rows(variant, arrays)
    return _struct(
        id=_string(variant.id),
        arch=_string(variant.arch),
        fusion=_string(variant.fusion_name),
        config=_string(variant.config_text),
        accept=_rules(variant.accept, arrays),
        leaves=arrays.add("opdeck_pack_arg", leaves),
        params=arrays.add("opdeck_pack_param", [_param_row(param, arrays) for param in params]),
        family_idx=family_idx,
        num_accept=len(variant.accept),
        num_leaves=len(leaves),
        num_params=len(params),
        smem_bytes=facts.smem_bytes,
        num_registers=facts.num_registers,
        num_threads=facts.num_threads,
        cuda_init=f"_mlir_{name}_cuda_init",
        cuda_load_to_device=f"_mlir_{name}_cuda_load_to_device",
        entry=f"_mlir_{name}__mlir_ciface_{name}",
        cubin_sha256=_string(facts.cubin_sha256),
        ptx=f"ptx_{variant.id}",
        ptx_bytes=row.ptx_bytes,
        prefer=_rules(variant.prefer, arrays),
        num_prefer=len(variant.prefer),
        workspace=arrays.add("opdeck_pack_term", [_term_row(term, arrays) for term in variant.workspace]),
        num_terms=len(variant.workspace),
    )


def _leaf_rows(variant: Variant, arrays: _Arrays) -> list[str]:
    if variant.fusion is None:
        return []
    rows = []
    for leaf in variant.fusion.leaves():
        kind = LEAF_KINDS[leaf.kind.value]
        element = dtypes.dtype(leaf.dtype)
        numbers = [element.number] if kind == "tensor" else []
        rows.append(
            _struct(
                name=_string(leaf.name),
                kind=KIND_NUMBERS[kind],
                access=_ACCESS_NUMBERS["read"],
                rank=leaf.rank,
                dims=arrays.add_strings(leaf.dims),
                num_dtypes=len(numbers),
                align_bytes=max(element.bits // 8, leaf.align_bytes, 1) if kind == "tensor" else 0,
                contiguous_last=int(leaf.align_bytes > 0),
                dtypes=arrays.add_ints("int32_t", numbers),
            )
        )
    return rows


def _param_row(param: Param, arrays: _Arrays) -> str:
    return _struct(
        source=param.source,
        kind=KIND_NUMBERS[param.kind],
        num_shape_dims=len(param.shape_dims),
        num_stride_dims=len(param.stride_dims),
        shape_dims=arrays.add_ints("int32_t", param.shape_dims),
        stride_dims=arrays.add_ints("int32_t", param.stride_dims),
    )
