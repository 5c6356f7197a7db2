"""Encoders with a head: the models that predict and are fine-tuned.

A head holds a graph, its configuration, the names of its classes and a tokenizer. The classes of
each family are in :mod:`flodl.hf.families`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar, Self, Unpack

import torch
from torch import Tensor

from flodl.errors import FlodlError
from flodl.graph import Graph
from flodl.hf.config_json import AutoConfig, EncoderConfig
from flodl.hf.encoded import EncodedBatch
from flodl.hf.errors import DiskFull
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import (
    MaskedLMLosses,
    QuestionAnsweringLosses,
    SequenceLosses,
    TokenLosses,
)
from flodl.hf.models.layout import PLACES, ChoiceOfLayout
from flodl.hf.opening import HeadOpening, Opened, Source, open_model
from flodl.hf.outline import outline
from flodl.hf.predict.answer import QuestionAnswering
from flodl.hf.predict.fill_mask import FillMask
from flodl.hf.predict.sequence import SequencePrediction
from flodl.hf.predict.tokens import TokenTagging
from flodl.hf.tokenizer import HfTokenizer

Device = torch.device | str

_ROBERTA = ("roberta", "xlm-roberta")
_GIVEN_POSITIONS = ("bert", "albert")


class OfFamily:
    """The base of classes of one family; ``config=`` in the class line names its configuration."""

    config_class: ClassVar[type[EncoderConfig]]

    def __init_subclass__(cls, config: type[EncoderConfig] | None = None) -> None:
        super().__init_subclass__()
        if config is not None:
            cls.config_class = config


class Head(OfFamily):
    """An encoder with a head.

    Args:
        graph: The model.
        config: The configuration of the model.
        labels: Names of its classes; empty for a head without classes.
        tokenizer: Encodes texts for the model.
    """

    kind: ClassVar[HeadKind]

    def __init__(
        self,
        graph: Graph,
        config: EncoderConfig,
        labels: tuple[str, ...] = (),
        tokenizer: HfTokenizer | None = None,
    ) -> None:
        self._graph = graph
        self._config = config
        self._described = graph.source_config
        self._labels = labels
        self._tokenizer = tokenizer

    @property
    def graph(self) -> Graph:
        """The model, a ``torch.nn.Module``."""
        return self._graph

    @property
    def config(self) -> EncoderConfig:
        """The configuration of the model, with changes made by surgery."""
        text = self._graph.source_config
        if text is not None and text != self._described:
            self._config, self._described = AutoConfig.from_json_str(text), text
        return self._config

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order; empty for a head without classes."""
        return self._labels

    @property
    def tokenizer(self) -> HfTokenizer | None:
        """The tokenizer of the model; None if there is none or it could not be read."""
        return self._tokenizer

    def with_tokenizer(self, tokenizer: HfTokenizer) -> Self:
        """The same model with another tokenizer; it shares the parameters."""
        return type(self)(self._graph, self.config, self._labels, tokenizer)

    def into_graph(self) -> Graph:
        """The model without tokenizer and labels."""
        return self._graph

    @classmethod
    def from_pretrained(cls, src: Source, **options: Unpack[HeadOpening]) -> Self:
        """Open a checkpoint of this family.

        Args:
            src: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.HeadOpening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights or the Hub.
            FileNotFoundError: The directory does not exist, or files are missing in it.
        """
        opened = open_model(src, cls.kind, options, family=cls.config_class)
        return cls.of_opened(opened, options.get("tokenizer"))

    @classmethod
    def from_pretrained_on_device(cls, src: Source, device: Device) -> Self:
        """Open a checkpoint on a device; see :meth:`from_pretrained`."""
        return cls.from_pretrained(src, device=device)

    @classmethod
    def of_opened(cls, opened: Opened, tokenizer: HfTokenizer | None = None) -> Self:
        """Make the head of an opened model, with the checkpoint's tokenizer if that can be read.

        If the tokenizer cannot be read, a message goes to stderr; the model then works on ids only.
        """
        head = cls(opened.graph, opened.config, opened.labels, tokenizer)
        if tokenizer is None:
            head._read_tokenizer(opened)
        return head

    def _read_tokenizer(self, opened: Opened) -> None:
        from flodl.hf.tokenizer import HfTokenizer

        try:
            self._tokenizer = HfTokenizer.from_checkpoint(opened.checkpoint, opened.config)
        except DiskFull:
            raise
        except (FlodlError, OSError) as error:
            print(f"flodl: no tokenizer for this model: {error}", file=sys.stderr)  # noqa: T201

    @classmethod
    def _fresh(cls, config: EncoderConfig, num_labels: int | None, device: Device) -> Self:
        found = outline(config, {}, cls.kind, num_labels=num_labels)
        graph = found.build(device)
        graph.set_source_config(found.config.to_json_str())
        return cls(graph, found.config, found.labels)

    def save_pretrained(
        self,
        directory: str | os.PathLike[str],
        *,
        force: bool = False,
        max_shard_size: int | str | None = None,
    ) -> tuple[str, ...]:
        """Write the model as a directory that any tool for Hugging Face checkpoints loads.

        The weights are the same bytes that ``fdl flodl-hf export`` writes. The configuration names
        the class and its labels. The tokenizer's files are written too, if there is a tokenizer.

        Args:
            directory: Where to write; created with its parents.
            force: Replace an existing model, with its tokenizer.
            max_shard_size: Bytes of tensors in one file, as a number or like ``"5GB"``.

        Returns:
            The files written, by their names in the directory.

        Raises:
            FlodlError: The directory holds a model already.
            OSError: The system refused.
            ValueError: ``max_shard_size`` is not a size.
        """
        from flodl.hf.export import save_model

        return save_model(
            self._graph,
            self.config,
            Path(directory),
            tokenizer=self._tokenizer,
            force=force,
            max_shard_size=max_shard_size,
        )

    def forward_encoded(self, enc: EncodedBatch, *, padding: bool | None = None) -> Tensor:
        """Compute logits for encoded texts, with gradients, in the current mode of the model.

        Args:
            enc: On the device of the model.
            padding: Whether logits at padding are computed too. None leaves it to the model: it
                computes them to find answers in a text, and otherwise where padding is rare. See
                :func:`~flodl.hf.encoder_model.set_unpad`.

        Returns:
            ``[B, labels]``, ``[B, S, labels]``, ``[B, S, 2]`` or ``[B, S, V]``.
        """
        inputs = inputs_of(enc, self.config)
        if padding is not None:
            inputs[PLACES] = self._places(enc, padding)
        logits: Tensor = self._graph(**inputs)
        return logits

    def _places(self, enc: EncodedBatch, padding: bool) -> Tensor:
        """The value of the model's input ``places``."""
        if padding:
            return enc.input_ids.new_empty(0)
        choice = next(one for one in self._graph.modules() if isinstance(one, ChoiceOfLayout))
        return choice.worthwhile(enc.attention_mask != 0)

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self._graph.parameters())
        labels = f", {len(self._labels)} labels" if self._labels else ""
        return f"{type(self).__name__}({size:,} parameters{labels})"


def inputs_of(enc: EncodedBatch, config: EncoderConfig) -> dict[str, Tensor]:
    """The model's inputs for a batch; RoBERTa counts positions and has one segment.

    Args:
        enc: The batch.
        config: Of the model.

    Raises:
        ValueError: The batch has no rows, or its rows have no tokens.
    """
    rows, width = enc.input_ids.shape
    if not rows:
        raise ValueError("the batch has no rows: leave out what was encoded of no texts")
    if not width:
        raise ValueError("row 0 of the batch has no tokens, and neither has any other")
    inputs = {"input_ids": enc.input_ids, "attention_mask": enc.attention_mask}
    if config.type_vocab_size and config.model_type not in _ROBERTA:
        inputs["token_type_ids"] = enc.token_type_ids
    if config.model_type in _GIVEN_POSITIONS:
        inputs["position_ids"] = enc.position_ids
    return inputs


class ClassifierHead(Head):
    """A head with classes."""

    @classmethod
    def on_device(cls, config: EncoderConfig, num_labels: int, device: Device) -> Self:
        """Build a model with newly drawn values.

        Args:
            config: Of this family.
            num_labels: Number of classes. If the configuration names as many, the names stay.
            device: Where the model is made.

        Raises:
            ConfigError: ``num_labels`` is not a positive number.
        """
        return cls._fresh(config, num_labels, device)


class PlainHead(Head):
    """A head without classes."""

    @classmethod
    def on_device(cls, config: EncoderConfig, device: Device) -> Self:
        """Build a model with newly drawn values.

        Args:
            config: Of this family.
            device: Where the model is made.
        """
        return cls._fresh(config, None, device)


class SequenceClassifier(SequencePrediction, SequenceLosses, ClassifierHead):
    """One answer per text: ``predict``, ``classify``, ``compute_loss``."""

    kind = HeadKind.SEQCLS


class TokenClassifier(TokenTagging, TokenLosses, ClassifierHead):
    """One label per token: ``predict``, ``tag``, ``compute_loss``."""

    kind = HeadKind.TOKCLS


class QuestionAnswerer(QuestionAnswering, QuestionAnsweringLosses, PlainHead):
    """The span of an answer in a text: ``answer``, ``extract``, ``compute_loss``."""

    kind = HeadKind.QA


class MaskedLM(FillMask, MaskedLMLosses, PlainHead):
    """The words at masks: ``fill_mask``, ``compute_loss``."""

    kind = HeadKind.MLM

    def logits_at(self, enc: EncodedBatch, rows: Tensor, columns: Tensor) -> Tensor:
        """Logits of single positions; only these are decoded, because decoding is most of the work.

        Args:
            enc: On the device of the model.
            rows: ``[N]``.
            columns: ``[N]``.

        Returns:
            ``[N, V]``.
        """
        graph, prefix = self._graph, self.config.prefix
        encoder = graph.get_submodule(prefix)
        states: Tensor = encoder(**inputs_of(enc, self.config))[rows, columns]
        names = [node.prefix for node in graph.topology.nodes if node.prefix]
        for name in names[names.index(prefix) + 1 :]:
            states = graph.get_submodule(name)(states)
        return states
