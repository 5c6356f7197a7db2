"""Encoders with a head: the models that predict and are fine-tuned.

A head holds a graph, its configuration, the names of its classes and a tokenizer. The classes of
each family are in :mod:`flodl.hf.auto`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from torch import Tensor

from flodl.errors import FlodlError
from flodl.graph import Graph
from flodl.hf.batch_encoding import Batch, mask_of
from flodl.hf.errors import DiskFull, need
from flodl.hf.families import EncoderConfig, family_of
from flodl.hf.families.family import IDS, MASK, TYPES
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.layout import PLACES, POSITIONS, ChoiceOfLayout
from flodl.hf.losses import some_at_padding
from flodl.hf.model_call import ModelOutput, check_tensor, head_values
from flodl.hf.opening import (
    HeadOpening,
    Opened,
    Source,
    open_model,
)
from flodl.hf.pretrained import CLASSES, PretrainedModel
from flodl.hf.text.files import TokenizerFiles, read_files
from flodl.hf.text.source import from_files
from flodl.hf.tokenizer import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from flodl.hf.encoder_model import EncoderModel


class Head(PretrainedModel):
    """An encoder with a head, a ``torch.nn.Module``.

    Args:
        config: The configuration of the model. Without a graph, new values are drawn.
        graph: The model.
        tokenizer: Encodes texts for the model.
    """

    def __init__(
        self,
        config: EncoderConfig,
        graph: Graph | None = None,
        tokenizer: PreTrainedTokenizerFast | None = None,
    ) -> None:
        super().__init__(config, graph)
        self._tokenizer = tokenizer
        self._files: TokenizerFiles | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes in order; empty for a head without classes."""
        return tuple(self.config.id2label.values()) if self.kind.labelled else ()

    @property
    def base_model(self) -> EncoderModel:
        """The encoder: a model without a head that shares its parts with this one.

        The head names it too, as in transformers: ``model.bert``, ``model.roberta``. A call returns
        its hidden state ``[B, S, H]`` and its pooled output, if it has a pooler.
        """
        graph = self._graph.tree_children()[self.config.prefix]
        known = self.__dict__.get("_encoder")
        if known is None or known._graph is not graph:
            made: Any = CLASSES[self.config.model_type, HeadKind.BASE]
            known = self.__dict__["_encoder"] = made(self.config, graph)
        encoder: EncoderModel = known
        return encoder

    def __getattr__(self, name: str) -> Any:
        graph = self.__dict__.get("_graph")
        if graph is not None and name == self.config.prefix:
            return self.base_model
        return super().__getattr__(name)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """The tokenizer of the model; None if there is none or it could not be read.

        The files of a checkpoint are read when the model is opened. The tokenizer is made of them
        when it is first asked for, because a large vocabulary takes a second.
        """
        if self._tokenizer is None and self._files is not None:
            with _telling_why():
                self._tokenizer = PreTrainedTokenizerFast(from_files(self._files), self.config)
            self._files = None  # only now, because other threads may ask at the same time
        return self._tokenizer

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Source, **options: Unpack[HeadOpening]
    ) -> Self:
        """Open a checkpoint of this family.

        Args:
            pretrained_model_name_or_path: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.HeadOpening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights or the Hub.
            FileNotFoundError: The directory does not exist, or files are missing in it.
        """
        opened = open_model(
            pretrained_model_name_or_path, cls.kind, options, family=cls.config_class
        )
        return cls.of_opened(opened, options.get("tokenizer"))

    @classmethod
    def of_opened(cls, opened: Opened, tokenizer: PreTrainedTokenizerFast | None = None) -> Self:
        """Make the head of an opened model, with the checkpoint's tokenizer if that can be read.

        If the tokenizer cannot be read, a message goes to stderr; the model then works on ids only.
        """
        head = cls(opened.config, opened.graph, tokenizer)
        if tokenizer is None:
            with _telling_why():
                need("tokenizers")
                head._files = read_files(opened.checkpoint)
        return head

    def forward_encoded(self, enc: Batch, *, padding: bool | None = None) -> Tensor:
        """Compute logits for encoded texts, with gradients, in the current mode of the model.

        Args:
            enc: What a call of the tokenizer returns with ``return_tensors="pt"``; it is copied to
                the device of the model if it is elsewhere.
            padding: Whether logits at padding are computed too. None leaves it to the model: it
                computes them to find answers in a text, and otherwise where padding is rare. See
                :func:`~flodl.hf.encoder_model.set_unpad`.

        Returns:
            ``[B, labels]``, ``[B, S, labels]``, ``[B, S, 2]`` or ``[B, S, V]``.
        """
        inputs = inputs_of(enc, self.config)
        if padding is True:
            inputs[PLACES] = inputs[IDS].new_empty(0)
        elif padding is False:
            choice = next(one for one in self._graph.modules() if isinstance(one, ChoiceOfLayout))
            inputs[PLACES] = choice.worthwhile(mask_of(enc) != 0)
        device = next(self._graph.parameters()).device
        for name, one in inputs.items():
            inputs[name] = one.to(device)
        logits: Tensor = self._graph(**inputs)
        return logits


@contextmanager
def _telling_why() -> Iterator[None]:
    """Print why there is no tokenizer, instead of the error."""
    try:
        yield
    except DiskFull:
        raise
    except (FlodlError, OSError) as error:
        print(f"flodl: no tokenizer for this model: {error}", file=sys.stderr)  # noqa: T201


def inputs_of(enc: Batch, config: EncoderConfig) -> dict[str, Tensor]:
    """The model's inputs for a batch: segments only if its family reads them.

    Args:
        enc: The batch.
        config: Of the model.

    Raises:
        TypeError: There are no ids as a tensor.
        ValueError: The batch has no rows, or its rows have no tokens.
    """
    ids = enc.get(IDS)
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise TypeError(
            f"a batch needs {IDS} as a tensor [B, S]: call tokenizer(texts, padding=True, "
            'return_tensors="pt")'
        )
    rows, width = ids.shape
    if not rows:
        raise ValueError("the batch has no rows: leave out what was encoded of no texts")
    if not width:
        raise ValueError("row 0 of the batch has no tokens, and neither has any other")
    typed = config.type_vocab_size and family_of(config).reads_segments
    names = (IDS, MASK, TYPES, POSITIONS) if typed else (IDS, MASK, POSITIONS)
    found = {}
    for name in names:
        if (given := enc.get(name)) is not None:
            found[name] = given
    return found


class LabelledHead(Head):
    """A head whose loss compares logits with labels."""

    output_class: ClassVar[type[ModelOutput]]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> ModelOutput | tuple[Any, ...]:
        """Run the model in its current mode, with gradients; ``head(**batch)`` calls this.

        Args:
            input_ids: ``[B, S]``.
            attention_mask: 0 for padding, ``[B, S]``; None for no padding.
            token_type_ids: Segments, ``[B, S]``; 0 if not given.
            position_ids: ``[B, S]``, if the family takes positions.
            inputs_embeds: Vectors instead of ids, ``[B, S, E]``.
            labels: As for ``compute_loss``; the loss is then among the outputs.
            output_hidden_states: True for the states of all layers.
            output_attentions: True for the attention weights of all layers.
            return_dict: False for a tuple.
            **others: Arguments of transformers that an encoder does not have, as None.

        Returns:
            The outputs; see :mod:`flodl.hf.model_call`.

        Raises:
            TypeError: There is no such argument.
            ValueError: There are neither ids nor vectors, or both, or labels do not fit.
        """
        check_tensor("labels", labels)
        arguments = self._arguments(
            (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds),
            hidden_states=output_hidden_states,
            attentions=output_attentions,
            others=others,
            padding=labels is not None and self._counts_padding(attention_mask, labels),
        )
        found = head_values(self._graph, self.config, arguments)
        output = self.output_class(
            loss=None if labels is None else self._loss_of(found.output, labels),
            logits=found.output,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return self._returned(output, return_dict)

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of logits that were computed for these labels."""
        raise NotImplementedError

    def _counts_padding(self, mask: Tensor | None, labels: Tensor) -> bool:  # noqa: ARG002
        """Whether the loss depends on logits at padding."""
        return False


class LabelsTokens(LabelledHead):
    """A head with a label per token."""

    def compute_loss(self, enc: Batch, labels: Tensor) -> Tensor:
        """Run the model and compare with the labels, ``[B, S]``; -100 does not count."""
        at_padding = self._counts_padding(mask_of(enc), labels)
        logits = self.forward_encoded(enc, padding=True if at_padding else None)
        return self._loss_of(logits, labels)

    def _counts_padding(self, mask: Tensor | None, labels: Tensor) -> bool:
        return mask is not None and some_at_padding(mask, labels)
