"""Build the graphs of all families with all heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from flodl.graph import Graph
from flodl.hf.config_json import DebertaV2Config, EncoderConfig, ModernBertConfig
from flodl.hf.device import known_device
from flodl.hf.head_kind import HeadKind
from flodl.hf.models.backbone import INPUTS, WITH_POOLER, build_backbone
from flodl.hf.models.heads import (
    sequence_classifier,
    span_finder,
    token_classifier,
    word_decoder,
)
from flodl.hf.models.initial import initial_of
from flodl.hf.models.layout import IDS, PLACES, READ, ReadPositions
from flodl.hf.models.model_graph import ModelFlow


def build_graph(
    config: EncoderConfig,
    kind: HeadKind,
    *,
    pooler: bool | None = None,
    num_labels: int = 2,
    device: torch.device | str = "meta",
    seed: int | None = None,
) -> Graph:
    """Build a model as a graph whose parameters have the names of a checkpoint.

    ``graph(input_ids, attention_mask=None, token_type_ids=None, position_ids=None)`` returns
    ``last_hidden_state [B, S, H]`` without a head. With a head it returns ``[B, labels]``,
    ``[B, S, labels]``, ``[B, S, 2]`` or ``[B, S, V]``.

    Args:
        config: Any of the seven families.
        kind: The head.
        pooler: Whether an encoder without a head has a pooler; None for the default of its family.
        num_labels: Classes of a classifier.
        device: Where the model is made; on ``"meta"`` tensors have no values.
        seed: Seed of new values; None draws from torch's global generator.

    Raises:
        ValueError: ``num_labels`` is not a positive number.
    """
    if isinstance(num_labels, bool) or not isinstance(num_labels, int) or num_labels < 1:
        raise ValueError(f"num_labels is a number of classes of at least 1, not {num_labels!r}")
    device = known_device(device)
    with torch.device("meta"), NoInitialisation():
        graph = _described(config, kind, pooler, num_labels)
    if kind is HeadKind.MLM:
        tie_words(graph, config)
    if device.type != "meta":
        initialise(graph, config, device, seed)
    return graph


class NoInitialisation(TorchFunctionMode):
    """Skips the functions of ``torch.nn.init``, which all return the tensor they would fill.

    On the meta device there is nothing to fill, and drawing there loads torch's compiler, which
    takes longer than loading torch.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call any other function."""
        options = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else options["tensor"]
        return func(*args, **options)


def _described(config: EncoderConfig, kind: HeadKind, pooler: bool | None, labels: int) -> Graph:
    can_pool = config.model_type in WITH_POOLER
    if kind is HeadKind.BASE:
        return build_backbone(config, pooler=can_pool and pooler is not False)
    pooled = kind is HeadKind.SEQCLS and config.model_type in ("bert", "albert")
    reads_first = kind is HeadKind.SEQCLS and not _averages(config)
    backbone = build_backbone(
        config,
        pooler=pooled,
        ends_pooled=pooled,
        told_what_is_read=reads_first,
        all_read=kind is HeadKind.QA,  # its softmax goes over all positions of a row
    )
    flow = ModelFlow.from_(nn.Identity())
    flow.entry("input_ids").tag(IDS, keep=False).input(*INPUTS, optional=True)
    if reads_first:
        flow.fork(ReadPositions()).using(PLACES).tag(READ, keep=False)
    flow.through(backbone, name=config.prefix).using(*INPUTS, *((READ,) if reads_first else ()))
    match kind:
        case HeadKind.SEQCLS:
            sequence_classifier(flow, config, labels)
        case HeadKind.TOKCLS:
            token_classifier(flow, config, labels)
        case HeadKind.QA:
            span_finder(flow, config)
        case HeadKind.MLM:
            word_decoder(flow, config)
    # The scores of all words are the largest tensor, so only the caller keeps them.
    return flow.tag("logits", keep=kind is not HeadKind.MLM).build()


def _averages(config: EncoderConfig) -> bool:
    """Whether a classifier of rows reads all their tokens."""
    return isinstance(config, ModernBertConfig) and config.classifier_pooling == "mean"


def tie_words(graph: nn.Module, config: EncoderConfig) -> None:
    """Let the decoder of a masked-language head share the encoder's table, if the model does so.

    ``decoder.weight`` becomes the same object as the table, ``decoder.bias`` the same as ``bias``.
    """
    own_table = config.model_type == "deberta-v2" and not cast("DebertaV2Config", config).legacy
    if not config.tie_word_embeddings and not own_table:
        return
    modern = config.model_type == "modernbert"
    table = "tok_embeddings" if modern else "word_embeddings"
    words = graph.get_submodule(f"{config.prefix}.embeddings.{table}")
    for name, module in graph.named_modules():
        if name.endswith(".decoder") or name in ("vocab_projector", "decoder"):
            module.weight = words.weight
            owner = graph.get_submodule(name.rpartition(".")[0])
            if name.endswith(".decoder"):
                module.bias = owner.bias


def initialise(
    graph: nn.Module,
    config: EncoderConfig,
    device: torch.device | str,
    seed: int | None = None,
) -> None:
    """Draw values for every tensor on the meta device; the same seed gives the same values.

    Weights are drawn from a normal distribution of ``initializer_range``, or from that of their
    module (ModernBERT). Biases are zero, the weights of a LayerNorm one, and the row of padding is
    zero. Shared parameters stay shared.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    made: dict[int, nn.Parameter] = {}
    for module, name, parameter in _parameters(graph):
        if id(parameter) not in made:
            values = fresh(module, name, parameter, config.initializer_range, generator)
            made[id(parameter)] = nn.Parameter(values.to(device))
    for module, name, parameter in list(_parameters(graph)):
        module._parameters[name] = made[id(parameter)]


def fresh(
    module: nn.Module, name: str, like: Tensor, spread: float, generator: torch.Generator | None
) -> Tensor:
    """Initial values of one parameter, on the CPU.

    Args:
        module: The module with the parameter.
        name: Its name there.
        like: Shape and dtype.
        spread: Standard deviation of weights, if the module has no distribution of its own.
        generator: Draws them.
    """
    values = torch.zeros(like.shape, dtype=like.dtype)
    if isinstance(module, nn.LayerNorm):
        return values.fill_(1.0) if name == "weight" else values
    if name == "weight":
        cut = initial_of(module)
        if cut is None:
            values.normal_(0.0, spread, generator=generator)
        else:
            cut.draw(values, generator)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            values[module.padding_idx] = 0.0
    return values


def _parameters(graph: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for module in graph.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter
