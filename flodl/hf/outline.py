"""Determine the model in a checkpoint (head, pooler, labels) from configuration and keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flodl.graph import Graph
from flodl.hf.configs.base import EncoderConfig
from flodl.hf.configs.deberta import DebertaV2Config
from flodl.hf.configs.labels import Labels
from flodl.hf.errors import UnsupportedModelError
from flodl.hf.head_kind import HeadKind
from flodl.hf.keys import keys_have_pooler
from flodl.hf.models import build_graph

_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")
LABELLED = (HeadKind.SEQCLS, HeadKind.TOKCLS)
"""Heads with named classes as outputs."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A model that can be built.

    Attributes:
        config: The configuration. Its ``architectures`` names the class that is built, it spells
            out the labels of a classifier, and ``legacy`` of a DeBERTa is that of its weights.
        kind: The head.
        pooler: Whether an encoder without a head has a pooler.
    """

    config: EncoderConfig
    kind: HeadKind
    pooler: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes of a classifier; otherwise empty."""
        return self.config.labels_for() if self.kind in LABELLED else ()

    def build(self, device: torch.device | str = "meta") -> Graph:
        """Build the model, without weights (on the meta device) or with random ones."""
        return build_for_export(self.config, self.pooler, device)


def outline(
    config: EncoderConfig,
    shapes: Mapping[str, Sequence[int]],
    head: HeadKind | None = None,
    *,
    num_labels: int | None = None,
    id2label: Labels | None = None,
    new_head: bool = False,
) -> Outline:
    """Determine what a checkpoint holds.

    Args:
        config: Its configuration.
        shapes: Shapes of its tensors, by key; none for a new model.
        head: The head to use. By default the head in ``architectures``; the encoder alone if that
            names no head, or a head that flodl does not have.
        num_labels: The wanted number of classes.
        id2label: The wanted names of the classes, in order or by id.
        new_head: Whether the head is drawn again. Then the checkpoint's classifier does not matter
            for the wanted classes.

    Raises:
        ConfigError: Labels or head of the configuration contradict each other.
    """
    kind = head or head_of(config)
    settled: dict[str, Any] = {"architectures": (class_name(config, kind),)}
    if kind in LABELLED:
        rows = None if new_head else _classifier_rows(shapes)
        settled["id2label"] = config.labels_for(num_labels, id2label, rows)
    config = config.replace(**settled)
    if kind is HeadKind.MLM and isinstance(config, DebertaV2Config):
        config = _with_found_decoder(config, shapes)
    return Outline(config, kind, keys_have_pooler(shapes))


def head_of(config: EncoderConfig) -> HeadKind:
    """The head of the class a checkpoint was saved from; the encoder if the class is unknown."""
    name = config.architectures[0] if config.architectures else ""
    return HeadKind.of_class(name) or HeadKind.BASE


def class_name(config: EncoderConfig, kind: HeadKind) -> str:
    """The class of a family with a head: ``BertForMaskedLM``, ``BertModel``."""
    return f"{config.class_prefix}{kind.suffix}"


def build_for_export(
    config: EncoderConfig, has_pooler: bool, device: torch.device | str = "cpu"
) -> Graph:
    """The model that ``architectures`` names.

    Args:
        config: The configuration; without ``architectures``, it is an encoder.
        has_pooler: Whether an encoder has a pooler; a head decides this itself.
        device: Where the model is made. On ``"meta"`` tensors have no values, elsewhere random
            ones.

    Raises:
        UnsupportedModelError: ``architectures`` names a head that flodl does not have.
        ConfigError: The labels contradict each other.
    """
    kind = exported_kind(config)
    labels = len(config.labels_for()) if kind in LABELLED else 2
    return build_graph(config, kind, pooler=has_pooler, num_labels=labels, device=device)


def exported_kind(config: EncoderConfig) -> HeadKind:
    """The head that a configuration names; the encoder if it names no class.

    Raises:
        UnsupportedModelError: flodl does not have this head.
    """
    name = config.architectures[0] if config.architectures else config.base_class_name
    kind = HeadKind.of_class(name)
    if kind is None:
        supported = ", ".join(f"…{one.suffix}" for one in HeadKind)
        raise UnsupportedModelError(
            f"architectures names {name}, and what can be exported are {supported}"
        )
    return kind


def _classifier_rows(shapes: Mapping[str, Sequence[int]]) -> int | None:
    return next((shapes[key][0] for key in _CLASSIFIERS if shapes.get(key)), None)


def _with_found_decoder(config: DebertaV2Config, keys: Iterable[str]) -> DebertaV2Config:
    """The configuration with the masked-language head of the weights.

    If the weights hold both heads or neither, the value of the file stays.
    """
    older = any(key.startswith("cls.predictions.") for key in keys)
    newer = any(key.startswith("lm_predictions.lm_head.") for key in keys)
    return config.for_masked_lm(legacy=config.legacy if older == newer else older)
