"""Encoders without a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

from torch import Tensor, nn

from flodl.graph import Graph
from flodl.hf.families import AutoConfig
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.layout import ChoiceOfLayout, ReadPositions
from flodl.hf.model_call import (
    Arguments,
    BaseModelOutputWithPooling,
    encoder_values,
    recorded_values,
)
from flodl.hf.opening import EncoderOpening, Source, open_model
from flodl.hf.pretrained import PretrainedModel
from flodl.hf.task_heads import inputs_of

if TYPE_CHECKING:
    from flodl.hf.batch_encoding import Batch
    from flodl.train.plain_loop.setup import HasGraph


class EncoderModel(PretrainedModel):
    """An encoder without a head, a ``torch.nn.Module``.

    :attr:`graph` returns ``last_hidden_state [B, S, H]`` as a tensor.

    Args:
        config: Its configuration. Without a graph, new values are drawn.
        graph: The encoder.
    """

    kind = HeadKind.BASE

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPooling | tuple[Any, ...]:
        """Run the encoder in its current mode, with gradients; ``model(**batch)`` calls this.

        The call stores nothing in the model, so several threads can call it.

        Args:
            input_ids: ``[B, S]``.
            attention_mask: 0 for padding, ``[B, S]``; None for no padding.
            token_type_ids: Segments, ``[B, S]``; 0 if not given.
            position_ids: ``[B, S]``, if the family takes positions.
            inputs_embeds: Vectors instead of ids, ``[B, S, E]``.
            output_hidden_states: True for the states of all layers.
            output_attentions: True for the attention weights of all layers.
            return_dict: False for a tuple.
            **others: Arguments of transformers that an encoder does not have, as None.

        Returns:
            The outputs.

        Raises:
            TypeError: There is no such argument.
            ValueError: There are neither ids nor vectors, or both.
        """
        arguments = self._arguments(
            (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds),
            hidden_states=output_hidden_states,
            attentions=output_attentions,
            others=others,
        )
        output = encoder_values(self._graph, self.config, arguments)
        return self._returned(output, return_dict)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Source, **options: Unpack[EncoderOpening]
    ) -> Self:
        """Open a checkpoint of this family; the model has a pooler if the checkpoint has one.

        Args:
            pretrained_model_name_or_path: Directory, or repository on the Hub.
            options: See :class:`~flodl.hf.opening.EncoderOpening`.

        Raises:
            FlodlError: One of ``flodl.hf.errors``: the configuration, the weights or the Hub.
            FileNotFoundError: The directory does not exist, or files are missing in it.
        """
        opened = open_model(
            pretrained_model_name_or_path, cls.kind, options, family=cls.config_class
        )
        return cls(opened.config, opened.graph)


def backbone_outputs(
    graph: Graph | HasGraph,
    enc: Batch,
    hidden_states: bool = False,
    attentions: bool = False,
) -> BaseModelOutputWithPooling:
    """Run an encoder and return all its outputs.

    The call stores nothing in the model. So several threads can call it with one model, and the
    tagged values of the model's last forward stay. Each inner layer of ALBERT counts.

    Args:
        graph: A model of ``flodl.hf``, with or without a head, or its graph.
        enc: On the device of the model.
        hidden_states: Whether to return the output of every layer too. Every layer then also
            computes padding; the same holds for ``attentions``.
        attentions: Whether to return the attention weights of every layer too.

    Raises:
        ValueError: It is not a model of ``flodl.hf``.
    """
    whole = graph if isinstance(graph, Graph) else cast("Graph", graph.graph)
    if whole.source_config is None:
        raise ValueError("this graph has no configuration, so it is not a model of flodl.hf")
    config = AutoConfig.from_json_str(whole.source_config)
    encoder = whole.tree_children().get(config.prefix, whole)
    given: dict[str, Any] = inputs_of(enc, config)
    arguments = Arguments(**given, hidden_states=hidden_states, attentions=attentions)
    return recorded_values(encoder, config, arguments)


def set_unpad(model: nn.Module | HasGraph, unpad: bool | Literal["auto"]) -> None:
    """Say whether a model skips padding; the outputs at tokens are the same.

    If padding is skipped, layers and their hooks see the tokens of all rows one after the other,
    ``[T, H]``. At padding the model then returns the outputs that zeros give. Outputs that are not
    used are skipped in the same way: the last layer of a classifier of rows returns only their
    first tokens, ``[B, H]``.

    Copies of a model keep the setting; checkpoints do not store it. Padding is always kept under a
    compiler, a tracer or a CUDA graph, which record calls. The same holds for a call whose mask is
    added to scores, or has a row per token.

    Args:
        model: A model of ``flodl.hf``, with or without a head, or a module that contains some.
        unpad: True skips all masked positions, False none. ``"auto"``, the initial setting, skips
            them if they are at least a tenth of the batch.

    Raises:
        ValueError: ``unpad`` is another value, or there is no model of ``flodl.hf``.
    """
    if not (isinstance(unpad, bool) or unpad == "auto"):
        raise ValueError(f"unpad is True, False or 'auto', not {unpad!r}")
    module = model if isinstance(model, nn.Module) else model.graph
    choices = [
        part for part in module.modules() if isinstance(part, ChoiceOfLayout | ReadPositions)
    ]
    if not choices:
        raise ValueError(f"this {type(model).__name__} is and holds no model of flodl.hf")
    for choice in choices:
        choice.unpad = unpad
