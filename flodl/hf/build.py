"""Build a model as a graph: what a configuration says, with the layers of its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from flodl.device import select_device
from flodl.graph import FlowBuilder, Graph
from flodl.hf.config import EncoderConfig
from flodl.hf.families import family_of
from flodl.hf.head_kind import HeadKind, named_head
from flodl.hf.layers.initial import initialise
from flodl.hf.layers.layout import (
    IDS,
    KEYS,
    LAYOUT,
    MASK,
    PLACES,
    POSITIONS,
    READ,
    RECORD,
    TYPES,
    ChoiceOfLayout,
    InRows,
    Keys,
    ReadPositions,
    Record,
)

INPUTS = (MASK, TYPES, POSITIONS, PLACES)
"""The inputs of every model after its ids, in this order; all are optional."""

POOLER_OUTPUT = "pooler_output"
LAST_HIDDEN_STATE = "last_hidden_state"


def build(
    config: EncoderConfig,
    kind: HeadKind | None = None,
    *,
    pooler: bool = True,
    device: torch.device | str = "meta",
    seed: int | None = None,
) -> Graph:
    """Build a model as a graph whose parameters have the names of a checkpoint.

    ``graph(input_ids, attention_mask=None, token_type_ids=None, position_ids=None)`` returns
    ``last_hidden_state [B, S, H]`` without a head. With a head it returns ``[B, labels]``,
    ``[B, S, labels]``, ``[B, S, 2]`` or ``[B, S, V]``.

    Args:
        config: Any of the seven families.
        kind: The head; None for that of the class which the configuration names.
        pooler: Whether an encoder without a head has a pooler, if its family can have one.
        device: Where the model is made; on ``"meta"`` tensors have no values.
        seed: Seed of new values; None draws from torch's global generator.

    Raises:
        UnsupportedModelError: The configuration names a head that flodl does not have.
    """
    kind = named_head(config) if kind is None else kind
    device = select_device(device)
    with torch.device("meta"), NoInitialisation():
        graph = _described(config, kind, pooler)
    if kind is HeadKind.MLM:
        _tie_words(graph, config)
    if device.type != "meta":
        initialise(graph, config.initializer_range, device, seed)
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


def _described(config: EncoderConfig, kind: HeadKind, pooler: bool) -> Graph:
    family = family_of(config)
    if kind is HeadKind.BASE:
        return _encoder(config, pooler=pooler)
    pooled = kind is HeadKind.SEQCLS and family.classifies_pooled
    reads_first = kind is HeadKind.SEQCLS and not family.averages(config)
    encoder = _encoder(
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
    flow.through(encoder, name=config.prefix).using(*INPUTS, *((READ,) if reads_first else ()))
    match kind:
        case HeadKind.SEQCLS:
            family.row_classifier(flow, config, config.num_labels)
        case HeadKind.TOKCLS:
            family.token_classifier(flow, config, config.num_labels)
        case HeadKind.QA:
            family.span_finder(flow, config)
        case HeadKind.MLM:
            family.word_decoder(flow, config)
    # The scores of all words are the largest tensor, so only the caller keeps them.
    return flow.tag("logits", keep=kind is not HeadKind.MLM).build()


def _encoder(
    config: EncoderConfig,
    *,
    pooler: bool,
    ends_pooled: bool = False,
    told_what_is_read: bool = False,
    all_read: bool = False,
) -> Graph:
    """Describe an encoder as a graph, labelled with its prefix.

    Inputs are ``input_ids [B, S]`` and the optional :data:`INPUTS`. The output is
    ``last_hidden_state [B, S, H]``; with a pooler, ``pooler_output [B, H]`` is a tag.

    Args:
        config: Any of the seven families.
        pooler: Whether there is a pooler, if the family can have one.
        ends_pooled: Whether the output is that of the pooler.
        told_what_is_read: Whether there is a further input, the output of :class:`ReadPositions`.
        all_read: Whether results depend on the states of padding; see :class:`ChoiceOfLayout`.
    """
    family = family_of(config)
    flow = ModelFlow.from_(nn.Identity())
    told = (READ,) if told_what_is_read else ()
    flow.entry("input_ids").tag(IDS, keep=False).input(*INPUTS, *told, RECORD, optional=True)
    flow.label(config.prefix)
    # If padding attends to all positions, every row has something to attend to.
    free = family.pads_see_all
    flow.fork(Keys(first_of_none=not free)).using(MASK).tag(KEYS, keep=False)
    choice = ChoiceOfLayout(all_read=all_read, first_sees_all=told_what_is_read and free)
    flow.fork(choice).using(PLACES, KEYS).tag(LAYOUT, keep=False)
    known = (IDS, KEYS, LAYOUT)
    masked = (*known, MASK, TYPES, POSITIONS)
    flow.through(family.embeddings(config), name="embeddings").using(*masked)
    turned = (POSITIONS,) if family.turns_by_position else ()
    layers = family.encoder(config)
    flow.through(layers, name=family.encoder_name).using(*known, *turned, *told, RECORD)
    norm = family.final_norm(config)
    if norm is not None:
        flow.through(norm, name="final_norm")
    flow.through(InRows(), name="in_rows").using(*known, *told).tag(LAST_HIDDEN_STATE)
    made = family.pooler(config) if pooler else None
    if made is not None:
        add = flow.through if ends_pooled else flow.fork
        add(made, name="pooler").tag(POOLER_OUTPUT)
    return flow.build()


def _tie_words(graph: nn.Module, config: EncoderConfig) -> None:
    """Let the decoder of a masked-language head share the encoder's table, if the model does so.

    ``decoder.weight`` becomes the same object as the table, ``decoder.bias`` the same as ``bias``.
    """
    family = family_of(config)
    if not (config.tie_word_embeddings or family.ties_always(config)):
        return
    words = graph.get_submodule(f"{config.prefix}.{family.table}")
    modules = dict(graph.named_modules())
    for name in family.decoders:
        if name in modules:
            modules[name].weight = words.weight
            owner = name.rpartition(".")[0]
            if owner:
                modules[name].bias = modules[owner].bias


class ModelGraph(Graph):
    """A model of ``flodl.hf``, with or without a head.

    ``torch.export`` takes ``dynamic_shapes`` by the names of these arguments.
    """

    def forward(  # type: ignore[override]  # a graph takes any inputs, a model these
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        places: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Run the model.

        Args:
            input_ids: ``[B, S]``.
            attention_mask: 0 for padding, ``[B, S]``; see :class:`~flodl.hf.layers.layout.Keys`.
            token_type_ids: Segments, ``[B, S]``.
            position_ids: ``[B, S]``, if the family takes positions.
            places: Positions of the tokens to compute, in the flattened ``[B * S]``, int64 ``[T]``;
                empty for all positions, None for the choice of the model.
            **others: Further inputs of the encoder of a model with a head.

        Returns:
            ``last_hidden_state [B, S, H]``, or the logits of the head.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, places)
        record = others.get(RECORD)
        if record is None:
            return super().forward(*inputs, **others)
        return self._recorded(record, self._ordered(inputs, others))

    def _recorded(self, record: Record, inputs: tuple[Tensor | None, ...]) -> Tensor:
        """Run the pure core and record the tagged values; other threads do not see them."""
        core = self._core if self._core.tags else self._core.variant(tags=True, mark=None)
        try:
            output, tags, _, _ = core.run(self._modules, inputs, ())
        except Exception as error:
            core.explain(error)
            raise
        named = zip(self.topology.kept_tags, tags, strict=True)
        record.tags = {name: value for name, value in named if value is not None}
        return output


class ModelFlow(FlowBuilder):
    """Builds a :class:`ModelGraph`."""

    _makes = ModelGraph

    def build(self) -> ModelGraph:
        """Make the graph; see :meth:`FlowBuilder.build`."""
        return cast("ModelGraph", super().build())
