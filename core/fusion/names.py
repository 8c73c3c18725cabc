# SPDX-License-Identifier: Apache-2.0
"""names.py: the fusion of a canonical name, such as `alibi&causal[align=bottom_right]`.

Who calls it: registry.py, for command lines and packs. Fusion.canonical_name is the other way.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opdeck.core.errors import ArgumentError
from opdeck.core.fusion.activations import GatedSilu, Gelu, Relu, Silu
from opdeck.core.fusion.base import FieldKind, FieldSpec, Fusion, field_specs, static_text
from opdeck.core.fusion.blocks import BlockSparse
from opdeck.core.fusion.masks import Causal, Document, PrefixLM, Residual, Window
from opdeck.core.fusion.scores import Alibi, Bias, Sink, Softcap

BUILT_IN: Sequence[type[Fusion]] = (
    *(Relu, Gelu, Silu, GatedSilu),
    *(Residual, Causal, Window, PrefixLM, Document, BlockSparse, Alibi, Softcap, Bias, Sink),
)


def parse(name: str, offered: Mapping[str, Fusion]) -> Fusion:
    """The fusion of a canonical name; kinds are in the place of leaf values, but for `offered` ones, used as they are.

    offered: the fusions of plugins, by canonical name.
    Raises: ArgumentError naming the part that no fusion has.
    """
    parts: list[Any] = [_parse_part(part, offered) for part in split(name, "&") or [name]]
    fusion: Fusion = functools.reduce(operator.and_, parts)
    return fusion


def _parse_part(name: str, offered: Mapping[str, Fusion]) -> Fusion:
    if name in offered:
        return offered[name]
    classes: dict[str, type[Fusion]] = {cls.name: cls for cls in BUILT_IN}
    classes.update({fusion.name: type(fusion) for fusion in offered.values()})
    base, _, statics = name.partition("[")
    want = f"a canonical name: {'|'.join(sorted(classes))}, with [field=value,..] where it has static fields"
    if base not in classes:
        raise ArgumentError("fusion", repr(name), want)
    texts = dict(item.partition("=")[::2] for item in split(statics.removesuffix("]"), ","))
    for spec in field_specs(classes[base]):
        if spec.kind is FieldKind.LEAF and texts.get(spec.name, static_text(None)) != static_text(None):
            hint = "it is a run-time argument, whose value is no part of a name"
            raise ArgumentError("fusion", repr(name), f"{base} without {spec.name}", hint)
    fusion: Fusion = object.__new__(classes[base])  # __post_init__ checks what users give, and there are no values here
    try:
        for spec in field_specs(classes[base]):
            object.__setattr__(fusion, spec.name, _field_value(classes[base], spec, texts, offered))
        canonical = fusion.canonical_name
    except (ValueError, TypeError) as error:
        raise ArgumentError("fusion", repr(name), want, str(error)) from None
    if canonical != name:
        raise ArgumentError("fusion", repr(name), canonical)
    return fusion


def _field_value(cls: type[Fusion], spec: FieldSpec, texts: Mapping[str, str], offered: Mapping[str, Fusion]) -> object:
    text = texts.get(spec.name)
    if spec.kind is FieldKind.LEAF:
        return spec.leaf_kind if text is None else None
    if text is None:
        raise ValueError(f"no value of {spec.name}")
    hint = typing.get_type_hints(cls)[spec.name]
    if spec.kind is FieldKind.FUSION:
        fusion = parse(text, offered)
        if not isinstance(fusion, hint):
            raise ValueError(f"{spec.name}={text} is no {hint.__name__}")
        return fusion
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    enums = [kind for kind in kinds if issubclass(kind, enum.Enum)]  # beside one, str is but its spelling
    for kind in enums or kinds:
        for value in _values(kind, text):
            if static_text(value) == text:
                return value
    raise ValueError(f"{spec.name}={text} is no {hint}")


def _values(kind: type, text: str) -> Iterator[object]:
    """What a static value of that type may be when it is spelled `text`."""
    if kind is type(None):
        yield None
    elif issubclass(kind, enum.Enum):
        yield from kind
    elif kind is bool:
        yield from (True, False)
    elif kind is int and text.lstrip("-").isdigit():
        yield int(text)
    elif kind is str:
        yield text


def split(text: str, separator: str) -> list[str]:
    """Splits where no bracket is open; nothing of nothing."""
    parts, depth = [""], 0
    for char in text:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts if text else []
