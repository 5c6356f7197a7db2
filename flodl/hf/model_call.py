"""Calls of models: their arguments, the values of layers, and the outputs.

Outputs are values with names, which are also a tuple and a dictionary. The names, and the order of
the values, are those of ``transformers``::

    out = model(**batch, labels=labels)
    out.loss, out["logits"], out[0]
    loss, logits = out[:2]

A value that the model did not compute is None as an attribute. It is left out of the tuple and of
the dictionary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree

from flodl.graph import Graph
from flodl.hf.build import LAST_HIDDEN_STATE, POOLER_OUTPUT
from flodl.hf.families import EncoderConfig, family_of
from flodl.hf.layers.layout import MASK, PLACES, POSITIONS, RECORD, TYPES, Record

_EMBEDDINGS = "embeddings"

Layers: TypeAlias = tuple[Tensor, ...]
"""One tensor per layer."""


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
        ValueError: There are neither ids nor vectors, or both, or ids of another form.
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
            check_tensor(name, getattr(self, name))
        ids = self.input_ids
        if ids is not None and (ids.dim() != 2 or not ids.shape[1] or ids.is_floating_point()):
            raise ValueError(
                f"input_ids are {ids.dtype} of the shape {list(ids.shape)}, and a model takes "
                "whole numbers [B, S]: rows with at least one token; ids[None] is one row"
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


def check_tensor(name: str, value: object) -> None:
    """Refuse an argument of a call that is there and is not a tensor.

    Raises:
        TypeError: It is something else.
    """
    if value is None or isinstance(value, Tensor):
        return
    how = f"torch.tensor({name})"
    if isinstance(value, Mapping):
        how = "model(**batch) with a batch of tensors"
    raise TypeError(
        f"{name} is a {type(value).__name__}, and a model takes tensors: call "
        f'tokenizer(texts, padding=True, return_tensors="pt"), or {how}'
    )


class Values(NamedTuple):
    """The values of a model with a head.

    Attributes:
        output: The output of the head.
        hidden_states: One per layer and the input of the first; None unless asked for.
        attentions: One per layer; None unless asked for.
    """

    output: Tensor
    hidden_states: Layers | None = None
    attentions: Layers | None = None


def encoder_values(
    graph: Graph, config: EncoderConfig, arguments: Arguments
) -> BaseModelOutputWithPooling:
    """Run an encoder; the call stores nothing in it."""
    if arguments.plain and POOLER_OUTPUT not in graph.topology.tagged_nodes:
        return BaseModelOutputWithPooling(last_hidden_state=graph(**arguments.inputs(config)))
    return recorded_values(graph, config, arguments)


def recorded_values(
    graph: Graph, config: EncoderConfig, arguments: Arguments
) -> BaseModelOutputWithPooling:
    """Run an encoder; the tagged values of its last forward stay too."""
    record = _record(arguments)
    _variant(graph, config, arguments)(**arguments.inputs(config), **{RECORD: record})
    states, weights = _layers(record, record.tags[LAST_HIDDEN_STATE])
    return BaseModelOutputWithPooling(
        last_hidden_state=record.tags[LAST_HIDDEN_STATE],
        pooler_output=record.tags.get(POOLER_OUTPUT),
        hidden_states=states,
        attentions=weights,
    )


def head_values(graph: Graph, config: EncoderConfig, arguments: Arguments) -> Values:
    """Run a model with a head."""
    if arguments.plain:
        return Values(graph(**arguments.inputs(config)))
    record, encoder = _record(arguments), graph.tree_children()[config.prefix]
    recording = _Recording(_variant(encoder, config, arguments), record)
    whole = _with_part(graph, config.prefix, recording)
    output: Tensor = whole(**arguments.inputs(config))
    return Values(output, *_layers(record, record.tags[LAST_HIDDEN_STATE]))


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


# --- What a call returns -----------------------------------------------------------------------


class ModelOutput(dict[str, Any]):
    """Named values in order; those that are None are left out.

    A number or a slice as index counts the values that are there. Iteration gives names, as for
    every dictionary; :meth:`to_tuple` gives the values. Further values may be added by name.

    Args:
        found: Values by name.
        **values: The same. The order of the class counts, not that of the call.

    Raises:
        TypeError: The class has no value of that name.
    """

    names: ClassVar[tuple[str, ...]] = ()
    """The names of all values, in order."""

    def __init__(self, found: Mapping[str, Any] | None = None, /, **values: Any) -> None:
        super().__init__()
        for name in values:
            if name not in self.names:
                raise TypeError(
                    f"{type(self).__name__} has no value {name!r}; it has {', '.join(self.names)}"
                )
        self._put({**(found or {}), **values})

    def _put(self, values: Mapping[str, Any]) -> None:
        """Hold these values: first those of the class, in its order."""
        self.clear()
        ordered = dict.fromkeys((*self.names, *values))
        self.update((name, values[name]) for name in ordered if values.get(name) is not None)

    def __getattr__(self, name: str) -> Any:
        if name in type(self).names or name in self:
            return self.get(name)
        raise AttributeError(
            f"{type(self).__name__} has no value {name!r}; it has {', '.join(type(self).names)}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        self._put({**self, name: value})

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        return self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """The values that are there, in order."""
        return tuple(self.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.names = (*cls.names, *cls.__annotations__)
        # So that torch's own tools, such as export and checkpointing, find the tensors.
        _pytree.register_pytree_node(
            cls,
            lambda output: (list(output.values()), list(output)),
            lambda values, names: cls(dict(zip(names, values, strict=True))),
            flatten_with_keys_fn=lambda output: (
                [(_pytree.MappingKey(name), value) for name, value in output.items()],
                list(output),
            ),
            serialized_type_name=f"{cls.__module__}.{cls.__name__}",
        )


class BaseModelOutputWithPooling(ModelOutput):
    """The outputs of an encoder.

    Attributes:
        last_hidden_state: ``[B, S, H]``.
        pooler_output: ``[B, H]``; None without a pooler.
        hidden_states: The input of the first layer and the output of each layer, ``[B, S, H]``
            each; None unless asked for.
        attentions: The attention weights of each layer, ``[B, heads, S, S]`` each; None unless
            asked for.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None
    hidden_states: Layers | None
    attentions: Layers | None


class _LabelledOutput(ModelOutput):
    loss: Tensor | None
    logits: Tensor
    hidden_states: Layers | None
    attentions: Layers | None


class SequenceClassifierOutput(_LabelledOutput):
    """The outputs of a head that gives one answer per text.

    Attributes:
        loss: 0-d; None without labels.
        logits: ``[B, labels]``.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """


class TokenClassifierOutput(_LabelledOutput):
    """The outputs of a head that gives one label per token.

    Attributes:
        loss: 0-d; None without labels.
        logits: ``[B, S, labels]``; those at padding have no meaning.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """


class MaskedLMOutput(_LabelledOutput):
    """The outputs of a head that predicts masked tokens.

    Attributes:
        loss: 0-d; None without labels.
        logits: ``[B, S, V]``; those at padding have no meaning.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """


class QuestionAnsweringModelOutput(ModelOutput):
    """The outputs of a head that finds answers in a text.

    Attributes:
        loss: 0-d; None without positions.
        start_logits: ``[B, S]``.
        end_logits: ``[B, S]``.
        hidden_states: As for :class:`BaseModelOutputWithPooling`.
        attentions: As there.
    """

    loss: Tensor | None
    start_logits: Tensor
    end_logits: Tensor
    hidden_states: Layers | None
    attentions: Layers | None
