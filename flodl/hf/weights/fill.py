"""Fill a module from safetensors files: completely, or not at all.

First names, shapes and types decide which stored tensor goes where. Then tensors are read, compared
and converted, and the module is changed only when all of that is done.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from flodl.checkpoint.header import StoredTensor
from flodl.device import select_device, warn_of_slow_bfloat16
from flodl.hf.config import EncoderConfig
from flodl.hf.errors import CheckpointMismatchError, first_of
from flodl.hf.layers.initial import fresh
from flodl.hf.weights import keys
from flodl.hf.weights.keys import Place, Slot, primary, put, slots_of
from flodl.hf.weights.stored import FLOATS, TORCH_DTYPES, StoredFiles, promoted, same_bytes
from flodl.log import verbose, warning

HeadInit = Literal["random", "replace", "strict"]

_SHOWN = 20
_FLOATS: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float64", "float32", "float16", "bfloat16")
}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was loaded and from where; set as ``graph.load_report`` by every load.

    Keys of the model are those of its state dict. Keys of the files are written as in the files. A
    parameter with several names counts once, under the name it is saved by.

    Attributes:
        loaded: Keys of the model that were filled, in the order of the module.
        renamed: Keys of the files that were loaded under another name, with that name.
        tied: Second names of shared parameters, with the name that is saved.
        untied: Names that shared a parameter and now have separate ones, because the files hold
            different values. Save such a model with ``tie_word_embeddings: false``.
        ignored: Keys of the files that the model does not need, as is usual for them, sorted.
        unexpected: Further keys of the files that were not used, sorted.
        initialised: Keys of the model that were drawn at random, sorted.
        files: The files, in the order they were read.
        commit: The commit of the Hub, if the files are from there.
        dtypes: Number of loaded tensors that were stored in each dtype (``F32``, ``BF16``).
        stored_dtypes: Keys of the model that were widened because the files mix float types, with
            the dtype they were stored in. Saving narrows them again if no value changes by that.
    """

    loaded: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    untied: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    initialised: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    commit: str | None = None
    dtypes: Mapping[str, int] = field(default_factory=dict)
    stored_dtypes: Mapping[str, str] = field(default_factory=dict)


def fill(
    graph: nn.Module,
    stored: StoredFiles,
    config: EncoderConfig | None,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    allow_unused: bool = True,
    head_init: HeadInit | None = None,
    seed: int | None = None,
    commit: str | None = None,
) -> LoadReport:
    """Fill a graph from safetensors files.

    Weights are memory-mapped. They take memory as they are used, and writing to them leaves the
    file unchanged. A program that overwrites such a file in place, instead of replacing it,
    changes the weights of the graph.

    Tensor names are accepted in all forms that checkpoints use:

    - LayerNorm's ``gamma`` and ``beta``;
    - with and without the prefix of the encoder;
    - a tied output layer under either name or both. If both are there and differ, the output layer
      gets its own parameters (``untied`` of the report).

    Args:
        graph: The module, on the meta device or with tensors. Its names are those of the state dict
            of the reference.
        stored: The tensors of the files.
        config: The configuration that ``graph`` was built from; None if the files must have exactly
            the names of the module.
        dtype: Convert all floats to this type. None keeps the stored type; if the files mix types,
            the smallest type that holds them all.
        device: Where the tensors go. None means the CPU for a graph on the meta device, and
            otherwise the device of the graph.
        allow_unused: Whether tensors without a place in the graph are only reported, not refused.
        head_init: ``"random"`` draws the tensors of a head (with its pooler) that the files lack:
            weights from Normal(0, ``initializer_range``), biases 0, LayerNorms 1.
            ``"replace"`` also draws new tensors for those of another shape. ``"strict"`` and None
            draw nothing.
        seed: For drawing; None uses torch's global generator.
        commit: The commit of the files, for the report.

    Returns:
        The report, which is also set as ``graph.load_report``.

    Raises:
        CheckpointFormatError: Two keys have one name, or a file changed since its header was read.
        CheckpointMismatchError: The tensors do not match those of the graph.
        MissingDependencyError: The package safetensors is not installed.
        ValueError: An unknown ``dtype`` or ``head_init``.
    """
    if head_init not in (None, "random", "replace", "strict"):
        raise ValueError(f'head_init is "random", "replace", "strict" or None, not {head_init!r}')
    wanted = None if dtype is None else float_type(dtype)
    matched = match(slots_of(graph), stored.tensors, config, head_init=head_init)
    if not allow_unused:
        matched.unused |= {key: key for key in matched.ignored}
    if not matched.fits or (matched.unused and not allow_unused):
        raise _mismatch(stored.where, matched, known=config is not None)
    tensors = stored.read({key for one in matched.fills for key in one.sources.values()})
    compute = wanted or promoted(tensors.values())
    parts = _parts(matched.fills, tensors)
    if matched.drawn:
        spread = 0.02 if config is None else config.initializer_range
        parts += _drawn(matched.drawn, spread, seed, compute)
    report = _reported(matched, parts, stored, None if wanted else compute, commit)
    _place(parts, compute, None if device is None else select_device(device))
    _warn_of_non_finite(parts, stored.where)
    for part in parts:
        put(part.places, part.tensor, apart=part.is_apart)
    graph.__dict__["load_report"] = report
    _tell(report, stored.where, config, wanted)
    if wanted in (torch.bfloat16, torch.float16):
        warn_of_slow_bfloat16(wanted, next(graph.parameters()).device)
    return report


def _reported(
    matched: Match,
    parts: Sequence[_Part],
    stored: StoredFiles,
    promoted: torch.dtype | None,
    commit: str | None,
) -> LoadReport:
    """The report on a load.

    Args:
        matched: What happens to each tensor.
        parts: What was read, in its stored types, and what was drawn.
        stored: The tensors of the files.
        promoted: The type that mixed types are widened to; None if the caller named a type.
        commit: The commit of the files.
    """
    loaded, initialised, untied = [], [], []
    renamed: dict[str, str] = {}
    tied: dict[str, str] = {}
    stored_dtypes: dict[str, str] = {}
    dtypes: Counter[str] = Counter()
    for part in parts:
        for place in part.places:
            if place.key != part.key:
                tied[place.key] = part.key
        if part.source is None:
            initialised.append(part.key)
            continue
        loaded.append(part.key)
        dtype = stored.tensors[part.source].dtype
        dtypes[dtype] += 1
        if part.source != part.key:
            renamed[part.source] = part.key
        if part.is_apart:
            untied.append(part.key)
        if promoted and part.tensor.is_floating_point() and part.tensor.dtype != promoted:
            stored_dtypes[part.key] = dtype
    return LoadReport(
        loaded=tuple(loaded),
        renamed=renamed,
        tied=tied,
        untied=tuple(untied),
        ignored=tuple(sorted(matched.ignored)),
        unexpected=tuple(sorted(matched.unused.values())),
        initialised=tuple(sorted(initialised)),
        files=stored.files,
        commit=commit,
        dtypes=dict(dtypes),
        stored_dtypes=stored_dtypes,
    )


def float_type(dtype: torch.dtype | str) -> torch.dtype:
    """The type that a caller names.

    Raises:
        ValueError: It is not a type of floating-point numbers.
    """
    found = _FLOATS.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ValueError(f"dtype is one of {', '.join(_FLOATS)}, not {dtype!r}")
    return found


def _tell(
    report: LoadReport, where: str, config: EncoderConfig | None, wanted: torch.dtype | None
) -> None:
    """Say what a user may not expect."""
    declared = None if config is None or wanted is not None else config.dtype
    if declared is not None and len(report.dtypes) == 1:
        kind = str(TORCH_DTYPES[next(iter(report.dtypes))]).removeprefix("torch.")
        if kind in _FLOATS and kind != declared:
            warning(
                f"the configuration says {declared} and the weights are stored as {kind}, which "
                "they stay; give dtype= to convert them"
            )
    if report.ignored:
        verbose(f"{where}: not needed: {first_of(report.ignored, _SHOWN)}")
    if report.unexpected:
        warning(
            f"{where}: {len(report.unexpected)} tensors have no place in this model: "
            f"{first_of(report.unexpected, _SHOWN)}"
        )


# --- Which tensor goes where -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """A slot and the stored tensors that fill it.

    Attributes:
        slot: The slot.
        sources: Keys of the files, by name: that of a place, or another known name.
        main: The key for the name the slot is saved by, else the only key.
    """

    slot: Slot
    sources: Mapping[str, str]
    main: str


@dataclass(slots=True)
class Match:
    """What happens to each slot and each stored tensor.

    Attributes:
        prefix: The prefix of the encoder in the model; empty if the model is one.
        unused: Unneeded keys of the files, by their new names.
        ignored: Further unneeded keys of the files, which are usual there.
        fills: Slots that are filled from the files.
        drawn: Slots of a head that are drawn at random.
        missing: Keys of the model that the files lack.
        shapes: Names with the shape in the model and in the files, where they differ.
        dtypes: Names with the type in the files, where it is not one for the tensor.
    """

    prefix: str
    unused: dict[str, str]
    ignored: list[str] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    drawn: list[Slot] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    shapes: list[tuple[str, Sequence[int], Sequence[int]]] = field(default_factory=list)
    dtypes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether every slot has its tensor."""
        return not (self.missing or self.shapes or self.dtypes)


def match(
    slots: Sequence[Slot],
    tensors: Mapping[str, StoredTensor],
    config: EncoderConfig | None,
    *,
    head_init: HeadInit | None = None,
) -> Match:
    """Match a module with files, before any tensor is read; see :func:`fill`.

    Raises:
        CheckpointFormatError: Two keys of the files get the same name in the module.
    """
    expected: set[str] = set().union(*(slot.keys for slot in slots))
    prefix = "" if config is None else config.prefix
    rename: keys.Rename = str
    if config is not None and not tensors.keys() <= expected:
        rename = keys.reconciling(expected, prefix)
    arranged = keys.arrange(tensors, rename)
    found = Match(keys.prefix_in(expected, prefix), dict(arranged))
    for slot in slots:
        sources = _sources(slot, arranged, config)
        for name in sources:
            found.unused.pop(name, None)
        shapes, dtypes = _disagreements(slot, sources, tensors)
        may_draw = not sources and head_init in ("random", "replace")
        may_draw |= bool(shapes) and head_init == "replace"
        if may_draw and not keys.is_encoder_key(slot.name, found.prefix):
            found.drawn.append(slot)
        elif not sources:
            found.missing.append(slot.name)
        elif shapes:
            found.shapes += shapes
        else:
            found.dtypes += dtypes
            main = sources.get(slot.name) or next(iter(sources.values()))
            found.fills.append(Fill(slot, sources, main))
    for name in tuple(found.unused):
        if keys.is_harmless(name, expected):
            found.ignored.append(found.unused.pop(name))
    return found


def _sources(
    slot: Slot, arranged: Mapping[str, str], config: EncoderConfig | None
) -> dict[str, str]:
    found = {}
    for key in slot.keys:
        if key in arranged:
            found[key] = arranged[key]
    if found or config is None:
        return found
    for name in keys.other_names(slot.name, tied=config.tie_word_embeddings):
        if name in arranged:
            return {name: arranged[name]}
    return {}


def _disagreements(
    slot: Slot, sources: Mapping[str, str], tensors: Mapping[str, StoredTensor]
) -> tuple[list[tuple[str, Sequence[int], Sequence[int]]], list[tuple[str, str]]]:
    """Sources of another shape; weights that are not floats, counters or masks of another type."""
    shapes: list[tuple[str, Sequence[int], Sequence[int]]] = []
    dtypes: list[tuple[str, str]] = []
    expected = tuple(slot.tensor.shape)
    floats = slot.tensor.is_floating_point()
    for name, source in sources.items():
        stored = tensors[source]
        if stored.shape != expected:
            shapes.append((name, expected, stored.shape))
        kind = TORCH_DTYPES.get(stored.dtype)
        if not (stored.dtype in FLOATS if floats else kind == slot.tensor.dtype):
            dtypes.append((name, stored.dtype))
    return shapes, dtypes


def _mismatch(where: str, found: Match, *, known: bool) -> CheckpointMismatchError:
    hint, prefix = "", found.prefix
    if found.missing and not any(keys.is_encoder_key(key, prefix) for key in found.missing):
        hint = '; to start with a new head give head_init="random"' if known else ""
    elif found.shapes and not any(keys.is_encoder_key(key, prefix) for key, *_ in found.shapes):
        hint = "; to replace the head give ignore_mismatched_sizes=True"
    elif found.shapes:
        hint = "; sizes are those of the weights, and resize_token_embeddings() changes the words"
    if wrapper := keys.prefix_of(found.missing, found.unused.values()):
        pattern = re.escape(wrapper)
        hint = f'; its names begin with {wrapper!r}: give key_mapping={{r"^{pattern}": ""}}'
    return CheckpointMismatchError(
        f"{where} does not hold the tensors of this model{hint}",
        missing=found.missing,
        unused=found.unused.values(),
        shape_mismatches=found.shapes,
        bad_dtypes=found.dtypes,
        # As many as a message shows.
        suggestions=keys.suggestions(sorted(found.missing)[:_SHOWN], found.unused),
    )


# --- Reading and placing -----------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Part:
    """Places that will hold one tensor, and the key it is read from; None if it is drawn."""

    key: str
    places: tuple[Place, ...]
    source: str | None
    tensor: Tensor
    is_apart: bool = False


_Share = tuple[tuple[Place, ...], str, bool]
"""Places that hold one tensor, its key in the files, and whether they shared a parameter."""


def _parts(fills: Sequence[Fill], tensors: Mapping[str, Tensor]) -> list[_Part]:
    """What fills each slot; slots whose names have different values in the files are split."""
    different: dict[str, list[str]] = {}
    for one in fills:
        if len(one.sources) > 1 and (names := _different(one, tensors)):
            different[one.slot.name] = names
    split = _split(different.values()) if different else set()
    parts = []
    read: set[str] = set()
    for one in fills:
        places = one.slot.places
        shares: list[_Share] = [(places, one.main, False)]
        if different:
            shares = _shares(one, different.get(one.slot.name), split)
        for share, source, is_apart in shares:
            # Parameters must not share memory: an optimizer would change both through one of them.
            tensor = tensors[source].clone() if source in read else tensors[source]
            read.add(source)
            key = one.slot.name if share is places else primary([place.key for place in share])
            parts.append(_Part(key, share, source, tensor, is_apart))
    return parts


def _split(different: Iterable[Sequence[str]]) -> set[str]:
    """The names that get their own parameters."""
    split = {name for names in different for name in names if not keys.is_bias_alias(name)}
    if split:
        warning(
            f"{', '.join(sorted(split))}: tied to another parameter in this model, and another "
            "tensor in these files; both are kept, and the model is no longer tied"
        )
    # In no model of the reference is only the weight untied, so the bias goes with it.
    return split | {bias for name in split if (bias := keys.decoder_bias(name)) is not None}


def _different(one: Fill, tensors: Mapping[str, Tensor]) -> list[str]:
    """The names whose stored values differ from those of the name the slot is saved by."""
    first = one.main
    return [
        name
        for name, source in one.sources.items()
        if source != first and not _same(tensors[first], tensors[source])
    ]


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same bits after conversion to the wider of their types."""
    if left.dtype != right.dtype:
        wide = torch.promote_types(left.dtype, right.dtype)
        left, right = left.to(wide), right.to(wide)
    return same_bytes(left, right)


def _shares(one: Fill, different: Sequence[str] | None, split: set[str]) -> list[_Share]:
    places, main = one.slot.places, one.main
    together = tuple(place for place in places if place.key not in split)
    if together and len(together) < len(places):
        apart = [place for place in places if place.key in split]
        return [
            (together, main, False),
            *(((place,), one.sources.get(place.key, main), True) for place in apart),
        ]
    if different:  # two biases: the reference adds that of the output layer
        warning(f"{different[0]} differs from {one.slot.name}, to which it is tied: it is used")
        main = one.sources[different[0]]
    return [(places, main, False)]


def _drawn(
    slots: Iterable[Slot], spread: float, seed: int | None, dtype: torch.dtype | None
) -> list[_Part]:
    """New tensors for a head, drawn in the order of their names, not in the module's order."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    parts = []
    for slot in sorted(slots, key=lambda slot: slot.name):
        place = slot.places[0]
        tensor = fresh(place.owner, place.name, slot.tensor, spread, generator)
        parts.append(_Part(slot.name, slot.places, None, tensor.to(dtype or slot.tensor.dtype)))
    return parts


def _place(parts: Iterable[_Part], dtype: torch.dtype | None, device: torch.device | None) -> None:
    """Move tensors to their device and convert floats; nothing is in the module yet."""
    for part in parts:
        old = getattr(part.places[0].owner, part.places[0].name)
        own = torch.device("cpu") if old.is_meta else old.device
        floats = part.tensor.is_floating_point()
        part.tensor = part.tensor.to(device or own, dtype if floats else None)


def _warn_of_non_finite(parts: Iterable[_Part], where: str) -> None:
    found: list[str] = []
    for part in parts:
        # The sum of large finite numbers can be infinite, but usually needs no further memory.
        values = part.tensor
        if part.source and values.is_floating_point() and not bool(values.sum().isfinite()):
            found += [] if bool(values.isfinite().all()) else [part.key]
    if found:
        warning(
            f"{where}: {first_of(found, 3)} hold values that are not finite; they "
            "are loaded as they are"
        )
