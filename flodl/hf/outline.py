"""What model a checkpoint holds: its head, pooler and labels, from configuration and key names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
"""Heads whose outputs are classes with names."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A model that can be built.

    Attributes:
        config: The configuration; ``architectures`` names the class that is built, a classifier's
            labels are written out, and a DeBERTa's ``legacy`` is that of its weights.
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
        """The model, without weights or with random ones."""
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
    """Find out what a checkpoint holds.

    Args:
        config: Its configuration.
        shapes: Shapes of its tensors, by key; none for a model that is made anew.
        head: What to take it for; by default what ``architectures`` says, and an encoder where it
            names a head that flodl does not have, or nothing.
        num_labels: The number of classes that is wanted.
        id2label: The names of the classes that are wanted, in order or by id.
        new_head: Whether the head is drawn anew: the classifier that the checkpoint has then says
            nothing about the one that is wanted.

    Raises:
        ConfigError: Labels or head of the configuration contradict themselves.
    """
    kind = head or head_of(config)
    config = config.with_architectures(class_name(config, kind))
    if kind in LABELLED:
        rows = None if new_head else _classifier_rows(shapes)
        config = config.with_labels(config.labels_for(num_labels, id2label, rows))
    if kind is HeadKind.MLM and isinstance(config, DebertaV2Config):
        config = _with_found_decoder(config, shapes)
    return Outline(config, kind, keys_have_pooler(shapes))


def head_of(config: EncoderConfig) -> HeadKind:
    """The head of the class a checkpoint was saved from; none where that class is not known."""
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
        has_pooler: Whether an encoder has a pooler; heads know themselves.
        device: Where it is made; on ``"meta"`` tensors have no values, elsewhere random ones.

    Raises:
        UnsupportedModelError: ``architectures`` names a head that flodl does not have.
        ConfigError: The labels contradict themselves.
    """
    kind = exported_kind(config)
    labels = len(config.labels_for()) if kind in LABELLED else 2
    return build_graph(config, kind, pooler=has_pooler, num_labels=labels, device=device)


def exported_kind(config: EncoderConfig) -> HeadKind:
    """The head that a configuration names; an encoder where it names no class.

    Raises:
        UnsupportedModelError: It is a head that flodl does not have.
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
    """With the masked-language head that the weights have; that of the file where both or none."""
    older = any(key.startswith("cls.predictions.") for key in keys)
    newer = any(key.startswith("lm_predictions.lm_head.") for key in keys)
    return config.for_masked_lm(legacy=config.legacy if older == newer else older)
