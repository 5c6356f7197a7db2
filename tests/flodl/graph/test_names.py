"""Names and paths: an unknown one is an error, and one path means the same to every method."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from flodl.errors import BuildError, PathError, StateError
from flodl.graph import FlowBuilder
from tests.rows import each_row

from .layers import double, start, triple

X = torch.ones(2, 3)


class Nap(nn.Module):
    def forward(self, x):
        time.sleep(0.002)
        return x


class Mean(nn.Module):
    def forward(self, x):
        return x.mean()


@pytest.fixture
def model():
    """A child ``enc`` with the tags ``looped`` and ``level``, then a head."""
    encoder = (
        start()
        .through(Nap())
        .tag("looped")
        .fork(Mean())
        .tag("level")
        .split([double, triple])
        .tag_group("part")
        .merge("add")
        .label("enc")
        .build()
    )
    return FlowBuilder.from_(encoder).through(nn.Linear(3, 3)).tag("head").build()


# --- Unknown names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        lambda graph, name: graph.trend(name),
        lambda graph, name: graph.trends(name),
        lambda graph, name: graph.collected(name),
        lambda graph, name: graph.flush(name),
    ],
)
def test_a_metric_nobody_recorded_is_an_error_with_a_suggestion(model, ask):
    model.record("loss", 0.5)
    with pytest.raises(KeyError, match="no metric 'los'; did you mean loss"):
        ask(model, "los")
    ask(model, "loss")
    assert model.latest_metrics() in ([], [("loss", 0.5)])


def test_an_unknown_metric_cannot_pass_for_one_that_has_not_stalled(model):
    for value in (1.0, 1.0, 1.0):
        model.record("loss", value)
        model.flush()
    assert model.trend("loss").stalled(3, 1e-4)
    with pytest.raises(KeyError, match="'los'"):
        model.trend("los").stalled(3, 1e-4)


def test_what_is_known_and_has_no_values_yet_is_no_error(model):
    model.record("loss", 0.5)
    assert model.trend("loss").values == []
    assert model.trend("head").values == []  # a tag, still to be collected
    assert model.trend("enc.level").values == []
    assert model.collected("head") == []
    model.record("head", 1)
    assert model.collected("head") == [1]
    model.flush()
    assert model.trend("head").values == [1]
    assert len(model.trends("enc.part")) == 2
    assert model.timing("head") == 0.0
    assert model.timing("enc.looped") == 0.0
    assert model.profile("enc") is None


def test_a_graph_without_metrics_says_so():
    with pytest.raises(KeyError, match=r"no metric 'loss'; it has: none"):
        start().build().trend("loss")


def test_a_tag_group_has_trends_and_not_one(model):
    encoder = model.child_graph("enc")
    with pytest.raises(KeyError, match=r"'part' is a tag group; ask trends\('part'\)"):
        encoder.trend("part")


@pytest.mark.parametrize("profiled", [False, True])
def test_a_time_of_nothing_is_an_error(model, profiled):
    if profiled:
        model.enable_profiling()
        model(X)
    with pytest.raises(PathError, match="'nonsense'"):
        model.timing("nonsense")
    with pytest.raises(PathError, match="did you mean looped"):
        model.timing("enc.loopd")


# --- Paths --------------------------------------------------------------------------------------


def test_times_reach_into_a_labelled_graph(model):
    model.enable_profiling()
    model(X)
    inner = model.timing("enc.looped")
    assert inner >= 0.002
    assert model.timing("enc") > inner
    assert model.timing("enc.looped") == inner
    assert model.timing("head") > 0
    nodes = {node.id: node.seconds for node in model.profile("enc").nodes}
    assert nodes["nap_2"] == inner
    assert model.profile("").total > model.profile("enc").total
    with pytest.raises(PathError, match="leads to a tag"):
        model.profile("enc.looped")


def test_only_nodes_have_times():
    nested = FlowBuilder.from_(nn.Sequential(nn.Linear(3, 3), nn.ReLU())).tag("seq").build()
    nested.enable_profiling()
    nested(X)
    assert nested.timing("seq") > 0
    with pytest.raises(PathError, match="leads into a node"):
        nested.timing("seq.0")
    with pytest.raises(PathError, match="leads to 2 modules"):
        nested.timing("seq.*")


def test_a_graph_without_a_label_that_is_not_profiled_has_no_time_to_tell():
    child = start().through(Nap()).build()
    model = FlowBuilder.from_(child).tag("child").build()
    assert model.timing("child.nap_2") == 0.0
    model.enable_profiling()
    model(X)
    assert model.timing("child") >= 0.002
    with pytest.raises(StateError, match="not profiled: give it a label"):
        model.timing("child.nap_2")
    child.enable_profiling()
    model(X)
    assert model.timing("child.nap_2") >= 0.002


def test_a_child_that_runs_twice_has_the_time_of_both():
    child = start().through(Nap()).label("child").build()
    twice = FlowBuilder.from_(child).through(child).build()
    twice.enable_profiling()
    twice(X)
    assert twice.timing("child") == pytest.approx(
        sum(node.seconds for node in twice.profile().nodes)
    )


def test_metrics_reach_into_a_labelled_graph(model):
    model(X)
    model.record("enc.loss", [1, 3])
    model.record_scalar("enc.loss", 5)
    model.collect("enc.level")
    model.collect_with("enc.part", "max")
    assert model.collected("enc.loss") == [1, 3, 5]
    encoder = model.child_graph("enc")
    assert encoder.collected("loss") == [1, 3, 5]
    model.flush()
    assert model.trend("enc.loss") == encoder.trend("loss") == model.trend_at("enc.loss")
    assert model.trend("enc.loss").values == [3]
    assert model.trend("enc.level").values == [1]
    assert [trend.latest() for trend in model.trends("enc.part")] == [2, 3]
    assert dict(model.latest_metrics()).keys() == {
        *("enc.loss", "enc.level", "enc.part_0", "enc.part_1"),
    }
    with pytest.raises(KeyError, match=r"did you mean enc\.loss"):
        model.trend("enc.los")


def test_a_name_with_a_dot_that_is_no_label_stays_a_name(model):
    model.record("train.loss", 2.0)
    model.flush()
    assert model.trend("train.loss").values == [2.0]
    assert model.latest_metrics() == [("train.loss", 2.0)]


def test_one_flush_by_name_is_of_one_graph(model):
    model.record("enc.loss", 1)
    with pytest.raises(KeyError, match=r"'enc\.loss' is a metric of another graph"):
        model.flush("enc.loss")
    assert model.latest_metrics() == []


def test_tagged_values_reach_into_a_labelled_graph(model):
    model(X)
    assert torch.equal(model.tagged("enc.looped"), X)
    with pytest.raises(PathError, match="did you mean looped"):
        model.tagged("enc.loopd")
    with pytest.raises(PathError, match="did you mean looped"):
        model.collect("enc.loopd")


def test_a_missing_value_is_explained_by_the_graph_it_belongs_to(model):
    with pytest.raises(StateError, match=r"'enc\.level' has no value to collect: no forward"):
        model.collect("enc.level")


def test_traces_reach_into_a_labelled_graph():
    class Count(nn.Module):
        def forward(self, x):
            return x + 1

        def trace(self):
            return torch.ones(1)

    child = start().loop_body(Count()).for_n(3).tag("steps").label("enc").build()
    model = FlowBuilder.from_(child).build()
    model(X)
    assert len(model.traces("enc.steps")) == 3
    assert model.traces("enc.steps")[-1].item() == 1
    assert model.traces("enc.other") is None


# --- Numbers ------------------------------------------------------------------------------------


@each_row(
    "number",
    [
        0.5,
        torch.tensor(0.5),
        torch.tensor([0.5]),
        np.float32(0.5),
        np.float64(0.5),
        np.array(0.5),
        np.array([0.5]),
        [0.5],
    ],
    ids=repr,
)
def test_one_number_of_any_kind_is_recorded(number):
    graph = start().build()
    graph.record("loss", number)
    graph.record_at("loss", number)
    assert graph.collected("loss") == [0.5, 0.5]


def test_whole_numbers_and_truth_values_are_numbers_as_well():
    graph = start().build()
    for value in (2, True, np.int64(3), np.bool_(True), torch.tensor(4)):
        graph.record("m", value)
    assert graph.collected("m") == [2, 1, 3, 1, 4]


@each_row("value", ["12", b"12", None, object()])
def test_what_is_not_a_number_is_refused(value):
    graph = start().build()
    with pytest.raises(TypeError):
        graph.record("m", value)
    graph.record("m", 1)
    assert graph.collected("m") == [1]


# --- Names of tags ------------------------------------------------------------------------------


@each_row("word", ["class", "lambda", "in", "None"])
def test_a_keyword_of_python_is_not_a_tag(word):
    for flow in (
        start().tag(word),
        start().input(word),
        start().entry(word),
        start().through(nn.ReLU(), name=word),
        start().split([double, triple]).tag_group(word).merge("add"),
        start().through(Adds()).using(word),
    ):
        with pytest.raises(BuildError, match=f"'{word}' is a keyword of Python; choose another"):
            flow.build()


def test_words_with_a_meaning_in_some_places_only_are_names():
    words = ["match", "case", "_"]
    flow = start()
    for word in words:
        flow = flow.through(double).tag(word)
    graph = flow.input("kind", "match_").build()
    assert graph(X, kind=X, match_=X)[0, 0].item() == 8
    assert graph.tag_names()[:3] == words


def test_a_reference_with_a_typo_is_answered_with_what_was_meant():
    with pytest.raises(BuildError, match=r"'encd' \(used at .*\); did you mean enc\?"):
        start().tag("enc").through(Adds()).using("encd").build()
    flow = start().split([double, triple]).tag_group("part").merge("add").through(Adds())
    with pytest.raises(BuildError, match=r"did you mean part_0 or part_1\?"):
        flow.using("part").build()


class Adds(nn.Module):
    def forward(self, x):
        return x

    def forward_named(self, x, refs):
        return x + sum(refs.values())
