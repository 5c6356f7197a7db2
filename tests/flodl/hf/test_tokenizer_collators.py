"""Collators make the batches that transformers' collators make."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from flodl.hf import collators
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.test_tokenizer import words_tokenizer
from tests.flodl.hf.tokenizer_material import LINES, write_bert
from tests.later import transformers
from tests.rows import each_row


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    directory = write_bert(
        tmp_path_factory.mktemp("bert") / "t", {"tokenizer_class": "BertTokenizer"}
    )
    ours = PreTrainedTokenizerFast.from_pretrained(directory)
    ours.save(directory / "tokenizer.json")
    return ours, transformers.AutoTokenizer.from_pretrained(directory)


def same(ours, theirs):
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype
        assert value.tolist() == theirs[name].tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 70}],
    ids=["longest", "multiple", "length"],
)
def test_rows_are_padded_and_labels_renamed(both, options):
    ours, theirs = both
    rows = [{**ours(LINES[n], truncation=True, max_length=60), "label": n} for n in range(4)]
    expected = transformers.DataCollatorWithPadding(theirs, **options)(rows)
    same(collators.DataCollatorWithPadding(ours, **options)(rows), expected)
    floats = [{**row, "label": row["label"] / 2} for row in rows]
    same(
        collators.DataCollatorWithPadding(ours, **options)(floats),
        transformers.DataCollatorWithPadding(theirs, **options)(floats),
    )


def test_a_loader_of_two_workers_collates(both):
    ours, _ = both
    rows = [{**ours(line), "label": 1} for line in LINES[:6]]
    collate = collators.DataCollatorWithPadding(ours)
    batches = list(DataLoader(rows, batch_size=3, collate_fn=collate, num_workers=2))
    assert [len(batch["labels"]) for batch in batches] == [3, 3]
    assert batches[0].input_ids.tolist() == collate(rows[:3]).input_ids.tolist()


@pytest.mark.parametrize("side", ["right", "left"])
def test_labels_of_tokens_are_padded_on_the_side_of_the_rows(both, side):
    ours, theirs = both
    ours.padding_side = theirs.padding_side = side
    rows = [dict(ours(line)) for line in LINES[:3]]
    labelled = [{**row, "labels": [1] * len(row["input_ids"])} for row in rows]
    for given in (rows, labelled):
        expected = transformers.DataCollatorForTokenClassification(theirs)(given)
        same(collators.DataCollatorForTokenClassification(ours)(given), expected)
    ours.padding_side = theirs.padding_side = "right"


@each_row("masked", [False, True], ids=["ids", "mask"])
@each_row("options", [{}, {"mask_replace_prob": 1.0, "random_replace_prob": 0.0}])
def test_the_same_draws_hide_the_same_tokens(both, options, masked):
    ours, theirs = both
    rows = [dict(ours(line, return_special_tokens_mask=masked)) for line in LINES[:20]]
    torch.manual_seed(5)
    expected = transformers.DataCollatorForLanguageModeling(theirs, **options)(rows)
    torch.manual_seed(5)
    same(collators.DataCollatorForLanguageModeling(ours, **options)(rows), expected)
    seeded = transformers.DataCollatorForLanguageModeling(theirs, seed=9, **options)
    mine = collators.DataCollatorForLanguageModeling(ours, seed=9, **options)
    for _ in range(2):
        same(mine(rows), seeded(rows))


def test_probabilities_are_checked():
    tokenizer = PreTrainedTokenizerFast.from_inner(words_tokenizer())
    with pytest.raises(ValueError, match="mlm_probability must be 0 … 1, got 2"):
        collators.DataCollatorForLanguageModeling(tokenizer, mlm_probability=2)
    with pytest.raises(ValueError, match="more than 1 together"):
        collators.DataCollatorForLanguageModeling(tokenizer, random_replace_prob=0.5)


# pad


GIVEN = [
    [{"input_ids": [2, 5, 6, 3]}, {"input_ids": [2, 3]}],
    {"input_ids": [[2, 5, 6, 3], [2, 3]], "token_type_ids": [[0, 0, 0, 0], [0, 0]]},
    {"input_ids": [2, 5, 3], "attention_mask": [1, 1, 1], "special_tokens_mask": [1, 0, 1]},
    [{"input_ids": torch.tensor([2, 5, 3])}, {"input_ids": torch.tensor([2, 3])}],
    [{"input_ids": np.array([2, 5, 3])}, {"input_ids": np.array([2, 3])}],
    {"input_ids": []},
]


@each_row("given", GIVEN, ids=range(len(GIVEN)))
@each_row(
    "options",
    [
        {},
        {"padding": False},
        {"padding": "max_length", "max_length": 6},
        {"padding_side": "left", "pad_to_multiple_of": 4},
        {"return_attention_mask": False},
    ],
    ids=lambda options: "-".join(options) or "none",
)
def test_rows_of_any_form_are_padded_alike(both, given, options):
    ours, theirs = both
    copied = [dict(row) for row in given] if isinstance(given, list) else dict(given)
    if options.get("padding") is False and isinstance(given, list) and len(given) == 2:
        kind = type(given[0]["input_ids"])
        if kind is not list:
            with pytest.raises(ValueError, match="cannot become a tensor"):
                ours.pad(given, **options)
            return
    mine, other = ours.pad(given, **options), theirs.pad(copied, **options)
    assert {
        k: np.asarray(v).tolist() if not isinstance(v, list) else v for k, v in mine.items()
    } == {k: np.asarray(v).tolist() if not isinstance(v, list) else v for k, v in other.items()}
    assert [type(v) for v in mine.values()] == [type(v) for v in other.values()]


@each_row(
    ("given", "message"),
    [
        ({"ids": [1]}, r"pad\(\) needs 'input_ids' for each row, got ids"),
        ([], "needs a mapping of values, or a list"),
        ([{"input_ids": [1], "labels": 0}, {"input_ids": [1]}], "a row has no 'labels'"),
        ({"input_ids": [[1], [2]], "labels": [0]}, "labels has 1 rows and input_ids 2"),
    ],
)
def test_rows_that_do_not_fit_together_are_named(both, given, message):
    with pytest.raises(ValueError, match=message):
        both[0].pad(given)


def test_a_row_is_encoded_once_and_written_as_json(both):
    ours, _ = both
    row = dict(ours("a b"))
    assert json.loads(json.dumps(row)) == row
