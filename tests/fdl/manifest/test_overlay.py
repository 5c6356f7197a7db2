"""The laws of laying manifests over each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from fdl.base.errors import ManifestError
from fdl.manifest.node import Node
from fdl.manifest.overlay import merge
from fdl.manifest.read_yaml import read_yaml
from tests.rows import each_row

KEYS = st.sampled_from(["a", "b", "c"])
SCALARS = st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["x", "y"])
VALUES = st.recursive(
    SCALARS | st.lists(st.integers(0, 3), max_size=3),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
LAYERS = st.dictionaries(KEYS, VALUES, max_size=3)
STACKS = st.lists(LAYERS, min_size=1, max_size=5)


def node(value: Any, file: str = "f") -> Node:
    """A tree without a text; every value on a line of its own."""
    if isinstance(value, dict):
        return Node({key: node(child, file) for key, child in value.items()}, file, 1, 1)
    if isinstance(value, list):
        return Node([node(item, file) for item in value], file, 1, 1)
    return Node(value, file, 1, 1)


def merged(*layers: Any) -> Any:
    return merge([node(layer, f"layer{index}") for index, layer in enumerate(layers)])[0].plain()


def independent(base: Any, patch: Any) -> Any:
    """The algorithm of RFC 7396 once more; it shares nothing with the code under test."""
    if not isinstance(patch, dict):
        return patch
    result = dict(base) if isinstance(base, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = independent(result.get(key), value)
    return result


@given(STACKS)
def test_an_independent_merger_agrees(stack: list[dict[str, Any]]) -> None:
    expected: Any = stack[0]
    for layer in stack[1:]:
        expected = independent(expected, layer)
    assert merged(*stack) == expected


@given(LAYERS)
def test_an_empty_overlay_is_the_identity(base: dict[str, Any]) -> None:
    assert merged(base, {}) == base
    assert list(merged(base, {}, {})) == list(base)


@given(LAYERS, LAYERS)
def test_an_overlay_laid_over_twice_is_laid_over_once(
    base: dict[str, Any], above: dict[str, Any]
) -> None:
    assert merged(base, above, above) == merged(base, above)


@given(LAYERS, KEYS)
def test_null_deletes_and_a_deleted_key_can_come_back(base: dict[str, Any], key: str) -> None:
    gone = merged(base, {key: None})
    assert key not in gone
    assert gone == {name: value for name, value in base.items() if name != key}
    assert merged(base, {key: None}, {key: {"x": 1}}) == {**gone, key: {"x": 1}}


@given(STACKS)
def test_keys_keep_the_order_of_the_base(stack: list[dict[str, Any]]) -> None:
    kept = [key for key in merged(*stack) if key in stack[0]]
    assert kept == [key for key in stack[0] if key in kept]


@given(STACKS)
def test_every_value_names_the_strongest_layer_that_wrote_it(stack: list[dict[str, Any]]) -> None:
    root, _ = merge([node(layer, f"layer{index}") for index, layer in enumerate(stack)])
    for path, leaf in root.leaves():
        if not path:
            continue
        written = stack[int(leaf.file.removeprefix("layer"))]
        for key in path:
            written = written[key]
        if isinstance(written, dict):
            # A mapping that has lost all its keys is still where it was first written.
            continue
        assert leaf.plain() == written
        strengths = [int(one.file.removeprefix("layer")) for one in (leaf, *leaf.losers)]
        assert strengths == sorted(strengths, reverse=True)
        assert len(set(strengths)) == len(strengths)


@pytest.mark.case("cli", 36)
def test_maps_merge_lists_are_replaced_and_null_deletes() -> None:
    assert merged({"a": {"x": 1, "y": 2}, "l": [1, 2]}, {"a": {"x": None, "z": 3}, "l": [9]}) == {
        "a": {"y": 2, "z": 3},
        "l": [9],
    }


@pytest.mark.case("cli", 37)
@each_row(
    ("base", "above"), [({"x": 1, "y": 2}, 5), (5, {"x": 1}), ([1], {"x": 1}), ({"x": 1}, [1])]
)
def test_a_change_of_type_replaces_the_whole_value(base: object, above: object) -> None:
    assert merged({"k": base}, {"k": above}) == {"k": above}


@pytest.mark.case("cli", 37)
def test_what_a_mapping_replaced_is_remembered_as_a_whole() -> None:
    root, _ = merge([node({"k": 5}, "base"), node({"k": {"x": 1}}, "ci")])
    (loser,) = root.mapping["k"].losers
    assert (loser.plain(), loser.file) == (5, "base")


def texts(*layers: str) -> tuple[Node, list[Any]]:
    return merge([read_yaml(text, f"{index}.yml") for index, text in enumerate(layers)])


def test_removed_keys_remember_what_stood_there() -> None:
    root, removed = texts("a: {x: 1}\nb: 2\n", "a: {x: 3}\n", "a: {x: ~}\nb: ~\nc: ~\n")
    assert root.plain() == {"a": {}}
    described = [(one.path, one.by.file, one.by.line) for one in removed]
    assert described == [(("a", "x"), "2.yml", 1), (("b",), "2.yml", 2)]
    assert [(loser.value, loser.file) for loser in removed[0].by.losers] == [
        (3, "1.yml"),
        (1, "0.yml"),
    ]


def test_lists_join_across_several_layers_and_keep_the_places_of_their_items() -> None:
    root, _ = texts("l: [1]\n", "l: !append [2]\n", "l: !prepend [0]\n")
    joined = root.mapping["l"]
    assert joined.plain() == [0, 1, 2]
    assert [item.file for item in joined.value] == ["2.yml", "0.yml", "1.yml"]
    assert joined.merge == "prepend"
    assert [(loser.file, loser.merge) for loser in joined.losers] == [
        ("1.yml", "append"),
        ("0.yml", None),
    ]


def test_items_merge_by_a_key() -> None:
    root, _ = texts(
        "l: [{name: a, x: 1}, {name: b}]\n",
        "l: !merge-by:name [{name: c}, {name: a, x: 2, y: 3}]\n",
    )
    assert root.plain() == {
        "l": [{"name": "a", "x": 2, "y": 3}, {"name": "b"}, {"name": "c"}],
    }


def test_of_two_items_with_one_key_the_first_below_is_merged() -> None:
    root, _ = texts(
        "l: [{name: a, x: 1}, {name: a, x: 2}]\n",
        "l: !merge-by:name [{name: a, y: 3}]\n",
    )
    assert root.plain() == {"l": [{"name": "a", "x": 1, "y": 3}, {"name": "a", "x": 2}]}


def test_of_two_items_with_one_key_above_the_later_wins() -> None:
    tagged = "l: !merge-by:name [{name: a, x: 2, y: 2}, {name: a, x: 3}]\n"
    root, _ = texts("l: [{name: a, x: 1}]\n", tagged)
    assert root.plain() == {"l": [{"name": "a", "x": 3, "y": 2}]}
    # The same holds for items that stand in no layer below.
    root, _ = texts("l: [{name: b}]\n", tagged)
    assert root.plain() == {"l": [{"name": "b"}, {"name": "a", "x": 3, "y": 2}]}


def test_a_number_and_its_text_are_different_names() -> None:
    root, _ = texts("l: [{id: 1}]\n", "l: !merge-by:id [{id: '1'}]\n")
    assert root.plain() == {"l": [{"id": 1}, {"id": "1"}]}


def test_an_item_without_the_key_is_refused_at_its_place() -> None:
    with pytest.raises(ManifestError, match=r"1\.yml:1:20: `!merge-by:name` needs items with"):
        texts("l: [{name: a}]\n", "l: !merge-by:name [1, {name: a}]\n".replace("1,", "{x: 1},"))


def test_a_tagged_list_over_nothing_or_over_a_deleted_one_stands_alone() -> None:
    assert texts("a: 1\n", "l: !append [2]\n")[0].plain() == {"a": 1, "l": [2]}
    assert texts("l: [1]\n", "l: ~\n", "l: !append [2]\n")[0].plain() == {"l": [2]}
    assert texts("l: !append [2]\n")[0].plain() == {"l": [2]}


def test_a_secret_stays_one_whoever_overrides_it() -> None:
    root, _ = texts("a: !secret x\nl: !secret [1]\n", "a: y\nl: !append [2]\n")
    assert root.mapping["a"].secret
    assert root.mapping["l"].secret


def test_a_quoted_secret_is_text_and_a_plain_one_what_it_looks_like() -> None:
    root, _ = texts("a: !secret '1'\nb: !secret 1\nc: !secret true\n")
    assert root.plain() == {"a": "1", "b": 1, "c": True}
