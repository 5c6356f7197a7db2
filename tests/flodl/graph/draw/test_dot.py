"""What a graph looks like to Graphviz."""

from __future__ import annotations

import os
import re
import shutil
import stat
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from flodl.errors import FlodlError
from flodl.graph import FlowBuilder, StateAdd
from flodl.graph.draw.style import format_count, format_seconds, heat_color
from tests.rows import each_row

from .graphs import encoder, everything

_TEXT = r'"(?:[^"\\]|\\.)*"'
_NODE = re.compile(rf"^\s*({_TEXT}) \[(.*)\];$", re.MULTILINE)
_EDGE = re.compile(rf"^\s*({_TEXT}) -> ({_TEXT}) \[(.*)\];$", re.MULTILINE)


def nodes(source):
    """The attributes of every node, by id."""
    return {name[1:-1]: attributes(text) for name, text in _NODE.findall(source)}


def edges(source):
    """Start, end and attributes of every edge."""
    return [(a[1:-1], b[1:-1], attributes(text)) for a, b, text in _EDGE.findall(source)]


def attributes(text):
    pairs = re.findall(rf"(\w+)=({_TEXT}|[^,\"\]]+)", text)
    return {name: value.strip('"') for name, value in pairs}


def small():
    return FlowBuilder.from_(nn.Linear(2, 2)).tag("enc").through(nn.ReLU()).build()


@pytest.mark.case("runtime", 42)
@each_row("depth", [1, 2, 9])
def test_every_edge_of_a_graph_with_every_kind_of_node_joins_declared_nodes(depth):
    graph = everything()
    source = graph.dot(depth=depth)
    assert source.startswith("digraph G {")
    assert 'label="level 0";' in source
    assert "#enc" in source
    declared, arrows = nodes(source), edges(source)
    assert source.count(" -> ") == len(arrows) > len(graph.topology.nodes)
    assert [arrow for arrow in arrows if not {arrow[0], arrow[1]} <= set(declared)] == []
    (forward,) = [arrow for arrow in arrows if arrow[2]["style"] == "dotted"]
    reader = next(node.id for node in graph.topology.nodes if node.kind == "state_read")
    writer = graph.topology.node(graph.topology.tagged_nodes["memory"]).id
    assert forward[:2] == (writer, reader)


def test_a_closed_graph_has_one_node_per_node_in_a_dashed_cluster_per_level():
    graph = everything()
    source = graph.dot()
    assert set(nodes(source)) == {node.id for node in graph.topology.nodes}
    bodies = re.findall(r'subgraph "cluster_level_(\d+)" \{\n(.*?)\n  \}', source, re.DOTALL)
    assert [int(level) for level, _ in bodies] == list(range(len(graph.topology.levels)))
    for (level, body), expected in zip(bodies, graph.topology.levels, strict=True):
        assert f'label="level {level}";' in body
        assert "style=dashed;" in body
        assert list(nodes(body)) == [node.id for node in expected]


def test_shapes_and_fills_tell_what_a_node_is_for():
    graph = everything()
    declared = nodes(graph.dot())
    looks = {node.kind: declared[node.id] for node in graph.topology.nodes}
    looks["first"], looks["last"] = declared["linear_1"], declared[graph.topology.nodes[-1].id]
    assert {kind: (look["shape"], look["fillcolor"]) for kind, look in looks.items()} == {
        "first": ("invhouse", "#aed6f1"),
        "input": ("invhouse", "#aed6f1"),
        "last": ("house", "#a9dfbf"),
        "linear": ("house", "#a9dfbf"),
        "state_read": ("diamond", "#f9e79f"),
        "add": ("circle", "#d5dbdb"),
        "merge": ("circle", "#d5dbdb"),
        "map": ("parallelogram", "#a9cce3"),
        "loop": ("box3d", "#d7bde2"),
        "gate": ("diamond", "#f5cba7"),
        "switch": ("diamond", "#f5cba7"),
        "gelu": ("ellipse", "#fdebd0"),
        "layernorm": ("box", "#d5f5e3"),
        "batchnorm1d": ("box", "#d5f5e3"),
        "identity": ("box", "#eaecee"),
        "addside": ("box", "#eaecee"),
        "stateadd": ("box", "#eaecee"),
        "graph": ("box", "#eaecee"),
    }
    alone = FlowBuilder.from_(nn.Linear(2, 2)).build()
    assert nodes(alone.dot())["linear_1"]["shape"] == "doubleoctagon"


def test_edges_are_solid_or_dashed_with_a_name_or_dotted():
    arrows = edges(everything().dot())
    styles = {(look["style"], look["color"]) for _, _, look in arrows}
    assert styles == {("solid", "#2c3e50"), ("dashed", "#2980b9"), ("dotted", "#e67e22")}
    named = [(a, b, look["label"]) for a, b, look in arrows if look["style"] == "dashed"]
    assert named == [
        ("linear_1", "addside_10", "ctx"),
        ("input_2", "addside_10", "side"),
        ("linear_1", "gate_12", "ctx"),
        ("state_read_16", "stateadd_15", "memory"),
    ]
    assert all("label" not in look for _, _, look in arrows if look["style"] != "dashed")


@pytest.mark.case("runtime", 41)
def test_heat_goes_from_green_over_orange_to_red_and_counts_are_short():
    heats = [heat_color(share) for share in (0, 0.25, 0.5, 1)]
    assert heats == ["#27ae60", "#8da539", "#f39c12", "#e74c3c"]
    counts = [format_count(count) for count in (999, 1000, 1234567)]
    assert counts == ["999 params", "1.0K params", "1.2M params"]


def test_numbers_do_not_grow_where_units_change():
    assert [format_count(count) for count in (999_949, 999_950)] == ["999.9K params", "1.0M params"]
    times = [format_seconds(seconds) for seconds in (0, 3.1e-5, 3.1e-4, 0.5, 1.2)]
    assert times == ["0 µs", "31 µs", "0.31 ms", "500.00 ms", "1.20 s"]


def test_a_label_has_kind_tags_time_parameters_and_what_is_frozen():
    graph = small()
    assert nodes(graph.dot())["linear_1"]["label"] == r"linear\n#enc\n[6 params]"
    graph.get_parameter("enc.bias").requires_grad = False
    assert nodes(graph.dot())["linear_1"]["label"] == r"linear\n#enc\n[6 params]\n1/2 frozen"
    graph.requires_grad_(False)
    assert nodes(graph.dot())["linear_1"]["label"] == r"linear\n#enc\n[6 params]\nfrozen"
    assert nodes(graph.dot())["relu_2"]["label"] == "relu"
    graph.enable_profiling()
    graph(torch.ones(1, 2))
    time = format_seconds(graph.timing("enc"))
    label = nodes(graph.dot())["linear_1"]["label"]
    assert label == rf"linear\n#enc\n{time}\n[6 params]\nfrozen"


def test_the_profiled_source_colours_by_time_and_is_plain_without_a_profile():
    graph = small()
    assert graph.dot_with_profile() == graph.dot()
    graph.enable_profiling()
    graph(torch.ones(1, 2))
    seconds = {node.id: node.seconds for node in graph.profile().nodes}
    slowest = max(seconds.values())
    fills = {id_: look["fillcolor"] for id_, look in nodes(graph.dot_with_profile()).items()}
    assert fills == {id_: heat_color(time / slowest) for id_, time in seconds.items()}
    assert "#e74c3c" in fills.values()
    plain = {id_: look["fillcolor"] for id_, look in nodes(graph.dot()).items()}
    assert plain == {"linear_1": "#aed6f1", "relu_2": "#a9dfbf"}


def test_names_are_quoted_and_mean_themselves():
    tag = 'a "quoted"\\n & <b>'
    graph = FlowBuilder.from_(nn.Identity()).tag(tag).through(StateAdd()).using(tag).build()
    source = graph.dot()
    escaped = r"a \"quoted\"\\n &amp; <b>"
    assert nodes(source)["identity_1"]["label"] == rf"identity\n#{escaped}"
    (named,) = [look["label"] for _, _, look in edges(source) if "label" in look]
    assert named == escaped
    assert [(a, b) for a, b, _ in edges(source)] == [("identity_1", "stateadd_2")] * 2


def test_an_open_graph_is_a_cluster_that_edges_enter_and_leave():
    graph = FlowBuilder.from_(nn.Linear(4, 4)).through(encoder()).through(nn.Tanh()).build()
    arrows = [(a, b) for a, b, _ in edges(graph.dot(depth=2))]
    assert arrows == [
        ("graph_2/in", "graph_2/linear_1"),
        ("graph_2/linear_1", "graph_2/loop_2"),
        ("graph_2/loop_2", "graph_2/out"),
        ("linear_1", "graph_2/in"),
        ("graph_2/out", "tanh_3"),
    ]


def test_graphviz_draws_when_it_is_asked_for(tmp_path, monkeypatch):
    program = tmp_path / "dot"
    program.write_text('#!/bin/sh\necho "<svg args=\'$*\'><!--"; cat; echo "--></svg>"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    graph = small()
    image = graph.svg(tmp_path / "new" / "graph.svg", engine="dot")
    assert image.decode() == f"<svg args='-Tsvg'><!--\n{graph.dot()}--></svg>\n"
    assert (tmp_path / "new" / "graph.svg").read_bytes() == image
    program.write_text("#!/bin/sh\necho 'syntax error in line 1' >&2; exit 1\n")
    with pytest.raises(FlodlError, match=r"status 1: syntax error in line 1; leave engine out"):
        graph.svg(engine="dot")


def test_without_graphviz_the_engine_is_refused_with_the_way_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = small()
    with pytest.raises(FlodlError, match=r"no `dot` on PATH; install it \(`apt-get install graph"):
        graph.svg(engine="dot")
    assert graph.svg().startswith(b"<svg")
    assert graph.svg_with_profile(engine="layered") == graph.svg()
    with pytest.raises(ValueError, match="there is no 'neato'; use 'layered' or 'dot'"):
        graph.svg(engine="neato")


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
@pytest.mark.parametrize("depth", [1, 9])
def test_the_real_graphviz_draws_every_kind_of_node(depth):
    graph = everything()
    root = ElementTree.fromstring(graph.svg(engine="dot", depth=depth))
    titles = {title.text for title in root.iter("{http://www.w3.org/2000/svg}title")}
    assert set(nodes(graph.dot(depth=depth))) <= titles
