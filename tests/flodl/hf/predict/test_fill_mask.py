"""Gaps: which tokens fill them, in which order, and what is decoded for it."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import TorchFunctionMode

from flodl.hf.auto import AutoModelForMaskedLM
from flodl.hf.errors import TokenizerMissingError
from flodl.hf.predict.fill_mask import MaskFill
from tests.flodl.hf.predict.reference import pipeline, write

FAMILIES = ["bert", "roberta", "distilbert", "xlm-roberta", "albert", "deberta-v2", "modernbert"]


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    # With a spread of 1, two right ways to add differ by more than 1e-6 on some processors.
    write(path, request.param, "ForMaskedLM", spread=0.4)
    return path


@pytest.fixture(scope="module")
def head(directory):
    return AutoModelForMaskedLM.from_pretrained(directory)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    write(path, "bert", "ForMaskedLM")
    return AutoModelForMaskedLM.from_pretrained(path)


def texts(head):
    gap = head.tokenizer.mask_token
    return f"the quick {gap} fox jumps", f"She {gap} from New York to {gap} for Acme"


def assert_like_pipeline(ours, theirs):
    assert [fill.token_id for fill in ours] == [entry["token"] for entry in theirs]
    assert [fill.token_str for fill in ours] == [entry["token_str"] for entry in theirs]
    assert [fill.sequence for fill in ours] == [entry["sequence"] for entry in theirs]
    scores = [entry["score"] for entry in theirs]
    assert [fill.score for fill in ours] == pytest.approx(scores, abs=1e-6)


@pytest.mark.case("hf", 32)
def test_tokens_and_scores_are_those_of_the_reference(directory, head):
    one, two = texts(head)
    fill = pipeline("fill-mask", directory)
    ours = head.fill_mask(one)
    assert len(ours) == 1
    assert len(ours[0]) == 5
    assert_like_pipeline(ours[0], fill(one))

    ours = head.fill_mask(two, top_k=3)
    assert len(ours) == 2
    for gap, expected in zip(ours, fill(two, top_k=3), strict=True):
        assert_like_pipeline(gap, expected)


@pytest.mark.case("hf", 32)
def test_top_k_has_to_be_positive_and_stops_at_the_vocabulary(head):
    one, _ = texts(head)
    for top_k in (0, -1):
        with pytest.raises(ValueError, match=f"top_k must be at least 1, got {top_k}"):
            head.fill_mask(one, top_k=top_k)
    (gap,) = head.fill_mask(one, top_k=10**6)
    assert len(gap) == head.config.vocab_size
    assert sum(fill.score for fill in gap) == pytest.approx(1, abs=1e-5)


@pytest.mark.case("hf", 32)
def test_a_text_without_a_gap_is_named(head):
    one, _ = texts(head)
    with pytest.raises(ValueError, match=r"text 0 has no .*(mask|MASK).* to fill in"):
        head.fill_mask("the quick fox")
    with pytest.raises(ValueError, match="text 1 has no"):
        head.fill_mask_batch([one, "the fox", one, "a dog"])


def test_targets_restrict_the_candidates_and_keep_their_scores(directory, head):
    one, _ = texts(head)
    names = [fill.token for fill in head.fill_mask(one, top_k=30)[0][10:14]]
    ours = head.fill_mask(one, targets=names)
    assert_like_pipeline(ours[0], pipeline("fill-mask", directory)(one, targets=names))
    assert [fill.token for fill in ours[0]] == names
    assert len(head.fill_mask(one, 2, targets=names)[0]) == 2


def test_a_target_that_is_no_token_stands_for_its_first_piece(bert):
    one, _ = texts(bert)
    pieces = bert.tokenizer.inner.encode("xylophone", add_special_tokens=False).tokens
    with pytest.warns(
        UserWarning, match=f"'xylophone' is not a token: .*{pieces[0]!r}".replace("[", r"\[")
    ):
        (gap,) = bert.fill_mask(one, targets=["xylophone"])
    assert [fill.token for fill in gap] == pieces[:1]
    with (
        pytest.warns(UserWarning, match="target '' is not a token: left out"),
        pytest.raises(ValueError, match=r"none of the targets is a token: \[''\]"),
    ):
        bert.fill_mask(one, targets=[""])


def test_gaps_of_many_texts_come_back_in_order(bert):
    one, two = texts(bert)
    many = [one, two, two + " and more of it", one, two]
    together = bert.fill_mask_batch(many, top_k=4)
    assert [len(gaps) for gaps in together] == [1, 2, 2, 1, 2]
    for text, gaps in zip(many, together, strict=True):
        for gap, alone in zip(gaps, bert.fill_mask(text, top_k=4), strict=True):
            assert [fill._replace(score=0) for fill in gap] == [a._replace(score=0) for a in alone]
            assert [fill.score for fill in gap] == pytest.approx([a.score for a in alone], abs=1e-5)
    assert bert.fill_mask_batch([]) == []


def test_only_gaps_are_decoded(bert):
    _, two = texts(bert)
    shapes = []
    decoder = bert.graph.get_submodule("cls.predictions")
    hook = decoder.register_forward_hook(lambda _, __, logits: shapes.append(tuple(logits.shape)))
    bert.fill_mask(two)
    hook.remove()
    assert shapes == [(2, bert.config.vocab_size)]


def test_a_gap_is_filled_with_named_tuples_in_descending_order(bert):
    (gap,) = bert.fill_mask(texts(bert)[0], top_k=20)
    assert all(type(fill) is MaskFill for fill in gap)
    assert [fill.score for fill in gap] == sorted((fill.score for fill in gap), reverse=True)
    assert all(fill.token == bert.tokenizer.inner.id_to_token(fill.token_id) for fill in gap)


def test_text_needs_a_tokenizer(bert):
    bare = type(bert)(bert.config, bert.graph, None)
    with pytest.raises(TokenizerMissingError, match=r"fill_mask\(\) needs a tokenizer"):
        bare.fill_mask("the [MASK]")
    with pytest.raises(TypeError, match=r"fill_mask_batch\(\) takes a list of texts"):
        bert.fill_mask_batch("the [MASK]")


class Products(TorchFunctionMode):
    """Keeps how many rows each linear layer multiplies, by the width of its result."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            rows, width = args[0].numel() // args[0].shape[-1], args[1].shape[0]
            self.rows.setdefault(width, []).append(rows)
        return func(*args, **(kwargs or {}))


@pytest.mark.case("hf", 54)
def test_only_the_hidden_words_are_compared_with_the_vocabulary(head):
    one, two = texts(head)
    with Products() as seen:
        head.fill_mask_batch([one, two])
    # Three gaps in two texts, and no other position.
    assert sum(seen.rows[head.config.vocab_size]) == 3


@pytest.mark.case("hf", 53)
def test_no_layer_multiplies_padding(bert):
    one, _ = texts(bert)
    many = [one, " ".join([one] * 6)]
    tokens = [len(bert.tokenizer.inner.encode(text).ids) for text in many]
    assert max(tokens) > 3 * min(tokens)
    with Products() as seen:
        bert.fill_mask_batch(many)
    width = bert.config.intermediate_size
    layers = bert.config.num_hidden_layers
    assert sum(seen.rows[width]) == layers * sum(tokens)
