"""The names of tensors in graphs and in checkpoints of the Hub, and their places in a module."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fdl.base.suggest import distance
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.families import FAMILIES

Rename = Callable[[str], str]

_DECODERS = tuple(dict.fromkeys(name for one in FAMILIES.values() for name in one.decoders))
# An output layer below a module of the head shares the bias of that module.
_BIAS_ALIASES = {
    f"{name}.bias": f"{name.removesuffix('decoder')}bias"
    for name in _DECODERS
    if name.endswith(".decoder")
}
_NAMES_OF_BIASES = {name: alias for alias, name in _BIAS_ALIASES.items()}
_WORD_TABLES: dict[str, tuple[str, ...]] = {}
"""The tables of words, each with the names of output layers that may share it."""
for _one in FAMILIES.values():
    _names = (*_WORD_TABLES.get(_one.table, ()), *(f"{name}.weight" for name in _one.decoders))
    _WORD_TABLES[_one.table] = tuple(dict.fromkeys(_names))
_WEIGHT_ALIASES = frozenset(f"{name}.weight" for name in _DECODERS)

_POOLER = re.compile(r"(?:^|\.)pooler\.(?:dense\.)?(?:weight|bias)$")
_HARMLESS = re.compile(
    r"(?:^|\.)(?:position_ids|token_type_ids)$"
    r"|^cls\.seq_relationship\.|^sop_classifier\.|^mask_predictions\."
)
_IN_POOLER = re.compile(r"(?:^|\.)pooler\.")
_HEADS = frozenset({"classifier", "qa_outputs"}.union(*(one.heads for one in FAMILIES.values())))
_ENCODER = frozenset({"embeddings", "encoder", "final_norm", "layers", "pooler", "transformer"})
_POSITIONS = ".position_embeddings.weight"


def modern_key(key: str) -> str:
    """The key with today's LayerNorm names: ``gamma`` and ``beta`` become weight and bias."""
    if key.endswith("LayerNorm.gamma"):
        return key.removesuffix("gamma") + "weight"
    if key.endswith("LayerNorm.beta"):
        return key.removesuffix("beta") + "bias"
    return key


def is_alias(key: str) -> bool:
    """Whether the key is a second name: of a tied word table, or of an output layer's bias."""
    return key in _BIAS_ALIASES or key in _WEIGHT_ALIASES


def is_bias_alias(key: str) -> bool:
    """Whether the key is the second name of the bias of an output layer."""
    return key in _BIAS_ALIASES


def decoder_bias(key: str) -> str | None:
    """The bias beside a tied weight of an output layer, if the bias has a second name too."""
    bias = key.removesuffix("weight") + "bias"
    return bias if key in _WEIGHT_ALIASES and bias in _BIAS_ALIASES else None


def other_names(key: str, *, tied: bool) -> tuple[str, ...]:
    """Other names under which a file may hold the tensor of a model's key.

    Args:
        key: A key of the model, other than an alias of the word table.
        tied: Whether the output layer uses the word table.
    """
    bias = _BIAS_ALIASES.get(key) or _NAMES_OF_BIASES.get(key)
    if bias is not None:
        return (bias,)
    for table, aliases in _WORD_TABLES.items() if tied else ():
        if f".{key}".endswith(f".{table}.weight"):
            return aliases
    return ()


def prefix_in(keys: Iterable[str], prefix: str) -> str:
    """The prefix if the encoder of these keys is below it, as in every model with a head."""
    start = prefix + "."
    for key in keys:
        if key.startswith(start):
            return prefix
    return ""


def is_encoder_key(key: str, prefix: str) -> bool:
    """Whether a model without a head has this tensor; a pooler counts as part of a head.

    Args:
        key: A key of the model.
        prefix: Prefix of the encoder; empty for a model that is only an encoder.
    """
    return not _POOLER.search(key) and (not prefix or key.startswith(prefix + "."))


def reconciling(expected: Collection[str], prefix: str) -> Rename:
    """A rename that adds or removes the prefix of the encoder, as the model needs it.

    Args:
        expected: The keys of the model.
        prefix: The prefix of the family: ``bert``.
    """
    start = prefix + "."
    known = set(expected)
    below, tops = set(), set()
    for key in expected:
        known.update(other_names(key, tied=True))
        tops.add(_top(key))
        if key.startswith(start):
            below.add(_top(key.removeprefix(start)))

    def rename(key: str) -> str:
        key = modern_key(key)
        bare = key.removeprefix(start)
        if key in known:
            return key
        if bare == key:
            return start + key if _top(key) in below else key
        return bare if _top(bare) in tops else key

    return rename


def _top(key: str) -> str:
    return key.partition(".")[0]


def arrange(sources: Iterable[str], rename: Rename) -> dict[str, str]:
    """Rename the keys of a file.

    Returns:
        The new name -> the key of the file.

    Raises:
        CheckpointFormatError: Two keys would get the same name.
    """
    arranged: dict[str, str] = {}
    for source in sources:
        key = rename(source)
        other = arranged.setdefault(key, source)
        if other != source:
            raise CheckpointFormatError(
                f"{other} and {source} of the checkpoint are both names of {key}: "
                "remove the one that is wrong"
            )
    return arranged


def is_harmless(key: str, expected: Collection[str]) -> bool:
    """Whether an unused key is usual in files of its family.

    Usual are buffers of ids, heads that the model was not built with, poolers, and a table of
    positions if the model has none.

    Args:
        key: The unused key, renamed.
        expected: The keys of the model.
    """
    if _HARMLESS.search(key):
        return True
    if _IN_POOLER.search(key):
        return not any(_IN_POOLER.search(name) for name in expected)
    top = _top(key)
    if top in _HEADS:
        return not any(name.startswith(top + ".") for name in expected)
    return key.endswith(_POSITIONS) and not any(name.endswith(_POSITIONS) for name in expected)


def is_start_for(head: str, keys: Iterable[str], prefix: str) -> bool:
    """Whether a file holds an encoder, perhaps with another head, and nothing of this head.

    A file with a name that no model has is not one: that tensor may be part of the head.

    Args:
        head: The module of the head, such as ``qa_outputs``.
        keys: Keys of the file.
        prefix: Prefix of the encoder.
    """
    known = (_HEADS - {head}) | _ENCODER | {prefix}
    return all(_top(key) in known or _HARMLESS.search(key) for key in keys)


def keys_have_pooler(keys: Iterable[str]) -> bool:
    """Whether one of the keys is the weight or bias of a pooler.

    Such a key ends in ``pooler.dense.weight`` or ``pooler.weight`` (or ``bias``), with a whole
    segment ``pooler``; a ``/`` counts as a dot.
    """
    return any(_POOLER.search(key.replace("/", ".")) for key in keys)


def suggestions(missing: Iterable[str], unused: Mapping[str, str]) -> list[tuple[str, str]]:
    """For each missing key, the unused key with nearly the same name, if there is one.

    Args:
        missing: Keys of the model.
        unused: Keys of the files, by their new names.

    Returns:
        Pairs of a missing key and an unused key of the files, at most two edits apart.
    """
    found = []
    for key in missing:
        ranked = [
            (edits, source)
            for name, source in unused.items()
            if (edits := distance(key, name)) is not None
        ]
        if ranked:
            found.append((key, min(ranked)[1]))
    return found


def prefix_of(missing: Iterable[str], unused: Iterable[str]) -> str:
    """What stands before the name of every missing key in the files; empty if nothing does.

    Wrappers put it there: ``module.`` of DistributedDataParallel, ``_orig_mod.`` of
    ``torch.compile``.
    """
    wanted = list(missing)
    given = list(unused)
    found = {
        next((one.removesuffix(key) for one in given if one.endswith(f".{key}")), "")
        for key in wanted
    }
    return found.pop() if len(found) == 1 else ""


# --- Places ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One name of a tensor: an attribute of a module.

    Attributes:
        key: Dotted name in the state dict of the whole module.
        owner: The module that holds the tensor.
        name: Its name there.
    """

    key: str
    owner: nn.Module
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A tensor of a module.

    Attributes:
        tensor: The tensor.
        places: Its places, in the order of the module.
        keys: All its names.
        name: The name that it is saved by.
    """

    tensor: Tensor
    places: tuple[Place, ...]
    keys: tuple[str, ...]
    name: str


def slots_of(module: nn.Module) -> list[Slot]:
    """The tensors of ``module.state_dict()``, each once.

    Raises:
        ValueError: A parameter is still lazy, so its shape is unknown.
    """
    tensors: dict[int, Tensor] = {}
    places: dict[int, list[Place]] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        passing = owner._non_persistent_buffers_set
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is None or name in passing:
                continue
            if nn.parameter.is_lazy(tensor):
                raise ValueError(f"{prefix}{name} has no shape yet: run the module once first")
            tensors[id(tensor)] = tensor
            places.setdefault(id(tensor), []).append(Place(prefix + name, owner, name))
    slots = []
    for key, tensor in tensors.items():
        names = tuple([place.key for place in places[key]])
        slots.append(Slot(tensor, tuple(places[key]), names, primary(names)))
    return slots


def primary(names: Sequence[str]) -> str:
    """The name that a tensor is saved by: the first that is not a second name, else the first."""
    for name in names:
        if not is_alias(name):
            return name
    return names[0]


def put(places: tuple[Place, ...], tensor: Tensor, *, apart: bool = False) -> None:
    """Make ``tensor`` the parameter or buffer at all these places, one object for all.

    A parameter with storage keeps its object, because an optimizer may hold it, and gets the new
    data. A parameter on the meta device is replaced, and so is one that other places share when
    these should be apart from them.
    """
    first = places[0]
    old = first.owner._parameters.get(first.name)
    if old is None:
        for place in places:
            place.owner._buffers[place.name] = tensor
        return
    if not old.is_meta and not apart:
        old.data = tensor
        torch.autograd.graph.increment_version(old)
        return
    new = nn.Parameter(tensor, requires_grad=old.requires_grad)
    for place in places:
        place.owner._parameters[place.name] = new
