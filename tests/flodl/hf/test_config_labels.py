"""Labels: how they are read, how many there are, what they are called."""

from __future__ import annotations

import importlib
import json

import pytest

from flodl.hf.errors import ConfigError
from flodl.hf.families import AutoConfig, BertConfig, EncoderConfig
from tests.flodl.hf.config_samples import text_of
from tests.rows import each_row


def read(**fields: object) -> EncoderConfig:
    return AutoConfig.from_json_str(text_of("bert", **fields))


@each_row(
    ("fields", "names"),
    [
        ({}, ("LABEL_0", "LABEL_1")),
        ({"id2label": {"0": "no", "1": "yes"}}, ("no", "yes")),
        ({"id2label": {"1": "yes", "0": "no"}}, ("no", "yes")),
        ({"id2label": {str(n): f"n{n}" for n in range(11)}}, tuple(f"n{n}" for n in range(11))),
        ({"id2label": {"0": "same", "1": "same"}}, ("same", "same")),
        ({"label2id": {"yes": 1, "no": 0}}, ("no", "yes")),
        ({"label2id": {"yes": "1", "no": "0"}}, ("no", "yes")),
        ({"id2label": None, "label2id": {"no": 0}}, ("no",)),
        ({"id2label": {}, "label2id": {}}, ("LABEL_0", "LABEL_1")),
        ({"num_labels": 1}, ("LABEL_0",)),
        ({"id2label": {"0": "no"}, "label2id": {"x": 7}}, ("no",)),
    ],
)
def test_names_are_read_by_id_or_the_other_way_round(fields, names):
    config = read(**fields)
    assert config.id2label == dict(enumerate(names))
    assert config.num_labels == len(names)


@each_row("key", ["id2label", "label2id"])
@each_row(
    "ids", [["0", "2"], ["1", "2"], ["-1", "0"], ["0", "x"], ["0", "01"], ["0", ""], ["0", "1.0"]]
)
def test_ids_with_gaps_are_refused(key, ids):
    labels = {index: f"name {index}" for index in ids}
    value = labels if key == "id2label" else {name: index for index, name in labels.items()}
    with pytest.raises(ConfigError, match=f"config.json: '{key}' is .* contiguous"):
        read(**{key: value})


@each_row(
    ("key", "value"),
    [
        ("id2label", {"0": 1}),
        ("id2label", {"0": None}),
        ("id2label", ["no", "yes"]),
        ("id2label", "no"),
        ("label2id", {"no": True}),
        ("label2id", {"no": 0.0}),
        ("label2id", {"no": 0, "yes": 0}),
        ("label2id", ["no"]),
        ("label2id", 2),
    ],
)
def test_names_of_another_kind_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"config.json: '{key}' is .*; it must be .*N-1|0 to 1"):
        read(**{key: value})


def names(*, asked=None, given=None, rows=None, **fields: object) -> tuple[str, ...]:
    wanted = {"num_labels": asked, "id2label": given}
    told = {name: value for name, value in wanted.items() if value is not None}
    config = read(**fields)
    return (config.replace(**told) if told else config).labels_for(rows)


NO_YES = {"0": "no", "1": "yes"}


@each_row(
    ("asked", "written", "number", "rows", "expected"),
    [
        (3, NO_YES, 4, 5, ("LABEL_0", "LABEL_1", "LABEL_2")),
        (2, NO_YES, 4, 5, ("no", "yes")),
        (None, NO_YES, None, 5, ("no", "yes")),
        (None, NO_YES, 2, 5, ("no", "yes")),
        (None, None, 1, 5, ("LABEL_0",)),
        (None, None, None, 3, ("LABEL_0", "LABEL_1", "LABEL_2")),
        (None, None, None, None, ("LABEL_0", "LABEL_1")),
        (None, NO_YES, 3, 2, ("no", "yes")),
        (None, NO_YES, 3, 3, ("LABEL_0", "LABEL_1", "LABEL_2")),
    ],
)
def test_the_first_that_is_known_gives_the_width(asked, written, number, rows, expected):
    assert names(asked=asked, rows=rows, id2label=written, num_labels=number) == expected


def test_names_the_caller_gives_win():
    assert names(given=["a", "b", "c"], id2label=NO_YES, rows=2) == ("a", "b", "c")
    assert names(given={1: "b", 0: "a"}, num_labels=7) == ("a", "b")
    assert names(given=("a",), asked=1) == ("a",)


@each_row(
    ("rows", "said"),
    [(None, "the checkpoint has no classifier"), (5, "classifier in the checkpoint has 5 rows")],
)
def test_a_conflict_the_checkpoint_does_not_settle_names_both_fields(rows, said):
    with pytest.raises(ConfigError, match="'num_labels' is 3, 'id2label' has 2 names") as caught:
        names(id2label=NO_YES, num_labels=3, rows=rows)
    assert said in str(caught.value)


@each_row("asked", [0, -1, True, 2.0])
def test_a_width_below_one_is_refused(asked):
    with pytest.raises(ConfigError, match=f"num_labels is {asked}; it must be a whole number"):
        names(asked=asked)


@each_row("given", [[], "ab", ["a", 1], {1: "a"}, {0: "a", 2: "b"}, 5])
def test_impossible_names_from_the_caller_are_refused(given):
    with pytest.raises(ConfigError, match="labels"):
        names(given=given)
    with pytest.raises(ConfigError, match="labels"):
        read().replace(id2label=given)


def test_the_callers_number_and_names_must_agree():
    with pytest.raises(ConfigError, match="num_labels is 3, but id2label has 2 names"):
        names(asked=3, given=["a", "b"])


def test_labels_are_written_both_ways_with_their_number():
    config = read(id2label={"0": "x"}, label2id={"x": 0}, num_labels=1, note=1)
    changed = config.replace(id2label=["no", "yes", "ü"])
    assert changed.source == config.source | {
        "id2label": {"0": "no", "1": "yes", "2": "ü"},
        "label2id": {"no": 0, "yes": 1, "ü": 2},
        "num_labels": 3,
    }
    assert changed.id2label == {0: "no", 1: "yes", 2: "ü"}
    assert changed.label2id == {"no": 0, "yes": 1, "ü": 2}
    assert changed.num_labels == 3
    assert changed.replace(id2label={1: "b", 0: "a"}).id2label == {0: "a", 1: "b"}
    bare = changed.replace(id2label=None)
    assert not {"id2label", "label2id", "num_labels"} & set(bare.source)


def test_written_ids_are_ordered_as_numbers():
    text = read().replace(id2label=[f"n{n}" for n in range(12)]).to_json_string()
    assert list(json.loads(text)["id2label"]) == [str(n) for n in range(12)]
    assert text.index('"9": "n9"') < text.index('"10": "n10"')


def test_one_label_cannot_be_a_choice():
    message = "'problem_type' is 'single_label_classification' and there is one label"
    for fields in ({"num_labels": 1}, {"id2label": {"0": "x"}}, {"label2id": {"x": 0}}):
        with pytest.raises(ConfigError, match=message):
            read(problem_type="single_label_classification", **fields)
    config = read(problem_type="single_label_classification")
    with pytest.raises(ConfigError, match=message):
        config.replace(num_labels=1)
    assert config.labels_for() == ("LABEL_0", "LABEL_1")
    assert read(problem_type="regression", num_labels=1).labels_for() == ("LABEL_0",)


def test_a_two_label_file_of_the_reference_has_no_labels_in_it():
    transformers = importlib.import_module("transformers")
    saved = transformers.BertConfig(num_labels=2).to_json_string()
    assert "label" not in saved
    sizes = json.loads(text_of("bert"))
    config = BertConfig.from_json_str(json.dumps(sizes | json.loads(saved)))
    assert config.labels_for(checkpoint_rows=2) == ("LABEL_0", "LABEL_1")
