"""Modules of a graph by their dotted names and by patterns of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from flodl.errors import PathError
from flodl.graph import FlowBuilder, Graph, PathKind, StateAdd
from flodl.graph.selection import places, segment_matcher, select
from tests.rows import each_row


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.output = nn.ModuleDict({"dense": nn.Linear(4, 4), "LayerNorm": nn.LayerNorm(4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.output["LayerNorm"](self.output["dense"](self.attention(x)) + x)
        return y


class Encoder(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            x = layer(x)
        return x


def backbone(layers: int = 12) -> Graph:
    """A labelled graph with the names of an encoder model."""
    return (
        FlowBuilder.from_(nn.Linear(3, 4))
        .tag("embeddings")
        .through(Encoder(layers), name="encoder")
        .label("bert")
        .build()
    )


def head_model(layers: int = 12) -> Graph:
    return (
        FlowBuilder()
        .through(backbone(layers), name="bert")
        .through(nn.Linear(4, 2), name="classifier")
        .build()
    )


def frozen(graph: Graph) -> set[str]:
    return {name for name, p in graph.named_parameters() if not p.requires_grad}


def paths(graph: Graph, pattern: str) -> list[str]:
    return [spot.path for spot in select(graph, pattern)]


# --- What a pattern means --------------------------------------------------------------------


@each_row(
    ("segment", "yes", "no"),
    [
        ("layer", ["layer"], ["layers", "Layer"]),
        ("*", ["", "0", "layer"], []),
        ("lay*", ["lay", "layer"], ["play"]),
        ("?", ["0", "a"], ["10", ""]),
        ("[0-11]", ["0", "9", "10", "11"], ["12", "x", "-1"]),
        ("[0,2,4-6]", ["0", "2", "5"], ["1", "3", "7"]),
        ("3-5", ["3", "4", "5", "3-5"], ["2", "6", "35"]),
        ("block_[2-10]", ["block_2", "block_10"], ["block_11", "block_", "2"]),
        ("a.b", ["a.b"], ["axb"]),
        ("h[1]_[2-3]", ["h1_2", "h1_3"], ["h2_2", "h1_1"]),
    ],
)
def test_segments(segment: str, yes: list[str], no: list[str]) -> None:
    matches = segment_matcher(segment)
    assert [matches(name) for name in yes] == [True] * len(yes)
    assert [matches(name) for name in no] == [False] * len(no)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_a_range_means_numbers_and_not_characters(low: int, high: int, number: int) -> None:
    low, high = min(low, high), max(low, high)
    expected = low <= number <= high
    assert segment_matcher(f"[{low}-{high}]")(str(number)) is expected
    assert segment_matcher(f"{low}-{high}")(str(number)) is expected


@each_row("segment", ["[a-c]", "[]", "[0-", "x[1", "[!0]", "[1,,2]"])
def test_what_brackets_cannot_hold_is_named(segment: str) -> None:
    with pytest.raises(PathError, match=r"numbers and ranges of numbers, like \[0-5\]"):
        segment_matcher(segment)


def test_a_backward_range_is_refused() -> None:
    graph = backbone(2)
    with pytest.raises(PathError, match=r"the range '5-0' runs backwards"):
        graph.freeze("encoder.layer.[5-0]")


# --- What a path leads to --------------------------------------------------------------------


def test_a_name_leads_to_its_module_and_a_pattern_to_all_it_fits_in_order() -> None:
    graph = head_model()
    assert paths(graph, "bert.encoder.layer.3.output.dense") == [
        "bert.encoder.layer.3.output.dense"
    ]
    assert paths(graph, "bert.encoder.layer.[9-12].attention") == [
        f"bert.encoder.layer.{index}.attention" for index in (9, 10, 11)
    ]
    assert paths(graph, "*") == ["identity_1", "bert", "classifier"]
    assert paths(graph, "bert.encoder.layer.11.output.*") == [
        "bert.encoder.layer.11.output.dense",
        "bert.encoder.layer.11.output.LayerNorm",
    ]
    assert paths(graph, "nothing.*") == []


def test_every_module_has_a_place_and_its_path_leads_there() -> None:
    graph = head_model(2)
    named = dict(graph.named_modules())
    assert {spot.path: spot.module for spot in places(graph)} == named
    for spot in list(places(graph))[1:]:
        assert spot.parent is not None
        assert spot.parent._modules[spot.key] is spot.module
        assert [found.module for found in select(graph, spot.path)] == [spot.module]


def test_a_graph_answers_to_its_own_label_at_the_front() -> None:
    graph = backbone(2)
    assert paths(graph, "bert.encoder.layer.1") == ["encoder.layer.1"]
    assert graph.parameters_at("bert") == list(graph.parameters())
    assert graph.parameters_at("bert.embeddings") == graph.parameters_at("embeddings")
    with pytest.raises(PathError, match="'roberta'"):
        graph.parameters_at("roberta.encoder")


def test_a_child_answers_to_its_label_whatever_it_is_registered_as() -> None:
    graph = FlowBuilder.from_(backbone(2)).through(nn.Linear(4, 2)).build()
    assert paths(graph, "bert.encoder.layer.0") == ["graph_1.encoder.layer.0"]
    assert paths(graph, "be?t.encoder") == paths(graph, "graph_1.encoder")


def test_the_kind_of_a_path() -> None:
    graph = head_model(2)
    assert graph.validate_path("bert") is PathKind.SUBGRAPH
    assert graph.validate_path("bert.embeddings") is PathKind.TAG
    assert graph.validate_path("bert.encoder.layer.[0-1]") is PathKind.MODULE
    assert graph.subgraph("b*t") is graph.child_graph("bert")
    with pytest.raises(PathError, match="leads to modules; give the path of a child graph"):
        graph.subgraph("bert.encoder")
    for observe in (graph.tagged, graph.collect):
        with pytest.raises(PathError):
            observe("bert.encoder")


def test_an_internal_tag_is_not_reached_by_its_name_as_a_module() -> None:
    child = FlowBuilder.from_(nn.Linear(1, 1)).tag("_hidden").label("child").build()
    graph = FlowBuilder().through(child, name="child").build()
    with pytest.raises(PathError, match="is internal to graph 'child'"):
        graph.freeze("child._hidden")


@each_row(
    ("path", "message"),
    [
        ("bert.encoder.layer.7", r"module 'bert.encoder.layer' has 0, 1$"),
        ("bert.encodr.layer.0", r"module 'bert' has encoder$"),
        ("bert.encoder.layer.0.atention", r"has attention$"),
        ("classifier.weight", r"'weight' is a parameter of module 'classifier'; give the path"),
        ("classifier.dense", r"module 'classifier' has no modules below it"),
        ("clasifier", r"this graph has classifier$"),
        ("bert.embedings", r"did you mean embeddings\?$"),
    ],
)
def test_a_path_that_leads_nowhere_is_told_how_far_it_leads(path: str, message: str) -> None:
    with pytest.raises(PathError, match=message):
        head_model(2).freeze(path)


# --- What is done with it --------------------------------------------------------------------


def test_freezing_by_range_freezes_those_layers_and_nothing_else() -> None:
    graph = head_model()
    graph.freeze("bert.encoder.layer.[0-10]")
    names = {name for name, _ in graph.named_parameters()}
    wanted = tuple(f"bert.encoder.layer.{index}." for index in range(11))
    assert frozen(graph) == {name for name in names if name.startswith(wanted)}
    assert graph.is_frozen("bert.encoder.layer.[0-10]")
    assert graph.is_frozen("bert.encoder.layer.10.output.dense")
    assert not graph.is_frozen("bert.encoder")
    graph.thaw("bert.encoder.layer.*.output")
    assert frozen(graph) == {
        f"bert.encoder.layer.{index}.attention.{name}"
        for index in range(11)
        for name in ("weight", "bias")
    }


def test_parameters_have_the_names_of_the_innermost_graph() -> None:
    graph = head_model(2)
    named = graph.named_parameters_at("bert.encoder.layer.[0-1].attention")
    assert [name for name, _ in named] == [
        "encoder/layer.0.attention.weight", "encoder/layer.0.attention.bias",
        "encoder/layer.1.attention.weight", "encoder/layer.1.attention.bias",
    ]  # fmt: skip
    group = graph.optim_group("bert.encoder.layer.1.attention", 0.5)
    layer = graph.get_submodule("bert.encoder.layer.1.attention")
    assert group == {"params": list(layer.parameters()), "lr": 0.5}


def test_a_module_found_in_two_places_counts_once() -> None:
    shared = nn.Linear(4, 4)
    graph = FlowBuilder.from_(shared).through(shared).through(nn.BatchNorm1d(4)).build()
    assert len(select(graph, "linear_*")) == 2
    assert graph.parameters_at("linear_*") == list(shared.parameters())
    named = graph.named_parameters_at("linear_*")
    assert [name for name, _ in named] == ["linear_1/weight", "linear_1/bias"]
    assert len(graph.named_parameters_at("*")) == 4


def test_mode_and_statistics_by_pattern() -> None:
    norms = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Dropout())
    graph = FlowBuilder.from_(norms).build()
    graph.freeze("sequential_1.[0-1]", stats=True)
    graph.train()
    assert [module.training for module in norms] == [False, False, True]
    graph.thaw("sequential_1.0")
    assert [module.training for module in norms] == [True, False, True]
    graph.set_training_at("sequential_1.2", False)
    assert not norms[2].training


# --- Replacing -------------------------------------------------------------------------------


def test_a_replaced_module_runs_and_the_old_one_is_returned() -> None:
    graph = head_model(2).eval()
    x = torch.randn(5, 3)
    old = graph.get_submodule("bert.encoder.layer.0")
    assert graph.replace("bert.encoder.layer.0", nn.Identity()) is old
    new = graph.get_submodule("bert.encoder.layer.0")
    assert not new.training
    embedded = graph.get_submodule("bert.embeddings")(x)
    expected = graph.get_submodule("classifier")(
        graph.get_submodule("bert.encoder.layer.1")(embedded)
    )
    torch.testing.assert_close(graph(x), expected)
    wide = nn.Linear(4, 7)
    graph.replace("classifier", wide)
    assert graph(x).shape == (5, 7)
    assert graph.parameters_at("classifier") == list(wide.parameters())


def test_a_replaced_child_graph_takes_its_place() -> None:
    graph = head_model(2)
    before = graph.structural_hash()
    other = backbone(3)
    graph.replace("bert", other)
    assert graph.child_graph("bert") is other
    assert other.is_composed
    assert graph.structural_hash() != before
    nested = FlowBuilder().through(graph, name="model").build()
    nested.replace("model.bert.encoder.layer.2", nn.Identity())
    assert isinstance(other.get_submodule("encoder.layer.2"), nn.Identity)


def test_a_replacement_may_carry_state() -> None:
    memory = FlowBuilder().through(StateAdd()).using("y").tag("y").build()
    graph = FlowBuilder().through(nn.ReLU(), name="step").build()
    nested = FlowBuilder().through(graph, name="inner").build()
    nested.replace("inner.step", memory)
    one = torch.ones(2, 1)
    assert [nested(one).sum().item() for _ in range(3)] == [2.0, 4.0, 6.0]
    nested.reset_state()
    assert nested(one).sum().item() == 2.0


def test_a_graph_watches_over_state_that_a_replacement_brings() -> None:
    memory = FlowBuilder().through(StateAdd()).using("y").tag("y").build()
    flow = FlowBuilder.from_(nn.Linear(2, 2)).tag("hidden").through(nn.ReLU(), name="step")
    graph = flow.build()
    graph.replace("step", memory)
    graph(torch.ones(1, 2))
    hidden = graph.tagged("hidden")
    assert hidden is not None
    hidden.sum().backward()  # type: ignore[no-untyped-call]
    # What is carried comes from the linear layer, whose history is used up.
    graph(torch.ones(1, 2)).sum().backward()


@each_row(
    ("path", "message"),
    [
        ("bert.encoder.layer.*", "leads to 2 modules"),
        ("sum", "leads to a node without a module"),
        ("model", "leads to this graph"),
        ("nowhere", "no child graph or tag 'nowhere'"),
    ],
)
def test_only_one_module_can_be_replaced(path: str, message: str) -> None:
    graph = (
        FlowBuilder()
        .through(backbone(2), name="bert")
        .also(nn.Linear(4, 4))
        .tag("sum")
        .label("model")
        .build()
    )
    with pytest.raises(PathError, match=message):
        graph.replace(path, nn.Identity())


def test_only_a_module_can_replace_one() -> None:
    with pytest.raises(TypeError, match="replace needs a module, not function"):
        backbone(1).replace("encoder", lambda x: x)  # type: ignore[arg-type]


@each_row("path", ["bert", "bert.encoder.layer.1.output.dense"])
def test_a_module_cannot_stand_within_itself(path: str) -> None:
    graph = head_model(2)
    whole = nn.Sequential(nn.Linear(4, 4), graph)
    before = dict(graph.named_modules())
    for holder in (graph, whole):
        with pytest.raises(ValueError, match=rf"replacement for '{path}' contains the graph in"):
            graph.replace(path, holder)
    assert dict(graph.named_modules()) == before


@each_row("holder", ["child", "tag"])
def test_a_replacement_cannot_take_a_label_that_is_in_use(holder: str) -> None:
    flow = FlowBuilder()
    if holder == "child":
        flow.through(backbone(1), name="encoder")
    else:
        flow.through(nn.Linear(3, 4)).tag("bert")
    graph = flow.through(nn.Linear(4, 2), name="classifier").build()
    with pytest.raises(ValueError, match="labelled 'bert', which names something else there"):
        graph.replace("classifier", backbone(1))
    assert isinstance(graph.get_submodule("classifier"), nn.Linear)
    graph.replace("encoder" if holder == "child" else "bert", backbone(2))
    assert len(graph.parameters_at("bert.encoder.layer.*")) == 2 * 6


def test_a_child_of_a_child_is_replaced_in_its_own_parent() -> None:
    def small(label: str) -> Graph:
        return FlowBuilder.from_(nn.Linear(2, 2)).label(label).build()

    inner, other = small("inner"), small("inner")
    outer = FlowBuilder.from_(inner).label("outer").build()
    model = FlowBuilder.from_(outer).build()
    assert model.replace("outer.inner", other) is inner
    assert model.subgraph("outer.inner") is other


def test_a_long_list_of_modules_is_cut_and_says_how_much_is_missing() -> None:
    layers = nn.ModuleDict({f"part{index}": nn.ReLU() for index in range(14)})
    model = FlowBuilder.from_(nn.ReLU()).build()
    model._modules["parts"] = layers
    with pytest.raises(PathError, match=r"part0, part1, .*part11 and 2 more$"):
        model.freeze("parts.zzz")
    with pytest.raises(PathError, match=r"module 'parts' has part1[0-9]?, .*[0-9]$") as caught:
        model.freeze("parts.part1x")
    assert "more" not in str(caught.value)


def test_an_empty_place_of_a_module_matches_nothing() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.full = nn.Linear(2, 2)
            self.register_module("bare", None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.full(x)
            return y

    model = FlowBuilder.from_(Holder()).tag("holder").build()
    assert [spot.path for spot in select(model, "holder.*")] == ["holder.full"]
    assert [spot.path for spot in places(model)] == ["", "holder", "holder.full"]
