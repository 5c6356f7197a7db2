"""Random graphs from a grammar of all constructs, against a slow interpreter of the same recipe."""

from __future__ import annotations

import copy
import os
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings, strategies as st
from torch.nn.functional import dropout

from .reference.agreement import Pair, draw_inputs
from .reference.assembly import Assembly
from .reference.grammar import random_calls, random_recipe
from .reference.mutations import mutations, neutral_changes
from .reference.parts import instantiate
from .reference.recipe import Fork, Leaf, Nested, Recipe, Ref, Through


def recipes(**options):
    """Recipes, printed as the programs they stand for when an example fails."""

    def draw(source):
        recipe = random_recipe(source, **options)
        note(repr(recipe))
        return recipe

    return SOURCES.map(draw)


SOURCES = st.randoms(use_true_random=False)
RECIPES = recipes()
CAPTURABLE = recipes(capturable=True, size=4, depth=1)
CALLS = SOURCES.map(random_calls)
STATELESS = CAPTURABLE.filter(lambda recipe: not recipe.is_stateful)
LEADS = st.sampled_from([(3,), (2, 3), (1,)])
"""What stands before the width in every input: a batch, a batch of sequences, a single sample."""


def examples(count):
    """The same examples in every run; a failure prints the recipe as a program."""
    return settings(
        max_examples=count,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# Tracing asks a carried value for its grad; torch hides that warning unless warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def build(recipe, seed=0):
    return Assembly(instantiate(recipe, seed)).build(recipe)


def follow(recipe, calls, lead, policy):
    pair = Pair(recipe)
    for graph in (pair.graph, *pair.nested.values()):
        graph.state_policy = policy
    pair.follow(calls, lead)
    pair.compare_names()


def detached_after_backward(calls):
    """The same calls for those who cut gradients themselves."""
    return [
        replace(call, after="end_step") if call.after in ("", "validate") else call
        for call in calls
    ]


# --- Values, gradients, tags, traces, state ----------------------------------------------------


@examples(60)
@given(RECIPES, CALLS, LEADS)
def test_a_graph_does_what_its_recipe_says_over_several_calls(recipe, calls, lead):
    follow(recipe, calls, lead, "auto")


@examples(15)
@given(RECIPES, CALLS, LEADS)
def test_so_does_a_graph_whose_user_detaches(recipe, calls, lead):
    follow(recipe, detached_after_backward(calls), lead, "manual")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@examples(3000)
@given(recipes(size=10, depth=3), CALLS, LEADS)
def test_thousands_of_graphs_do_what_their_recipes_say(recipe, calls, lead):
    follow(recipe, calls, lead, "auto")


def test_a_backward_that_passes_a_memory_by_cuts_its_history_all_the_same():
    memory = Recipe((Through(module=Leaf(1, "mix", 2, 2), refs=(Ref("m"),), tags=("m",)),), (2,))
    aside = Fork(module=Nested(2, memory), tags=("aside",))
    recipe = Recipe((Through(module=Leaf(3, "block", 2, 2)), aside), (2,))
    pair = Pair(recipe)
    for whole in (False, True, False, True):
        pair.call(draw_inputs(recipe, (3,), seed=int(whole)), whole=whole)
        pair.backward()


# --- Compiled ----------------------------------------------------------------------------------


def test_capturable_is_a_graph_in_which_values_decide_nothing():
    for seed in range(40):
        recipe = random_recipe(random.Random(seed))
        graph = build(recipe)
        if recipe.decides:
            assert not graph.capturable
            assert graph.capturable.reasons
        elif not recipe.is_stateful:
            assert graph.capturable, graph.capturable.reasons


def compiled_agree(recipe, calls, lead, backend):
    """Compile the graph's core; everything around it keeps working, state included."""
    torch._dynamo.reset()
    pair = Pair(recipe, compiled=True)
    pair.graph.compile(backend=backend)
    pair.follow(calls, lead)


def small(seed):
    """A recipe quick enough to compile in a default run."""
    recipe = random_recipe(random.Random(seed), capturable=True, size=3, depth=1)
    print(recipe)
    return recipe


@pytest.mark.parametrize("seed", [12, *(pytest.param(n, marks=pytest.mark.slow) for n in (42, 50))])
def test_a_compiled_graph_does_the_same(seed):
    compiled_agree(small(seed), random_calls(random.Random(seed)), (2, 3), "aot_eager")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@examples(200)
@given(recipe=CAPTURABLE, calls=CALLS, lead=LEADS)
def test_hundreds_of_compiled_graphs_do_the_same(recipe, calls, lead, backend):
    compiled_agree(recipe, calls, lead, backend)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@examples(12)
@given(CAPTURABLE, CALLS, LEADS)
def test_so_does_generated_machine_code(recipe, calls, lead):
    compiled_agree(recipe, calls, lead, "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_compiled_dropout_that_drops_nothing_returns_a_copy(training):
    """The reason why ``Pair`` treats recipes with dropout apart; without it, nothing has to."""
    torch._dynamo.reset()
    rate = 0.0 if training else 0.5
    compiled = torch.compile(lambda x: dropout(x, rate, training), backend="aot_eager")
    value = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert dropout(value, rate, training) is value
        copied = compiled(value)
    assert not copied.requires_grad
    assert torch.equal(copied, value)


def traced_whole_agrees(recipe, lead, backend):
    """``torch.compile`` sees one graph without a break, and its result is the same."""
    torch._dynamo.reset()
    pair = Pair(recipe, compiled=True)
    pair.run = torch.compile(pair.graph, fullgraph=True, backend=backend)
    for seed in range(2):
        pair.call(draw_inputs(recipe, lead, seed))
        pair.backward()


@pytest.mark.parametrize("seed", [4, 35, pytest.param(39, marks=pytest.mark.slow)])
def test_torch_compile_takes_the_whole_graph(seed):
    traced_whole_agrees(small(seed), (3,), "aot_eager")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@examples(200)
@given(STATELESS, LEADS)
def test_torch_compile_takes_hundreds_of_whole_graphs(recipe, lead):
    traced_whole_agrees(recipe, lead, "aot_eager")


# --- Copies ------------------------------------------------------------------------------------


@examples(15)
@given(RECIPES, LEADS)
@pytest.mark.slow
def test_a_checkpoint_turns_a_fresh_graph_into_an_equal_one(tmp_path_factory, recipe, lead):
    parts = instantiate(recipe)
    path = tmp_path_factory.mktemp("random") / "graph.fdl"
    Assembly(parts).build(recipe).save_checkpoint(path)
    other = build(recipe, seed=1)
    report = other.load_checkpoint(path)
    assert report.missing == []
    assert report.skipped == []
    pair = Pair(recipe, parts, graph=other)
    for seed in range(2):
        pair.call(draw_inputs(recipe, lead, seed))


@examples(15)
@given(RECIPES, LEADS, st.sampled_from([copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))]))
def test_a_copy_starts_without_state_and_then_does_the_same(recipe, lead, copied):
    parts = instantiate(recipe)
    original = Assembly(parts).build(recipe)
    original(*draw_inputs(recipe, lead, seed=9))
    twin = copied(original)
    assert all(twin.tagged(name) is None for name in twin.tag_names())
    assert twin.structural_hash() == original.structural_hash()
    pair = Pair(recipe, parts, graph=twin)
    for seed in range(2):
        pair.call(draw_inputs(recipe, lead, seed))


# --- The structural hash -----------------------------------------------------------------------

HASHES = """
import random
from tests.flodl.graph.reference.assembly import Assembly
from tests.flodl.graph.reference.grammar import random_recipe
from tests.flodl.graph.reference.parts import instantiate

for seed in range(25):
    recipe = random_recipe(random.Random(seed))
    print(Assembly(instantiate(recipe, seed)).build(recipe).structural_hash())
"""


@pytest.mark.slow
def test_the_hash_is_equal_in_another_process():
    recipes = [random_recipe(random.Random(seed)) for seed in range(25)]
    ours = [build(recipe).structural_hash() for recipe in recipes]
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    done = subprocess.run(
        [sys.executable, "-c", HASHES],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ours
    assert len(set(ours)) == len({repr(recipe) for recipe in recipes})


def hashes_differ(recipe, most=None):
    known = {build(recipe).structural_hash(): "the recipe itself"}
    for what, changed in islice(mutations(recipe), most):
        digest = build(changed).structural_hash()
        assert digest != next(iter(known)), f"{what} leaves the hash as it was"


@examples(15)
@given(RECIPES)
def test_every_change_of_wiring_or_an_operator_argument_changes_the_hash(recipe):
    hashes_differ(recipe, most=10)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@examples(500)
@given(RECIPES)
def test_no_change_at_any_depth_leaves_the_hash_as_it_was(recipe):
    hashes_differ(recipe)


@examples(12)
@given(RECIPES)
def test_label_weights_dtype_rates_and_batching_leave_the_hash_as_it_was(recipe):
    expected = build(recipe).structural_hash()
    assert build(recipe, seed=1).structural_hash() == expected
    assert build(recipe).float().eval().structural_hash() == expected
    for what, changed in islice(neutral_changes(recipe), 6):
        assert build(changed).structural_hash() == expected, what
