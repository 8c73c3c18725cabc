# SPDX-License-Identifier: Apache-2.0
"""plugin_check.py: whether the fusions of a plugin keep what they promise.

Who calls it: `opdeck check-plugin`. Checks on the host come first; a fusion that fails one is not run as a kernel,
since kernels take its word.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from opdeck.core import arrays
from opdeck.core.errors import ArgumentError, OpdeckError
from opdeck.core.fusion import Activation, AttentionFusion, Coords, Extent, Fusion, Leaf, LeafKind, check_tile_ranges
from opdeck.core.fusion.identity import identity

if TYPE_CHECKING:
    from opdeck.core.registry import Registry

EXTENTS = (
    Extent(1, 1, 1, 1),
    Extent(2, 4, 200, 300),
    Extent(2, 2, 300, 130),
    Extent(1, 2, 129, 257),
    Extent(1, 2, 64, 0),
)


# Of an activation: what kernels have tiles for.
NUMS_OF_COLUMNS = (1, 2, 4)


@dataclass(frozen=True)
class Finding:
    """One check of one fusion. problem: None when it passed."""

    fusion: str
    check: str
    problem: str | None


def check_plugin(registry: Registry, plugin: str, device: str) -> Iterator[Finding]:
    """Every check of every fusion that the plugin offers; kernels run on `device`.

    Raises: ArgumentError when no plugin of that name offers a fusion; it says why one was left out.
    """
    fusions = {name: fusion for name, fusion in registry.fusions().items() if registry.owner(fusion.name) == plugin}
    if not fusions:
        known = sorted({registry.owner(fusion.name) for fusion in registry.fusions().values()})
        left_out = "; ".join(problem for problem in registry.problems if problem.startswith(f"plugin {plugin} "))
        want = f"a plugin that offers fusions: {'|'.join(known) or 'there is none'}"
        raise ArgumentError("plugin", repr(plugin), want, left_out)
    for name, fusion in fusions.items():
        checks = ACTIVATION_CHECKS if isinstance(fusion, Activation) else HOST_CHECKS
        findings = [_finding(name, check, run_check, fusion) for check, run_check in checks.items()]
        yield from findings
        if all(finding.problem is None for finding in findings):
            for family in registry.families():
                run = registry.get(family).fusion_check(fusion)
                if run is not None:
                    yield _finding(name, f"{family} on {device}", functools.partial(run, device_name=device), fusion)


def _finding(name: str, check: str, run: Callable[[Fusion], None], fusion: Fusion) -> Finding:
    try:
        run(fusion)
    except OpdeckError as error:
        return Finding(name, check, str(error))
    except Exception as error:  # whatever the plugin's code raises is a finding
        return Finding(name, check, f"{type(error).__name__}: {error}")
    return Finding(name, check, None)


def _check_names(fusion: Fusion) -> None:
    if not fusion.slug.isidentifier():
        raise ArgumentError(f"slug of {fusion.canonical_name}", repr(fusion.slug), "part of a C identifier")
    sent: Fusion = pickle.loads(pickle.dumps(fusion.without_values()))  # as a compiler process gets it
    if sent.static_key != fusion.static_key or identity(sent) != identity(fusion):
        got = "another static key or identity after pickling"
        raise ArgumentError(fusion.canonical_name, got, "the same: kernels are found by them")


def _check_leaves(fusion: Fusion) -> None:
    for extent in EXTENTS:
        for leaf in _sampled(fusion, extent).leaves():
            _check_leaf(leaf, extent._asdict())


def _check_leaf(leaf: Leaf, extents: Mapping[str, int]) -> None:
    if isinstance(leaf.value, LeafKind):
        raise ArgumentError(leaf.name, "no value from sample()", "one for each leaf")
    if leaf.kind is LeafKind.TENSOR:
        tensor = arrays.view(leaf.value, leaf.name)
        if (tensor.dtype, len(tensor.shape)) != (leaf.dtype, leaf.rank):
            got = f"{tensor.dtype} of {len(tensor.shape)} dims from sample()"
            raise ArgumentError(leaf.name, got, f"{leaf.dtype} of {leaf.rank}")
        leaf.check_extents(tensor.shape, extents)


def _sampled_activation(fusion: Fusion) -> Activation:
    assert isinstance(fusion, Activation)
    return fusion.sample(np.random.default_rng(0))


def _check_activation_leaves(fusion: Fusion) -> None:
    for leaf in _sampled_activation(fusion).leaves():
        _check_leaf(leaf, {})


def _check_activation_reference(fusion: Fusion) -> None:
    """Each result is made of its own columns alone, and of all of them."""
    sampled, argument = _sampled_activation(fusion), f"{fusion.canonical_name}.reference"
    columns = sampled.num_columns
    if columns not in NUMS_OF_COLUMNS:
        raise ArgumentError(f"{fusion.canonical_name}.num_columns", columns, "|".join(map(str, NUMS_OF_COLUMNS)))
    sums = 4.0 * np.random.default_rng(1).standard_normal((3, 16 * columns))
    got = np.asarray(sampled.reference(sums.copy()))
    if got.shape != (3, 16):
        raise ArgumentError(argument, f"shape {got.shape} of sums {sums.shape}", "(3, 16)")
    for idx in range(16):
        alone = np.asarray(sampled.reference(sums[:, idx * columns : (idx + 1) * columns].copy()))
        if not np.allclose(alone[:, 0], got[:, idx], rtol=1e-12):
            want = f"one of its own {columns} columns alone"
            raise ArgumentError(argument, f"result {idx} that other columns change", want)


def _check_tile_ranges(fusion: Fusion) -> None:
    for extent in EXTENTS:
        sampled = _sampled(fusion, extent)
        for where in np.ndindex(extent.batch, extent.num_heads):
            check_tile_ranges(sampled, extent.sq, extent.sk, where=where)


def _check_reference(fusion: Fusion) -> None:
    for extent in EXTENTS:
        sampled = _sampled(fusion, extent)
        for batch, head in np.ndindex(extent.batch, extent.num_heads):
            part = sampled.at(batch, head)
            q, k = np.ogrid[: extent.sq, : extent.sk]
            coords = Coords(batch, head, q, k, extent.sq, extent.sk)
            scores = np.random.default_rng(head).standard_normal((extent.sq, extent.sk))
            got = part.reference(scores.copy(), coords)
            argument = f"{fusion.canonical_name}.reference"
            if np.shape(got) != scores.shape or np.isnan(got).any():
                raise ArgumentError(argument, f"shape {np.shape(got)}, NaN included or not", f"{scores.shape}, no NaN")
            if not np.isneginf(np.where(part.mask.visible(coords), -np.inf, got)).all():
                raise ArgumentError(argument, "a finite score of a hidden key", "-inf")


def _sampled(fusion: Fusion, extent: Extent) -> AttentionFusion:
    if not isinstance(fusion, AttentionFusion):
        raise ArgumentError(
            fusion.canonical_name, type(fusion).__qualname__, "a Mask or a Score: others have no checks"
        )
    return fusion.sample(extent, np.random.default_rng(0))


HOST_CHECKS: Mapping[str, Callable[[Fusion], None]] = {
    "name and identity": _check_names,
    "leaves": _check_leaves,
    "tile ranges": _check_tile_ranges,
    "reference": _check_reference,
}

ACTIVATION_CHECKS: Mapping[str, Callable[[Fusion], None]] = {
    "name and identity": _check_names,
    "leaves": _check_activation_leaves,
    "reference": _check_activation_reference,
}
