"""What fdl accepts and what its JSON Schema accepts, on manifests that nobody has written."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings, strategies as st

from benchmarks.manifest_mutations import damaged, projects
from fdl.base.errors import ManifestError
from fdl.manifest.check import check
from fdl.manifest.json_schema import document
from fdl.manifest.node import Node
from fdl.manifest.read import parse
from tests.rows import each_row

# `schema:` holds a document of its own, which is judged when it is used.
DOCUMENT = document()
DOCUMENT["properties"]["schema"] = {"type": ["object", "null"]}
VALIDATOR = jsonschema.Draft202012Validator(DOCUMENT)


def node_of(value: Any) -> Node:
    if isinstance(value, dict):
        value = {key: node_of(item) for key, item in value.items()}
    elif isinstance(value, list):
        value = [node_of(item) for item in value]
    return Node(value, "/project/fdl.yml", 7, 3)


def is_accepted(root: Node, *, whole: bool = False) -> bool:
    try:
        check(root, whole=whole)
    except ManifestError:
        return False
    return True


def fits(value: Any) -> bool:
    return bool(VALIDATOR.is_valid(value))


NAMES = st.sampled_from(
    [
        *DOCUMENT["properties"],
        *(key for one in DOCUMENT["$defs"].values() for key in one.get("properties", ())),
    ]
) | st.sampled_from(["model", "comands", "A", "HF_TOKEN", "a b", 'q"q', "[x]", "schema_"])
PATTERNED = ("x", "solo-0", "1:2", "gpu1:29400", "${A}")
TEXTS = st.sampled_from(
    [
        "auto",
        "x",
        "sync",
        "nccl",
        "nccl-async",
        "solo-0",
        "solo-",
        "1:2",
        "gpu1:29400",
        "5",
        "1.5",
        "nan",
        "true",
        ".env",
        "${A}",
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.just(65536),
    st.sampled_from([0.5, -0.5]),
    TEXTS,
)
# Here the schema says less than fdl: see `test_what_the_schema_has_no_words_for`.
BEYOND = st.one_of(
    st.integers(), st.floats(), st.text(max_size=3), st.sampled_from([10**400, "solo-\u0663"])
)


def anything(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=5,
    )


def suitable(rule: dict[str, Any], wild: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Values that fit a rule, with some of ``wild`` in between."""
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        if name == "Item":
            return wild  # lists in lists: those of any value
        named = DOCUMENT["$defs"][name]
        # Settings and arguments of subcommands contain themselves.
        return st.deferred(lambda: suitable(named, wild))
    if "anyOf" in rule:
        return st.one_of(*(suitable(one, wild) for one in rule["anyOf"]), wild)
    if "enum" in rule or "const" in rule:
        return st.sampled_from(rule.get("enum") or [rule["const"]])
    if "pattern" in rule:
        fitting = [text for text in PATTERNED if re.search(rule["pattern"], text)]
        return st.sampled_from(fitting) | wild
    if "properties" in rule:
        known = {name: suitable(one, wild) for name, one in rule["properties"].items()}
        some = st.sets(st.sampled_from(list(known)), max_size=4).flatmap(
            lambda names: st.fixed_dictionaries({name: known[name] for name in sorted(names)})
        )
        strange = st.dictionaries(NAMES, wild, max_size=1)
        return st.tuples(some, st.just({}) | strange).map(lambda two: {**two[1], **two[0]})
    if "additionalProperties" in rule:
        return st.dictionaries(NAMES, suitable(rule["additionalProperties"], wild), max_size=3)
    if "items" in rule:
        return st.lists(suitable(rule["items"], wild), max_size=3)
    limits = [rule[name] for name in ("minimum", "maximum", "exclusiveMinimum") if name in rule]
    edges = [limit + step for limit in limits for step in (-1, 0, 1)]
    return st.sampled_from(edges) | wild if edges else wild


TELLABLE = suitable(DOCUMENT, anything(SCALARS))
ANY = suitable(DOCUMENT, anything(SCALARS | BEYOND))


def test_the_manifests_tried_are_of_both_sorts() -> None:
    verdicts = []

    @settings(max_examples=150, database=None, derandomize=True)
    @given(TELLABLE)
    def collect(value: Any) -> None:
        verdicts.append(is_accepted(node_of(value)))

    collect()
    assert 20 < sum(verdicts) < len(verdicts) - 20


def agree(value: Any) -> None:
    root = node_of(value)
    assert is_accepted(root) == fits(value)
    # A layer may leave to the others what the whole must have, and nothing else.
    assert not is_accepted(root, whole=True) or is_accepted(root)


def never_stricter(value: Any) -> None:
    assert not is_accepted(node_of(value)) or fits(value)


@given(TELLABLE)
@example({"options": {"description": [[None]]}})
@example({"options": {"a b": None}})
@example({"commands": {"quick": {"options": {"a": {"b c": 1}}}}})
@settings(max_examples=120)
def test_fdl_and_the_schema_accept_the_same_manifests(value: Any) -> None:
    agree(value)


@given(ANY)
@settings(max_examples=80)
def test_the_schema_refuses_nothing_that_fdl_accepts(value: Any) -> None:
    never_stricter(value)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(TELLABLE)
@settings(max_examples=20_000)
def test_fdl_and_the_schema_accept_the_same_manifests_at_length(value: Any) -> None:
    agree(value)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(ANY)
@settings(max_examples=20_000)
def test_the_schema_refuses_nothing_that_fdl_accepts_at_length(value: Any) -> None:
    never_stricter(value)


def judge_damaged(seeds: range) -> int:
    """How many layers of damaged projects are accepted; the schema must accept each of them."""
    accepted = 0
    originals = projects()
    for seed in seeds:
        files, _ = damaged(seed, originals)
        for name, data in files.items():
            # The schema is slow on the largest ones, and says nothing else about them.
            if not name.endswith((".yml", ".yaml", ".json")) or len(data) > 50_000:
                continue
            try:
                root = parse(data.decode(), f"/project/{name}")
            except (ManifestError, UnicodeDecodeError):
                continue
            if is_accepted(root):
                accepted += 1
                assert fits(root.plain()), f"seed {seed}: {name}"
    return accepted


def test_what_is_left_of_damaged_manifests_is_judged_alike() -> None:
    assert judge_damaged(range(400)) > 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_left_of_many_damaged_manifests_is_judged_alike() -> None:
    assert judge_damaged(range(1_000, 21_000)) > 5_000


@each_row(
    ("value", "words"),
    [
        ({"training": {"seed": 5.0}}, "`training.seed` must be a whole number, not 5.0"),
        ({"training": {"lr": float("nan")}}, "`training.lr` must be a finite number, not .nan"),
        ({"training": {"lr": float("-inf")}}, "`training.lr` must be a finite number, not -.inf"),
        ({"training": {"lr": 10**400}}, "`training.lr` must be a number, not 1000"),
        ({"env": {"A=": 1}}, '`env."A="` names no variable'),
        ({"env_file": " "}, "`env_file` must be a path"),
        ({"ddp": {"mode": "solo-1\n"}}, "`ddp.mode` must be `solo-N`"),
    ],
)
def test_what_the_schema_has_no_words_for(value: dict[str, Any], words: str) -> None:
    assert fits(value)
    with pytest.raises(ManifestError) as caught:
        check(node_of(value), whole=False)
    assert words in caught.value.message
