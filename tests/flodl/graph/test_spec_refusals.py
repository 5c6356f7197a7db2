"""Descriptions of graphs that are broken, or come from an enemy."""

from __future__ import annotations

import builtins
import copy
import functools
from operator import getitem
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import flodl.graph
from flodl.errors import BuildError
from flodl.graph import FlowBuilder, Graph, NamedInputModule
from flodl.graph.routing import FixedSelector, StateAdd
from tests.rows import each_row


class AddContext(NamedInputModule):
    """Adds what it is given by name."""

    def forward_named(self, x, refs):
        return x + sum(refs.values())


def spec_of(*modules):
    return FlowBuilder.from_(nn.Sequential(*modules)).build().to_spec()


def with_entry(**entry):
    spec = FlowBuilder.from_(nn.Identity()).build().to_spec()
    spec["modules"][0] = entry
    return spec


@each_row(
    "name",
    ["os.system", "builtins.eval", "subprocess.Popen", "torch.load", "torch.nn.Module",
     "torch.nn.functional.relu", "torch.nn.Linear.__init__", "torch.nn.DataParallel",
     "flodl.graph.Graph", "__main__.x", ""],
)  # fmt: skip
def test_only_allowed_names_are_looked_up_and_none_is_imported(name, monkeypatch):
    imported = []
    real = builtins.__import__
    monkeypatch.setattr(
        builtins, "__import__", lambda n, *rest: imported.append(n) or real(n, *rest)
    )
    with pytest.raises(BuildError, match=r"modules\[0\]\.(class|arguments)"):
        Graph.from_spec(with_entry(**{"class": name, "arguments": {}}))
    with pytest.raises(BuildError, match=r"modules\[0\]\.(class|arguments)"):
        Graph.from_spec(
            with_entry(**{"class": "flodl.Lambda", "arguments": {"function": {"name": name}}})
        )
    assert not {"os", "subprocess", "builtins"} & set(imported)


def test_nothing_of_a_refused_description_runs(tmp_path):
    marker = tmp_path / "ran"
    spec = with_entry(**{"class": "flodl.Lambda"})
    spec["modules"][0]["arguments"] = {"function": {"name": "os.system"}}
    spec["modules"].append({"class": "os.system", "positional": [f"touch {marker}"]})
    with pytest.raises(BuildError):
        Graph.from_spec(spec)
    with pytest.raises(BuildError):
        Graph.from_spec(spec, [nn.Linear, AddContext])
    assert not marker.exists()


@each_row(
    ("name", "arguments", "words"),
    [
        ("torch.nn.Linear", {"in_features": 10**12, "out_features": 10**12}, "modules.0."),
        ("torch.nn.Linear", {"in_features": 10**5, "out_features": 10**5}, "max_elements"),
        ("torch.nn.Linear", {"in_features": 4, "out_features": 4, "device": "cpu"}, "device"),
        ("torch.nn.LSTM", {"input_size": 1, "hidden_size": 1, "num_layers": 10**9}, "num_layers"),
        ("torch.nn.Linear", {"in_features": 4}, "out_features"),
        ("torch.nn.Linear", {"in_features": "4", "out_features": 4}, "cannot be made"),
        ("torch.nn.Linear", {"in_features": 4, "out_features": 2**80}, "must be from"),
        ("torch.nn.Linear", {"in_features": {"module": 0}, "out_features": 1}, "none is described"),
        ("torch.nn.Linear", {"in_features": {"module": -1}, "out_features": 1}, "none"),
        ("torch.nn.Linear", {"in_features": {"odd": 1}, "out_features": 1}, "unknown type 'odd'"),
        ("torch.nn.Linear", {"in_features": {}, "out_features": 1}, "one key"),
        ("torch.nn.Linear", {"in_features": {"dtype": "os"}, "out_features": 1}, "one of"),
        ("flodl.FixedSelector", {"index": -1}, "index must be"),
        ("torch.nn.Sequential", {}, "described by its children"),
        ("torch.nn.LazyLinear", {"out_features": 10**9}, "lazy layer"),
    ],
)
def test_bad_arguments_are_refused_with_their_place(name, arguments, words):
    with pytest.raises(BuildError, match=words):
        Graph.from_spec(with_entry(**{"class": name, "arguments": arguments}))


def test_layers_of_torch_take_no_positional_arguments():
    with pytest.raises(BuildError, match="takes its arguments by name"):
        Graph.from_spec(with_entry(**{"class": "torch.nn.LSTM", "positional": [1, 1, 10**9]}))


def test_copies_of_copies_are_counted_before_they_are_made():
    wide = spec_of(*(nn.ReLU() for _ in range(300)))
    wide["modules"].append(
        {
            "class": "torch.nn.TransformerEncoder",
            "arguments": {"encoder_layer": {"module": 300}, "num_layers": 1000},
        }
    )
    with pytest.raises(BuildError, match=r"num_layers: makes it more than 200,000 modules"):
        Graph.from_spec(wide)


def test_deep_values_are_refused():
    value = 1
    for _ in range(500):
        value = [value]
    with pytest.raises(BuildError, match="32 levels deep"):
        Graph.from_spec(with_entry(**{"class": "torch.nn.ReLU", "arguments": {"inplace": value}}))


def test_deep_modules_are_refused():
    spec = spec_of(nn.ReLU())
    for index in range(len(spec["modules"]), 200):
        spec["modules"].append({"class": "torch.nn.Sequential", "children": [["0", index - 1]]})
    with pytest.raises(BuildError, match="100 levels"):
        Graph.from_spec(spec)


def test_a_few_entries_cannot_become_a_thousand_million_modules():
    spec = spec_of(nn.ReLU())
    for index in range(len(spec["modules"]), 40):
        children = [["0", index - 1], ["1", index - 1]]
        spec["modules"].append({"class": "torch.nn.Sequential", "children": children})
    with pytest.raises(BuildError, match="more than 200,000 modules"):
        Graph.from_spec(spec)


def test_sizes_add_up_before_anything_is_allocated():
    spec = spec_of(*(nn.Linear(1, 1) for _ in range(50)))
    for entry in spec["modules"][:50]:
        entry["arguments"].update(in_features=10_000, out_features=10_000)
    with pytest.raises(BuildError, match=r"modules\[9\].*1,000,100,000 elements"):
        Graph.from_spec(spec)
    with torch.device("meta"):
        assert Graph.from_spec(spec, max_elements=None) is not None
    with pytest.raises(BuildError, match="max_elements"):
        Graph.from_spec(spec_of(nn.Linear(10, 10)), max_elements=100)


@each_row("child", [1, 5, -1, "0", None, 0.0, True])
def test_entries_refer_to_earlier_entries_only(child):
    spec = with_entry(**{"class": "torch.nn.ReLU"})
    spec["modules"].append({"class": "torch.nn.Sequential", "children": [["0", child]]})
    with pytest.raises(BuildError, match=r"modules\[1\]\.children\[0\]\[1\]"):
        Graph.from_spec(spec)


@each_row("name", ["", "a.b", "1", "x\ny", None, "forward"])
def test_names_of_children_are_checked(name):
    spec = with_entry(**{"class": "torch.nn.ReLU"})
    spec["modules"].append({"class": "torch.nn.ModuleList", "children": [[name, 0]]})
    with pytest.raises(BuildError, match=r"modules\[1\]\.children\[0\]\[0\]"):
        Graph.from_spec(spec)


def replaced(spec, path, value):
    """A copy with another value at one place; ``...`` removes it."""
    copied = copy.deepcopy(spec)
    *steps, last = path
    inner = functools.reduce(getitem, steps, copied)
    if value is ...:
        del inner[last]
    else:
        inner[last] = copy.deepcopy(value)
    return copied


def edited(path, value):
    """A good description with one value replaced, or removed where ``value`` is ``...``."""
    spec = (
        FlowBuilder.from_(nn.Linear(2, 2))
        .tag("a")
        .input("ctx")
        .through(AddContext())
        .using("a", "ctx", "z")
        .loop_body(nn.Tanh())
        .for_n(2)
        .split([nn.ReLU(), nn.Tanh()])
        .tag_group("g")
        .merge("add")
        .gate(FixedSelector(0), [nn.Linear(2, 2), nn.Linear(2, 2)])
        .map(nn.Linear(1, 1))
        .slices(2)
        .tag("z")
        .label("net")
        .build()
        .to_spec()
    )
    return replaced(spec, path, value)


def test_the_unedited_description_is_good():
    spec = edited(("version",), 1)
    made = Graph.from_spec(spec, [AddContext])
    kinds = [node["kind"] for node in spec["graph"]["nodes"]]
    assert kinds == [
        "linear", "input", "addcontext", "state_read", "loop", "relu", "tanh", "merge", "gate",
        "map",
    ]  # fmt: skip
    assert made.label == "net"


NODE = ("graph", "nodes")


@each_row(
    ("path", "value", "words"),
    [
        (("format",), "other", "format: must be 'flodl-graph'"),
        (("format",), ..., "top level: lacks format"),
        (("version",), 2, "version 2 is not known; this flodl reads 1"),
        (("version",), "1", "version: must be an integer"),
        (("version",), True, "version: must be an integer"),
        (("extra",), 1, "unknown field 'extra'"),
        (("modules",), {}, "modules: must be a list"),
        (("modules", 0), 3, r"modules\[0\]: must be a mapping"),
        (("graph",), None, "graph: must be a mapping"),
        (("graph", "nodes"), [], "graph"),
        (("graph", "output"), 99, r"graph\.output: must be from 1 to 10"),
        (("graph", "output"), 4, "state_read_4 must have exactly one reader"),
        (("graph", "label"), "a.b", r"graph\.label"),
        (("graph", "inputs"), ["input"], "inputs"),
        (("graph", "inputs"), ["input", "ctx", "more"], "inputs"),
        (("graph", "inputs"), ["ctx", "ctx"], "input 'ctx' occurs twice"),
        (("graph", "tags"), [["a", 1], ["a", 3]], "tag 'a' occurs twice"),
        (("graph", "tags", 0), ["a", 4], "reader of state"),
        (("graph", "tags", 0), ["a", 0], r"tags\[0\]\[1\]"),
        (("graph", "tags", 0), ["a"], "two entries"),
        (("graph", "tags", 0), ["forward", 1], "attribute of torch.nn.Module"),
        (("graph", "tags", 0), ["a/b", 1], "no dots and slashes"),
        (("graph", "tags", 0), ["b", 1], "receives 'a' from a node without that tag"),
        (("graph", "internal"), ["nope"], "there is no tag 'nope'"),
        (("graph", "groups", 0), ["a", ["g_0", "g_1"]], "tag 'a' occurs twice"),
        (("graph", "groups", 0), ["g", ["g_0"]], "two tags or more"),
        (("graph", "groups", 0), ["g", ["g_0", "g_9"]], "two tags or more"),
        ((*NODE, 0, "operation"), "exec", "must be one of call"),
        ((*NODE, 0, "operation"), ..., "lacks operation"),
        ((*NODE, 0, "kind"), "x\ny", "printable"),
        ((*NODE, 0, "kind"), "a.b", "no dots"),
        ((*NODE, 0, "prefix"), "", "printable text"),
        ((*NODE, 0, "prefix"), "training", "attribute of torch.nn.Module"),
        ((*NODE, 0, "prefix"), "loop_5", "prefix 'loop_5' occurs twice"),
        ((*NODE, 0, "prefix"), ..., "lacks prefix"),
        ((*NODE, 0, "module"), 99, r"nodes\[0\]\.module"),
        ((*NODE, 0, "wires"), [], "linear_1 has the ports"),
        ((*NODE, 0, "wires"), [[0, "input"], [0, "input"]], "linear_1 has the ports"),
        ((*NODE, 0, "wires"), [[0, "import os"]], "linear_1 has the ports"),
        ((*NODE, 0, "wires"), [[5, "input"]], "cycle"),
        ((*NODE, 0, "wires"), [[4, "input"]], "state is a reference"),
        ((*NODE, 0, "wires"), [[11, "input"]], r"wires\[0\]\[0\]"),
        ((*NODE, 0, "wires"), [[0, "input"], [2, "ref_ctx"]], "takes no references"),
        ((*NODE, 1, "kind"), "port", "must be of kind input"),
        ((*NODE, 1, "name"), "ctz", "inputs"),
        ((*NODE, 2, "wires", 1), [2, "ref_a"], "from a node without that tag"),
        ((*NODE, 2, "wires", 1), [0, "ref_a"], "from a node without that tag"),
        ((*NODE, 2, "wires", 3), [2, "ref_ctx"], "occurs twice"),
        ((*NODE, 2, "wires"), [[1, "input"]], "state_read_4 must have exactly one reader"),
        ((*NODE, 3, "tag"), "ctx", "receives 'z', its reader 'ctx'"),
        ((*NODE, 4, "limit"), 0, "from 1"),
        ((*NODE, 4, "limit"), 10**30, "must be from"),
        ((*NODE, 4, "limit"), 2.0, "must be an integer"),
        ((*NODE, 4, "test"), "while", "has no cond"),
        ((*NODE, 4, "cond"), 0, "has a cond"),
        ((*NODE, 7, "how"), "product", "must be one of add, mean"),
        ((*NODE, 7, "wires"), [[6, "input_0"]], "wants"),
        ((*NODE, 7, "wires"), [[6, "input_0"], [7, "input_2"]], "wants"),
        ((*NODE, 8, "experts"), [0], "at least 2 entries"),
        ((*NODE, 8, "experts"), 10**9, "must be a list"),
        ((*NODE, 9, "pieces"), 0, "from 1"),
        ((*NODE, 9, "over"), "each", "from 0 to 0"),
        ((*NODE, 9, "batched"), 1, "must be true or false"),
        (("ties",), [["a.weight"]], "two parameters or more"),
        (("ties",), [["a.weight", "nope.weight"]], "no parameter 'nope.weight'"),
        (("ties",), [["a.weight", "a.bias"]], "cannot be the same parameter"),
        (("ties",), [["a.weight", "a.__class__"]], "no parameter"),
    ],
)
def test_broken_descriptions_are_refused_with_the_place(path, value, words):
    with pytest.raises(BuildError, match=words):
        Graph.from_spec(edited(path, value), [AddContext])


def places(value, path=()):
    """Every place in a description."""
    entries = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


GOOD = edited(("version",), 1)
JUNK = st.one_of(
    st.just(...),
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.sampled_from(
        [2**31, 2**63, -(2**70), 0.5, float("nan"), "", "x", "a", "z", "input", "ref_a"]
    ),
    st.sampled_from([[], {}, [[]], {"tuple": [1]}, {"module": 1}, {"name": "torch.nn.ReLU"}]),
    st.sampled_from(list(places(GOOD))).map(lambda path: functools.reduce(getitem, path, GOOD)),
)


@settings(max_examples=300)
@given(edits=st.lists(st.tuples(st.sampled_from(list(places(GOOD))), JUNK), min_size=1, max_size=3))
def test_whatever_is_changed_gives_a_graph_or_a_build_error(edits):
    spec = GOOD
    for path, value in edits:
        try:
            spec = replaced(spec, path, value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier edit has removed the place
    try:
        made = Graph.from_spec(spec, [AddContext], max_elements=1000)
    except BuildError:
        return
    assert Graph.from_spec(made.to_spec(), [AddContext]).topology == made.topology


@each_row("spec", [None, [], "text", 3, {}, {1: 2}])
def test_what_is_no_description_at_all_is_refused(spec):
    with pytest.raises(BuildError, match="graph description, top level"):
        Graph.from_spec(spec)


def test_children_are_checked_like_the_builder_does():
    def child(label):
        return FlowBuilder.from_(nn.ReLU()).label(label).build()

    spec = FlowBuilder.from_(child("a")).through(child("b")).tag("t").build().to_spec()
    nested = [entry["graph"] for entry in spec["modules"] if "graph" in entry]
    nested[1]["label"] = "a"
    with pytest.raises(BuildError, match="of one label 'a'"):
        Graph.from_spec(spec)
    nested[1]["label"] = "b"
    nested[0]["label"] = "t"
    with pytest.raises(BuildError, match="labelled 't', a tag of another node"):
        Graph.from_spec(spec)


def test_a_nested_graph_must_receive_its_inputs():
    inner = FlowBuilder.from_(StateAdd()).input("c").through(StateAdd()).using("c").build()
    spec = FlowBuilder.from_(nn.ReLU()).tag("c").through(inner).using("c").build().to_spec()
    assert Graph.from_spec(spec)(torch.ones(1)).item() == 2
    spec["graph"]["nodes"][1]["wires"] = [[1, "input"]]
    with pytest.raises(BuildError, match=r"auxiliary inputs \['c'\] and receives \[\]"):
        Graph.from_spec(spec)


def test_what_is_allowed_must_have_one_name():
    def twin():
        class Twin(nn.Module):
            pass

        return Twin

    spec = spec_of(nn.ReLU())
    with pytest.raises(ValueError, match="two different things are called"):
        Graph.from_spec(spec, [twin(), twin()])
    with pytest.raises(ValueError, match="local to a function"):
        Graph.from_spec(spec, [lambda x: x])
    with pytest.raises(ValueError, match="has no name"):
        Graph.from_spec(spec, ["torch.nn.Linear"])


def test_the_package_imports_nothing_by_name():
    source = Path(flodl.graph.__file__).parent / "spec"
    files = list(source.glob("*.py"))
    assert len(files) > 1
    for file in files:
        text = file.read_text()
        assert not any(word in text for word in ("importlib", "__import__", "eval(", "pickle"))
