"""Run a model on the arguments of a call: ids or vectors, with the values of layers or without."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from flodl.graph import Graph
from flodl.hf.build import LAST_HIDDEN_STATE, POOLER_OUTPUT
from flodl.hf.families import EncoderConfig, family_of
from flodl.hf.layers.layout import MASK, PLACES, POSITIONS, RECORD, TYPES, Record
from flodl.hf.outputs import Layers

_EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call that decide on the values of the model.

    Attributes:
        input_ids: ``[B, S]``; None if there are vectors.
        attention_mask: 0 for padding, ``[B, S]``, or another mask that the model takes.
        token_type_ids: ``[B, S]``.
        position_ids: ``[B, S]``.
        inputs_embeds: Vectors instead of those of words, ``[B, S, E]``.
        hidden_states: Whether the states of all layers are wanted.
        attentions: Whether the attention weights of all layers are wanted.
        padding: Whether outputs at padding are computed too; False leaves it to the model.

    Raises:
        TypeError: A value is not a tensor.
        ValueError: There are neither ids nor vectors, or both.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None = None
    token_type_ids: Tensor | None = None
    position_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    hidden_states: bool = False
    attentions: bool = False
    padding: bool = False

    def __post_init__(self) -> None:
        if (self.input_ids is None) == (self.inputs_embeds is None):
            given = "neither" if self.input_ids is None else "both"
            raise ValueError(f"a model takes input_ids or inputs_embeds, got {given}")
        for name in ("input_ids", MASK, TYPES, POSITIONS, "inputs_embeds"):
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                raise TypeError(
                    f"{name} is a {type(value).__name__}, and a model takes tensors: call "
                    f'tokenizer(texts, padding=True, return_tensors="pt"), or torch.tensor({name})'
                )

    @property
    def plain(self) -> bool:
        """Whether the graph alone can answer the call."""
        return not (self.hidden_states or self.attentions or self.inputs_embeds is not None)

    @property
    def ids(self) -> Tensor:
        """The ids; for vectors, the number of each vector."""
        if self.inputs_embeds is None:
            return cast("Tensor", self.input_ids)
        vectors = self.inputs_embeds
        rows, length = vectors.shape[:2]
        return torch.arange(rows * length, device=vectors.device).view(rows, length)

    def inputs(self, config: EncoderConfig) -> dict[str, Any]:
        """The inputs of the graph of an encoder or a model, those that are there."""
        ids, positions = self.ids, self.position_ids
        if self.inputs_embeds is not None and family_of(config).offset_positions:
            # Without ids, no position is known to be padding.
            first = (config.pad_token_id or 0) + 1
            default = torch.arange(first, first + ids.shape[1], device=ids.device).expand_as(ids)
            positions = default if positions is None else positions
        every_row = self.padding or self.hidden_states or self.attentions
        given = {
            MASK: self.attention_mask,
            TYPES: self.token_type_ids,
            POSITIONS: positions,
            # An empty ``places`` keeps tokens in their rows, also in the outputs of layers.
            PLACES: ids.new_empty(0) if every_row else None,
        }
        return {"input_ids": ids, **{k: value for k, value in given.items() if value is not None}}


class Values(NamedTuple):
    """The values of a call.

    Attributes:
        output: The output of the head; of an encoder ``last_hidden_state``.
        pooler_output: ``[B, H]``; None without a pooler, and for a head.
        hidden_states: One per layer and the input of the first; None unless asked for.
        attentions: One per layer; None unless asked for.
    """

    output: Tensor
    pooler_output: Tensor | None = None
    hidden_states: Layers | None = None
    attentions: Layers | None = None


def encoder_values(graph: Graph, config: EncoderConfig, arguments: Arguments) -> Values:
    """Run an encoder; the call stores nothing in it."""
    if arguments.plain and POOLER_OUTPUT not in graph.topology.tagged_nodes:
        return Values(graph(**arguments.inputs(config)))
    record = _record(arguments)
    _variant(graph, config, arguments)(**arguments.inputs(config), **{RECORD: record})
    return Values(
        record.tags[LAST_HIDDEN_STATE],
        record.tags.get(POOLER_OUTPUT),
        *_layers(record, record.tags[LAST_HIDDEN_STATE]),
    )


def head_values(graph: Graph, config: EncoderConfig, arguments: Arguments) -> Values:
    """Run a model with a head."""
    if arguments.plain:
        return Values(graph(**arguments.inputs(config)))
    record, encoder = _record(arguments), graph.tree_children()[config.prefix]
    recording = _Recording(_variant(encoder, config, arguments), record)
    whole = _with_part(graph, config.prefix, recording)
    output: Tensor = whole(**arguments.inputs(config))
    return Values(output, None, *_layers(record, record.tags[LAST_HIDDEN_STATE]))


def _record(arguments: Arguments) -> Record:
    return Record([] if arguments.hidden_states else None, [] if arguments.attentions else None)


class _Recording(nn.Module):
    """An encoder that fills a record; it takes the place of the encoder in one call."""

    def __init__(self, encoder: Graph, record: Record) -> None:
        super().__init__()
        self.encoder = encoder
        self.record = record

    def forward(self, ids: Tensor, **others: Any) -> Tensor:
        output: Tensor = self.encoder(ids, **others, **{RECORD: self.record})
        return output


def _layers(record: Record, last: Tensor) -> tuple[Layers | None, Layers | None]:
    states, weights = record.hidden_states, record.attentions
    return (
        None if states is None else (*states, last),
        None if weights is None else tuple(weights),
    )


# --- The table of words ------------------------------------------------------------------------


def word_table_of(graph: Graph, config: EncoderConfig) -> nn.Embedding:
    """The table of words of a model, with or without a head.

    Raises:
        ValueError: There is none.
    """
    encoder, name = graph.tree_children().get(config.prefix, graph), family_of(config).table
    with contextlib.suppress(AttributeError):
        table = encoder.get_submodule(name)
        if isinstance(table, nn.Embedding):
            return table
    raise ValueError(f"this model has no table of words at {config.prefix}.{name}")


class _GivenVectors(nn.Module):
    """Takes the place of a table of words; its rows are the vectors of one call."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors.flatten(0, 1)

    def forward(self, numbers: Tensor) -> Tensor:
        return functional.embedding(numbers, self.vectors)


def _variant(encoder: Graph, config: EncoderConfig, arguments: Arguments) -> Graph:
    """The encoder of a call: with given vectors as its table of words, if there are some."""
    vectors = arguments.inputs_embeds
    if vectors is None:
        return encoder
    embeddings = cast("nn.Module", encoder._modules[_EMBEDDINGS])
    name = family_of(config).table.removeprefix(f"{_EMBEDDINGS}.")
    given = _with_part(embeddings, name, _GivenVectors(vectors))
    return cast("Graph", _with_part(encoder, _EMBEDDINGS, given))


def _with_part(module: nn.Module, name: str, part: nn.Module) -> nn.Module:
    """A shallow copy of a module in which one part is another one."""
    copied: nn.Module = object.__new__(type(module))
    copied.__dict__.update(module.__dict__)
    copied.__dict__["_modules"] = {**module._modules, name: part}
    return copied
