"""Change the shape of a model: drop layers, resize the vocabulary, extract a part.

All functions update the configuration of the graph to match the model. Make optimizers afterwards,
and also task heads, because these read the configuration once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from flodl.errors import PathError
from flodl.graph import FlowBuilder, Graph
from flodl.graph.base import GraphBase
from flodl.graph.selection import Spot, places, select
from flodl.hf.build import build
from flodl.hf.errors import ConfigError
from flodl.hf.families import AutoConfig, EncoderConfig, family_of
from flodl.hf.families.albert import AlbertEncoder
from flodl.hf.families.modernbert import ModernBertLayers
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.layout import IDS, KEYS, LAYOUT, MASK, Keys, Refs
from flodl.hf.model_call import word_table_of


def extract(graph: Graph, path: str) -> Graph:
    """Copy a part of a model into a separate graph; the model stays as it is.

    What is frozen is frozen in the copy.

    - The encoder of a model with a head becomes a model without a head. It ends at
      ``last_hidden_state [B, S, H]`` and has its own configuration.
    - Layers of an encoder become ``graph(hidden_states [B, S, H], attention_mask=None)``,
      renumbered from 0 under ``encoder.layer``; those of a ModernBERT under ``encoder``.

    Args:
        graph: A model of ``flodl.hf``.
        path: What to copy: ``"bert"``, ``"bert.encoder.layer.0-3"``.

    Raises:
        PathError: The path leads nowhere, or neither to the encoder nor to layers of it.
        ConfigError: The path is the encoder, and its parts do not match its configuration, for
            instance while adapters are not merged.
    """
    graph.validate_path(path)  # raises an error that says what is wrong
    spots = select(graph, path)
    if len(spots) == 1 and isinstance(spots[0].module, GraphBase):
        return _encoder_of(graph, spots[0].graph)
    holder = _holder_of(graph, spots) if spots else None
    if holder is None:
        raise PathError(
            f"{path!r} is neither the encoder nor layers of it, which alone can be extracted; "
            "copy another module with copy.deepcopy(graph.get_submodule(name))"
        )
    layers = _layers_of(holder, [int(spot.key) for spot in spots])
    return layers.train(spots[0].module.training)


def drop_layers(graph: Graph, layers: Iterable[int]) -> None:
    """Remove layers from an encoder; the others keep their order and are renumbered.

    The layers of ALBERT share their parameters, so it only runs them fewer times, whichever layers
    are named. The convolution of a DeBERTa stays behind the first layer. The layers of a ModernBERT
    keep their type of attention.

    Args:
        graph: A model, with or without a head.
        layers: Numbers of the layers to remove, from 0.

    Raises:
        ValueError: A number is not that of a layer, no layer would be left, or the graph has no
            encoder.
        ConfigError: The layers of an ALBERT are in several groups, or the first layer of a
            ModernBERT is among those to remove.
    """
    encoder = _encoder_module(graph)
    shared = isinstance(encoder, AlbertEncoder)
    count: int = encoder.times if shared else len(cast("Any", _holder_in(encoder))._modules)
    dropped = set(layers)
    wrong = sorted(dropped - set(range(count)))
    if wrong:
        raise ValueError(f"there is no layer {wrong[0]!r}: the encoder has layers 0 to {count - 1}")
    if len(dropped) == count:
        raise ValueError(f"none of the {count} layers would be left")
    if shared and len(encoder.albert_layer_groups) > 1:
        raise ConfigError(
            f"the {count} layers run in {len(encoder.albert_layer_groups)} groups that share "
            "parameters; layers can be dropped only where there is one group"
        )
    modern = isinstance(encoder, ModernBertLayers)
    if modern and 0 in dropped:
        raise ConfigError(
            "layer 0 of a ModernBERT cannot be dropped: it alone has no norm before its attention, "
            "and no configuration describes a model without it"
        )
    kept = [number for number in range(count) if number not in dropped]
    types = {"layer_types": tuple(encoder.types[number] for number in kept)} if modern else {}
    config = None if graph.source_config is None else AutoConfig.from_json_str(graph.source_config)
    if config is not None:  # refused before the model changes
        config = config.replace(num_hidden_layers=len(kept), **types)
    if shared:
        encoder.times = len(kept)
    else:
        _keep_layers(encoder, kept)
    if config is not None:
        _describe(graph, config)


def resize_vocab(graph: Graph, size: int, *, seed: int = 0) -> None:
    """Change the size of the vocabulary: the word table and the decoder of a masked-language head.

    The first rows stay. New rows are drawn from Normal(0, ``initializer_range``), new biases are
    zero. Tied parameters stay tied. Parameters that have this size already stay the same objects.

    Args:
        graph: A model, with or without a head.
        size: New number of rows of the table.
        seed: Of the new rows; the same seed gives the same rows.

    Raises:
        ValueError: ``size`` is not a positive number, or the graph has no word table.
        ConfigError: The padding token would have no row.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r}: a vocabulary has a whole number of words, at least 1")
    if graph.source_config is None:
        raise ValueError("the graph has no word table: it is not a model of flodl.hf")
    config = AutoConfig.from_json_str(graph.source_config)
    words = word_table_of(graph, config)
    if words.padding_idx is not None and words.padding_idx >= size:
        raise ConfigError(
            f"a vocabulary of {size} has no row for the padding, whose id is {words.padding_idx}"
        )
    config, spread = config.replace(vocab_size=size), config.initializer_range
    generator = torch.Generator().manual_seed(seed)
    resized: dict[Tensor, nn.Parameter] = {}
    for owner, name, parameter in list(_sized_by_words(graph, config, words)):
        if len(parameter) == size:
            continue  # an optimizer may hold it
        if parameter not in resized:
            values = _resized(parameter, size, spread if parameter.dim() > 1 else 0.0, generator)
            resized[parameter] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        owner._parameters[name] = resized[parameter]
        if isinstance(owner, nn.Embedding):
            owner.num_embeddings = size
        elif isinstance(owner, nn.Linear):
            owner.out_features = size
    _describe(graph, config)


def _describe(graph: Graph, config: EncoderConfig) -> None:
    """Update the configuration of a model, and of its encoder if that is open as a model, too."""
    for part in (graph, graph.tree_children().get(config.prefix)):
        if part is not None and part.source_config is not None:
            part.set_source_config(config.to_json_string())


# --- Parts -----------------------------------------------------------------------------------


def _encoder_of(graph: Graph, part: Graph) -> Graph:
    """A model without a head, with the weights of an encoder."""
    config = AutoConfig.from_json_str(str(graph.source_config))
    config = config.replace(architectures=(config.class_name(HeadKind.BASE),))
    model = build(config, HeadKind.BASE, pooler="pooler" in part._modules)
    state = {name: value.detach().clone() for name, value in part.state_dict().items()}
    different = set(state).symmetric_difference(model.state_dict())
    if different:
        raise ConfigError(
            f"the encoder is not the one of its configuration: they differ in {min(different)!r}; "
            "merge adapters, and put replaced modules back"
        )
    model.load_state_dict(state, assign=True)
    for name, parameter in part.named_parameters():
        model.get_parameter(name).requires_grad_(parameter.requires_grad)
    model.set_source_config(config.to_json_string())
    return model.train(part.training)


def _holder_of(graph: Graph, spots: list[Spot]) -> nn.Module | None:
    """The encoder that these layers belong to."""
    for place in places(graph):
        layers = _holder_in(place.module)
        if layers is not None and all(spot.parent is layers for spot in spots):
            return place.module
    return None


def _holder_in(module: nn.Module) -> nn.Module | None:
    """The parent of the layers of an encoder; None if the module is not an encoder."""
    return module if isinstance(module, ModernBertLayers) else module._modules.get("layer")


def _keep_layers(encoder: Any, numbers: Sequence[int]) -> None:
    """Remove all layers of an encoder but these, which are numbered from 0 afterwards."""
    if isinstance(encoder, ModernBertLayers):
        encoder.keep(numbers)
    else:
        encoder.layer = nn.ModuleList(encoder.layer[number] for number in numbers)


class _KeysOfStates(Keys):
    """The attention mask for a graph that takes states instead of ids."""

    def forward_named(self, states: Tensor, refs: Refs) -> Tensor:
        """Read the attention mask; states are ``[B, S, H]``."""
        return super().forward_named(_as_ids(states), refs)


def _as_ids(states: Tensor) -> Tensor:
    return states[..., 0]


def _in_rows(states: Tensor) -> Tensor:
    return states.new_empty(0, dtype=torch.int64)


def _layers_of(holder: nn.Module, numbers: list[int]) -> Graph:
    encoder: Any = copy.deepcopy(holder)
    _keep_layers(encoder, numbers)
    if "conv" in encoder._modules and numbers[0] != 0:
        del encoder.conv  # it belongs beside the first layer of the whole encoder
    flow: FlowBuilder = FlowBuilder.from_(nn.Identity())
    flow.entry("hidden_states").input(MASK, optional=True)
    flow.fork(_as_ids).tag(IDS)
    flow.fork(_KeysOfStates()).using(MASK).tag(KEYS)
    flow.fork(_in_rows).tag(LAYOUT)
    flow.through(encoder, name="encoder").using(IDS, KEYS, LAYOUT)
    return flow.build()


def _encoder_module(graph: Graph) -> Any:
    for place in places(graph):
        layers = _holder_in(place.module)
        if isinstance(layers, nn.ModuleList | ModernBertLayers) or isinstance(
            place.module, AlbertEncoder
        ):
            return place.module
    raise ValueError("the graph has no encoder with layers to drop")


# --- Words -----------------------------------------------------------------------------------


def _sized_by_words(
    graph: Graph, config: EncoderConfig, words: nn.Embedding
) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Every parameter with one row per word: its owner, its name there, the parameter."""
    modules = dict(graph.named_modules())
    yield words, "weight", cast("nn.Parameter", words.weight)
    for decoder in family_of(config).decoders:
        # An output layer below a module of the head shares the bias of that module.
        holder = decoder.rpartition(".")[0]
        for owner, name in ((decoder, "weight"), (decoder, "bias"), (holder, "bias")):
            parameter = modules[owner]._parameters.get(name) if owner in modules else None
            if parameter is not None:
                yield modules[owner], name, parameter


def _resized(old: Tensor, size: int, spread: float, generator: torch.Generator) -> Tensor:
    """The first rows of a tensor; missing rows are drawn."""
    kept = old.detach()[:size].clone()
    fresh = torch.zeros(size - len(kept), *old.shape[1:])
    if spread:
        fresh.normal_(0.0, spread, generator=generator)
    return torch.cat([kept, fresh.to(kept)])
