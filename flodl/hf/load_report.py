"""The report on loading the weights of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


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
        files: The files, in the order they were read; empty if the weights came as bytes.
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
