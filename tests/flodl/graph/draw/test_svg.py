"""The built-in drawing as a file, on a page, and in a notebook."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from flodl.graph import FlowBuilder
from flodl.graph.draw.style import heat_color
from tests.browser.conftest import browser, chromium  # noqa: F401 - fixtures

from .graphs import chain, encoder, everything

SVG = "{http://www.w3.org/2000/svg}"


def parsed(image):
    return ElementTree.fromstring(image)


def boxes(root):
    """The texts of every box and frame, by the id its title begins with."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None:
            found[title.text.partition(": ")[0]] = [t.text for t in group.findall(f"{SVG}text")]
    return found


def titles(root):
    return [title.text for title in root.iter(f"{SVG}title")]


def test_a_box_says_kind_tags_time_parameters_and_what_is_frozen():
    graph = FlowBuilder.from_(nn.Linear(32, 32)).tag("enc").through(nn.ReLU()).build()
    assert boxes(parsed(graph.svg())) == {
        "linear_1": ["linear", "#enc", "1.1K params"],
        "relu_2": ["relu"],
    }
    graph.requires_grad_(False)
    graph.enable_profiling()
    graph(torch.ones(1, 32))
    texts = boxes(parsed(graph.svg()))["linear_1"]
    assert [*texts[:2], *texts[3:]] == ["linear", "#enc", "1.1K params", "frozen"]
    assert re.fullmatch(r"\d+(\.\d\d)? (µs|ms|s)", texts[2])


def test_the_drawing_can_be_read_aloud():
    graph = FlowBuilder.from_(nn.Linear(32, 32)).tag("enc").through(encoder()).label("net").build()
    root = parsed(graph.svg())
    assert root.get("role") == "img"
    assert root.get("aria-label") == "net: 2 nodes"
    assert titles(root) == [
        "net: 2 nodes",
        "linear_1: linear, #enc, level 0, 1.1K params, 1,056 parameters, registered as enc",
        "graph_2: encoder, graph, level 1, 2 nodes, 45 params, registered as graph_2",
    ]


def test_a_closed_graph_says_what_it_is_and_an_open_one_has_a_frame():
    graph = FlowBuilder.from_(encoder()).through(nn.ReLU()).build()
    assert boxes(parsed(graph.svg()))["graph_1"] == ["encoder", "(graph)", "2 nodes", "45 params"]
    opened = boxes(parsed(graph.svg(depth=2)))
    assert opened["graph_1"] == ["encoder · graph · 2 nodes · 45 params"]
    assert opened["graph_1/loop_2"] == ["loop", "while, at most ×5", "25 params"]


def test_a_box_says_who_decides_for_how_many_rows():
    pair = [nn.Linear(4, 4), nn.Linear(4, 4)]
    builder = FlowBuilder.from_(nn.Linear(4, 4)).gate(nn.Linear(4, 2), pair, top_k=1)
    builder.switch(nn.Linear(4, 2), pair).batch_switch(nn.Linear(4, 2), pair)
    graph = builder.loop_body(nn.Linear(4, 4)).batch_until_cond(nn.Linear(4, 1), 5).build()
    texts = boxes(parsed(graph.svg()))
    assert [texts[name][1] for name in ("gate_2", "switch_3", "switch_4", "loop_5")] == [
        "2 experts, top 1",
        "2 branches",
        "2 branches, one per batch",
        "batch until, at most ×5",
    ]


def test_the_legend_explains_what_occurs_and_nothing_else():
    def legend(graph):
        return [
            text.text for text in parsed(graph.svg()).iter(f"{SVG}text") if text.get("x") == "26"
        ]

    assert legend(chain(2)) == ["input", "output"]
    assert legend(everything()) == [
        *["input", "output", "state", "merge", "map", "loop", "router", "activation", "norm"],
        *["module", "reference", "from the last call"],
    ]


def test_the_profiled_drawing_has_the_colours_of_heat():
    graph = chain(4)
    assert graph.svg_with_profile() == graph.svg()
    graph.enable_profiling()
    graph(torch.ones(1))
    seconds = [node.seconds for node in graph.profile().nodes]
    expected = [heat_color(time / max(seconds)) for time in seconds]
    root = parsed(graph.svg_with_profile())
    fills = [path.get("fill") for path in root.iter(f"{SVG}path") if path.get("fill")]
    assert fills == expected
    assert parsed(graph.svg()).find(f".//{SVG}path[@fill='#e74c3c']") is None


def test_names_of_all_kinds_leave_the_file_well_formed():
    body = nn.Identity()
    body.flodl_name = "bell\x07\ud800"
    tag = 'a<b> & "c" ' + "x" * 40
    flow = FlowBuilder.from_(nn.Identity()).tag(tag).label("<i> & co")
    root = parsed(flow.loop_body(body).for_n(2).build().svg(depth=2))
    assert root.get("aria-label") == "<i> & co: 2 nodes"
    assert boxes(root)["identity_1"] == ["identity", '#a<b> & "c" xxxxxxxxxxxxxxxxx…']
    assert boxes(root)["loop_2/body"] == ["bell\\x07\\ud800"]
    about = next(title for title in titles(root) if title.startswith("identity_1"))
    assert about == f'identity_1: identity, #a<b> & "c" {"x" * 40}, level 0, registered as {tag}'


def test_the_file_is_written_as_a_whole_into_new_folders(tmp_path):
    path = tmp_path / "pictures" / "net.svg"
    graph = chain(3)
    image = graph.svg(path)
    assert path.read_bytes() == image
    assert graph.svg_with_profile(str(path)) == path.read_bytes()
    assert [entry.name for entry in path.parent.iterdir()] == ["net.svg"]


def test_nothing_is_fetched_and_nothing_runs():
    graph = everything()
    for text in (graph.svg(depth=9).decode(), graph._repr_html_()):
        rest = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "http" not in rest
        assert "<script" not in rest
        assert "url(" not in rest
        assert not re.search(r"\s(id|href|src|on\w+)=", rest)


def test_a_notebook_shows_the_drawing_and_unfolds_what_is_inside():
    graph = FlowBuilder.from_(nn.Linear(4, 4)).through(encoder()).through(nn.Tanh()).build()
    assert graph._repr_svg_() == graph.svg().decode()
    root = parsed(graph._repr_html_())
    (details,) = root.findall("details")
    assert details.find("summary").text == "graph_2: encoder · graph · 2 nodes · 45 params"
    (inner,) = details.findall("details")
    assert inner.find("summary").text == "loop_2: loop · while, at most ×5 · 25 params"
    drawings = [root.find(f"{SVG}svg"), details.find(f"{SVG}svg"), inner.find(f"{SVG}svg")]
    assert list(boxes(drawings[0])) == ["linear_1", "graph_2", "tanh_3"]
    assert list(boxes(drawings[1])) == ["graph_2/linear_1", "graph_2/loop_2"]
    assert list(boxes(drawings[2])) == ["graph_2/loop_2/body", "graph_2/loop_2/cond"]


OVERFLOWING = """[...document.querySelectorAll("svg g")].filter(group => {
    const outline = group.querySelector(":scope > .o"), text = group.querySelector(":scope > text");
    if (!outline || !text || text.getAttribute("x") === "26") return false;
    const box = outline.getBBox();
    return [...group.querySelectorAll(":scope > text")].some(text => {
        const words = text.getBBox();
        return words.x < box.x || words.x + words.width > box.x + box.width
            || words.y < box.y || words.y + words.height > box.y + box.height;
    });
}).map(group => group.querySelector("title").textContent)"""


@pytest.mark.parametrize("dark", [False, True])
def test_texts_fit_their_boxes_and_stand_out_in_a_browser(browser, tmp_path, dark):  # noqa: F811
    graph = everything()
    graph.requires_grad_(False)
    graph.enable_profiling()
    graph(torch.ones(3, 4), torch.ones(3, 4))
    for depth in (1, 9):
        page = tmp_path / f"graph{depth}.svg"
        graph.svg_with_profile(page, depth=depth)
        browser.open(page, dark=dark)
        assert browser.evaluate("document.querySelectorAll('svg g > .o').length") > 15
        assert browser.evaluate(OVERFLOWING) == []
        shades = browser.evaluate(
            "[getComputedStyle(document.documentElement).backgroundColor, "
            "getComputedStyle(document.querySelector('path.e.solid')).stroke]"
        )
        light, black = ["rgb(255, 255, 255)", "rgb(44, 62, 80)"], ["rgb(28, 33, 40)"]
        assert shades == ([*black, "rgb(174, 182, 191)"] if dark else light)
    assert browser.console == []
