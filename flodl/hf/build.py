"""Build a model as a graph: what a configuration says, with the layers of its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from flodl.device import select_device
from flodl.graph import Graph
from flodl.graph.modules import Lambda
from flodl.graph.topology import ENTRY, REF, Call, Node, Port, RefStyle, Topology, Wire
from flodl.hf.config import EncoderConfig
from flodl.hf.families import family_of
from flodl.hf.head_kind import HeadKind, named_head
from flodl.hf.layers.encoder import Part
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
    with torch.device("meta"), NoInitialisation():
        graph = _described(config, kind, pooler)
    if kind is HeadKind.MLM:
        _tie_words(graph, config)
    if getattr(device, "type", device) != "meta":
        initialise(graph, config.initializer_range, select_device(device), seed)
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
    told = (READ,) if reads_first else ()
    model = _Description(INPUTS)
    if reads_first:
        model.branch(Part(ReadPositions(), None, (PLACES,)), READ, keep=False)
    model.step(Part(encoder, config.prefix, (*INPUTS, *told)))
    match kind:
        case HeadKind.SEQCLS:
            head = family.row_classifier(config)
        case HeadKind.TOKCLS:
            head = family.token_classifier(config)
        case HeadKind.QA:
            head = family.span_finder(config)
        case HeadKind.MLM:
            head = family.word_decoder(config)
    *parts, last = head
    for part in parts:
        model.step(part)
    # The scores of all words are the largest tensor, so only the caller keeps them.
    model.step(last, tag="logits", keep=kind is not HeadKind.MLM)
    return model.graph()


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
    told = (READ,) if told_what_is_read else ()
    model = _Description((*INPUTS, *told, RECORD), config.prefix)
    # If padding attends to all positions, every row has something to attend to.
    free = family.pads_see_all
    model.branch(Part(Keys(first_of_none=not free), None, (MASK,)), KEYS, keep=False)
    choice = ChoiceOfLayout(all_read=all_read, first_sees_all=told_what_is_read and free)
    model.branch(Part(choice, None, (PLACES, KEYS)), LAYOUT, keep=False)
    known = (IDS, KEYS, LAYOUT)
    model.step(Part(family.embeddings(config), "embeddings", (*known, MASK, TYPES, POSITIONS)))
    turned = (POSITIONS,) if family.turns_by_position else ()
    layers = family.encoder(config)
    model.step(Part(layers, family.encoder_name, (*known, *turned, *told, RECORD)))
    norm = family.final_norm(config)
    if norm is not None:
        model.step(Part(norm, "final_norm"))
    model.step(Part(InRows(), "in_rows", (*known, *told)), tag=LAST_HIDDEN_STATE)
    if pooler and family.pooler is not None:
        made = Part(family.pooler(config.hidden_size), "pooler")
        add = model.step if ends_pooled else model.branch
        add(made, tag=POOLER_OUTPUT)
    return model.graph()


class _Description:
    """A model as a chain of steps, which read further values by name.

    Args:
        inputs: The names of the inputs after the ids; all may be left out.
        label: The name of the graph.
    """

    def __init__(self, inputs: Sequence[str], label: str | None = None) -> None:
        self._label, self._inputs = label, tuple(inputs)
        self._nodes: list[Node] = []
        self._modules: dict[int, nn.Module] = {}
        self._tags: dict[str, int] = {}
        self._passing: set[str] = set()
        self._end = ENTRY
        self.step(Part(nn.Identity()), tag=IDS, keep=False)
        for name in inputs:
            self._nodes.append(Node(len(self._nodes) + 1, "input", Port(name), ()))
            self._tags[name] = len(self._nodes)

    def step(self, part: Part, *, tag: str | None = None, keep: bool = True) -> None:
        """Append a step to the chain; its value may get a name."""
        module = part.module if isinstance(part.module, nn.Module) else Lambda(part.module)
        number = len(self._nodes) + 1
        style = None
        if part.using:  # a graph has further inputs, such as its record
            style = RefStyle.NAMED if isinstance(module, Graph) else RefStyle.ARGUMENT
        read = [Wire(self._tags[name], f"{REF}{name}") for name in part.using]
        kind = type(module).__name__.lower()
        prefix = part.name or tag or f"{kind}_{number}"
        self._nodes.append(Node(number, kind, Call(style), (Wire(self._end), *read), prefix))
        self._modules[number], self._end = module, number
        if tag is not None:
            self._tags[tag] = number
            if not keep:
                self._passing.add(tag)

    def branch(self, part: Part, tag: str, *, keep: bool = True) -> None:
        """Compute a further value of the end of the chain, which stays."""
        end = self._end
        self.step(part, tag=tag, keep=keep)
        self._end = end

    def graph(self) -> ModelGraph:
        """The graph that ends where the chain ends."""
        topology = Topology(
            nodes=tuple(self._nodes),
            output=self._end,
            inputs=("input_ids", *self._inputs),
            tags=tuple(self._tags.items()),
            label=self._label,
            optional=frozenset(self._inputs),
            passing=frozenset(self._passing),
        )
        return ModelGraph(topology, self._modules)


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
        inputs: tuple[Tensor | None, ...]
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, places)
        rest = self.topology.inputs[len(inputs) :]
        if not others.keys() <= set(rest):
            return super().forward(*inputs, **others)  # refuses them
        record = others.get(RECORD)
        inputs = (*inputs, *map(others.get, rest))
        return self._run(self._core, inputs) if record is None else self._recorded(record, inputs)

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
