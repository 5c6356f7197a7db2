"""Decide which stored tensor goes where, from names, shapes and dtypes, before any is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flodl.checkpoint.header import StoredTensor
from flodl.hf import keys
from flodl.hf.errors import CheckpointMismatchError
from flodl.hf.weights.slots import Slot, primary
from flodl.hf.weights.stored import FLOATS, TORCH_DTYPES, Stored

_SUGGESTED_FOR = 20  # suggestions are made for as many missing keys as a message shows


@dataclass(frozen=True, slots=True)
class Policy:
    """The differences that are allowed.

    Attributes:
        prefix: Prefix of the encoder in this model; empty for an encoder alone.
        second_names: Whether a tensor is also looked for under its other known names.
        tied: Whether the output layer uses the word table.
        draws_missing: Whether missing tensors of a head are drawn at random.
        replaces_head: Whether tensors of a head with another shape are drawn too.
        allows_unused: Whether the files may hold more tensors than needed.
    """

    prefix: str = ""
    second_names: bool = False
    tied: bool = False
    draws_missing: bool = False
    replaces_head: bool = False
    allows_unused: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """A slot and the stored tensors that fill it.

    Attributes:
        slot: The slot.
        sources: Keys of the files, by name: that of a place, or another known name.
    """

    slot: Slot
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens to each slot and each stored tensor.

    Attributes:
        fills: Slots that are filled from the files.
        drawn: Slots of a head that are drawn at random.
        ignored: Unneeded keys of the files that are usual there, sorted.
        unexpected: Other unneeded keys of the files, sorted.
    """

    fills: tuple[Fill, ...]
    drawn: tuple[Slot, ...]
    ignored: tuple[str, ...]
    unexpected: tuple[str, ...]


@dataclass(slots=True)
class _Disagreements:
    missing: list[str] = field(default_factory=list)
    shapes: list[tuple[str, Sequence[int], Sequence[int]]] = field(default_factory=list)
    dtypes: list[tuple[str, str]] = field(default_factory=list)


def make_plan(slots: Sequence[Slot], stored: Stored, rename: keys.Rename, policy: Policy) -> Plan:
    """Match a module with files.

    Args:
        slots: The tensors of the module.
        stored: The tensors of the files.
        rename: Returns the name in the module for a key of the files.
        policy: The differences that are allowed.

    Raises:
        CheckpointFormatError: Two keys of the files get the same name in the module.
        CheckpointMismatchError: Files and module differ more than ``policy`` allows.
    """
    arranged = keys.arrange(stored.tensors, rename)
    wrong = _Disagreements()
    fills, drawn = [], []
    used: set[str] = set()
    for slot in slots:
        sources = _sources(slot, arranged, policy)
        used.update(sources.values())
        is_head = not keys.is_encoder_key(primary(slot.places), policy.prefix)
        if not sources and policy.draws_missing and is_head:
            drawn.append(slot)
        elif not sources:
            wrong.missing.append(primary(slot.places))
        elif (bad := _other_shapes(slot, sources, stored.tensors)) and not (
            policy.replaces_head and is_head
        ):
            wrong.shapes += bad
        elif bad:
            drawn.append(slot)
        else:
            wrong.dtypes += _bad_dtypes(slot, sources, stored.tensors)
            fills.append(Fill(slot, sources))
    unused = {name: source for name, source in arranged.items() if source not in used}
    expected = frozenset(key for slot in slots for key in slot.keys)
    ignored = {s for name, s in unused.items() if keys.is_harmless(name, expected)}
    if not policy.allows_unused:
        ignored.clear()
    others = {name: source for name, source in unused.items() if source not in ignored}
    _check(stored.where, wrong, others, policy)
    return Plan(tuple(fills), tuple(drawn), tuple(sorted(ignored)), tuple(sorted(others.values())))


def _sources(slot: Slot, arranged: Mapping[str, str], policy: Policy) -> dict[str, str]:
    found = {key: arranged[key] for key in slot.keys if key in arranged}
    if found or not policy.second_names:
        return found
    others = keys.other_names(primary(slot.places), tied=policy.tied)
    return next(({name: arranged[name]} for name in others if name in arranged), {})


def _other_shapes(
    slot: Slot, sources: Mapping[str, str], tensors: Mapping[str, StoredTensor]
) -> list[tuple[str, Sequence[int], Sequence[int]]]:
    expected = tuple(slot.tensor.shape)
    return [
        (name, expected, tensors[source].shape)
        for name, source in sources.items()
        if tensors[source].shape != expected
    ]


def _bad_dtypes(
    slot: Slot, sources: Mapping[str, str], tensors: Mapping[str, StoredTensor]
) -> Iterable[tuple[str, str]]:
    """Weights that are not floats, and counters or masks of another type."""
    for name, source in sources.items():
        dtype = tensors[source].dtype
        if slot.tensor.is_floating_point():
            fits = dtype in FLOATS
        else:
            fits = TORCH_DTYPES.get(dtype) == slot.tensor.dtype
        if not fits:
            yield name, dtype


def _check(where: str, wrong: _Disagreements, unused: Mapping[str, str], policy: Policy) -> None:
    is_fine = not (wrong.missing or wrong.shapes or wrong.dtypes)
    if is_fine and (policy.allows_unused or not unused):
        return
    hint = ""
    if wrong.missing and not any(keys.is_encoder_key(k, policy.prefix) for k in wrong.missing):
        hint = '; to start with a new head give head_init="random"' if policy.second_names else ""
    elif wrong.shapes and not any(keys.is_encoder_key(k, policy.prefix) for k, *_ in wrong.shapes):
        hint = "; to replace the head give ignore_mismatched_sizes=True"
    if prefix := keys.prefix_of(wrong.missing, unused.values()):
        pattern = re.escape(prefix)
        hint = f'; its names begin with {prefix!r}: give key_mapping={{r"^{pattern}": ""}}'
    shown = sorted(wrong.missing)[:_SUGGESTED_FOR]
    raise CheckpointMismatchError(
        f"{where} does not hold the tensors of this model{hint}",
        missing=wrong.missing,
        unused=unused.values(),
        shape_mismatches=wrong.shapes,
        bad_dtypes=wrong.dtypes,
        suggestions=keys.suggestions(shown, unused),
    )
