"""Encoders with a head: the models that predict and are fine-tuned.

A head holds a graph, its configuration, the names of its classes and a tokenizer. The classes of
each family are in :mod:`flodl.hf.auto`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

import torch
from torch import Tensor

from flodl.errors import FlodlError
from flodl.graph import Graph
from flodl.hf.build import build
from flodl.hf.encoded import EncodedBatch
from flodl.hf.errors import DiskFull
from flodl.hf.families import EncoderConfig, family_of
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.layout import PLACES, ChoiceOfLayout
from flodl.hf.losses import (
    MaskedLMLosses,
    QuestionAnsweringLosses,
    SequenceLosses,
    TokenLosses,
    question_answering_loss,
)
from flodl.hf.model_call import Arguments, head_values
from flodl.hf.opening import (
    HeadOpening,
    Opened,
    Source,
    asked_config,
    open_model,
    with_head,
)
from flodl.hf.outputs import (
    MaskedLMOutput,
    ModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from flodl.hf.predict.answer import QuestionAnswering
from flodl.hf.predict.fill_mask import FillMask
from flodl.hf.predict.sequence import SequencePrediction
from flodl.hf.predict.tokens import TokenTagging
from flodl.hf.pretrained import CLASSES, PretrainedModel
from flodl.hf.tokenizer import HfTokenizer

if TYPE_CHECKING:
    from flodl.hf.encoder_model import EncoderModel

Device = torch.device | str


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
        tokenizer: HfTokenizer | None = None,
    ) -> None:
        super().__init__(config, graph)
        self._tokenizer = tokenizer

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
    def tokenizer(self) -> HfTokenizer | None:
        """The tokenizer of the model; None if there is none or it could not be read."""
        return self._tokenizer

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
    def of_opened(cls, opened: Opened, tokenizer: HfTokenizer | None = None) -> Self:
        """Make the head of an opened model, with the checkpoint's tokenizer if that can be read.

        If the tokenizer cannot be read, a message goes to stderr; the model then works on ids only.
        """
        head = cls(opened.config, opened.graph, tokenizer)
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
    def from_config(
        cls, config: EncoderConfig, *, num_labels: int | None = None, device: Device = "cpu"
    ) -> Self:
        """Build a model with newly drawn values.

        Args:
            config: Of this family.
            num_labels: Number of classes; by default that of the configuration, else two. If the
                configuration names as many, the names stay.
            device: Where the model is made.

        Raises:
            ConfigError: ``num_labels`` is not a positive number.
        """
        return cls(*cls._drawn(config, device, num_labels))

    @classmethod
    def _drawn(
        cls, config: EncoderConfig, device: Device = "cpu", num_labels: int | None = None
    ) -> tuple[EncoderConfig, Graph]:
        asked = asked_config(config, cls.kind, {"num_labels": num_labels})
        config = with_head(asked, cls.kind, {})
        return config, build(config, device=device)

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
        labels = f", {len(self.labels)} labels" if self.labels else ""
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
    family = family_of(config)
    if config.type_vocab_size and family.reads_segments:
        inputs["token_type_ids"] = enc.token_type_ids
    if family.given_positions:
        inputs["position_ids"] = enc.position_ids
    return inputs


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

        Returns:
            The outputs; see :mod:`flodl.hf.outputs`.

        Raises:
            ValueError: There are neither ids nor vectors, or both, or labels do not fit.
        """
        arguments = Arguments(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            bool(output_hidden_states),
            bool(output_attentions),
            labels is not None and self._counts_padding(attention_mask, labels),
        )
        found = head_values(self._graph, self.config, arguments)
        output = self.output_class(
            loss=None if labels is None else self._loss_of(found.output, labels),
            logits=found.output,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return output.to_tuple() if return_dict is False else output

    def _loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of logits that were computed for these labels."""
        raise NotImplementedError

    def _counts_padding(self, mask: Tensor | None, labels: Tensor) -> bool:  # noqa: ARG002
        """Whether the loss depends on logits at padding."""
        return False


class SequenceClassifier(SequencePrediction, SequenceLosses, LabelledHead):
    """One answer per text: ``predict``, ``classify``, ``compute_loss``."""

    kind = HeadKind.SEQCLS
    output_class = SequenceClassifierOutput


class TokenClassifier(TokenTagging, TokenLosses, LabelledHead):
    """One label per token: ``predict``, ``tag``, ``compute_loss``."""

    kind = HeadKind.TOKCLS
    output_class = TokenClassifierOutput


class QuestionAnswerer(QuestionAnswering, QuestionAnsweringLosses, Head):
    """The span of an answer in a text: ``answer``, ``extract``, ``compute_loss``."""

    kind = HeadKind.QA

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
    ) -> QuestionAnsweringModelOutput | tuple[Any, ...]:
        """Run the model in its current mode, with gradients; ``head(**batch)`` calls this.

        Args:
            input_ids: As for the other heads; see :meth:`LabelledHead.forward`.
            attention_mask: As there.
            token_type_ids: As there.
            position_ids: As there.
            inputs_embeds: As there.
            start_positions: First token of each answer, ``[B]``; gives a loss with the next.
            end_positions: Last token of each answer, ``[B]``.
            output_hidden_states: As there.
            output_attentions: As there.
            return_dict: As there.

        Returns:
            The outputs.

        Raises:
            ValueError: There are neither ids nor vectors, or both, or positions do not fit.
        """
        arguments = Arguments(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            bool(output_hidden_states),
            bool(output_attentions),
        )
        found = head_values(self._graph, self.config, arguments)
        logits, loss = found.output, None
        if start_positions is not None and end_positions is not None:
            loss = question_answering_loss(logits, start_positions, end_positions)
        output = QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=logits[..., 0].contiguous(),
            end_logits=logits[..., 1].contiguous(),
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return output.to_tuple() if return_dict is False else output


class MaskedLM(FillMask, MaskedLMLosses, LabelledHead):
    """The words at masks: ``fill_mask``, ``compute_loss``."""

    kind = HeadKind.MLM
    output_class = MaskedLMOutput

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
