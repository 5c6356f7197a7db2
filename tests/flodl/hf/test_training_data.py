"""What heads are trained on: labels that fit the tokens, and tokens that are hidden."""

from __future__ import annotations

import pytest
import torch

from flodl.hf.collators import align_labels
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.batches import encoded, token_fact
from tests.flodl.hf.predict.reference import SENTENCES, tokenizer_of

TEXTS = ["the fox jumps", "Babbage in London"]


def special(enc):
    return token_fact(enc, "special_tokens_mask") == 1


@pytest.fixture(scope="module")
def tokenizer():
    return PreTrainedTokenizerFast.from_inner(tokenizer_of("bert").backend_tokenizer)


def test_the_first_piece_of_a_word_has_its_label(tokenizer):
    enc = encoded(tokenizer, TEXTS)
    labels = align_labels([[1, 2, 3], [4, 5, 6]], enc)
    for row, (numbers, words) in enumerate(
        zip(labels.tolist(), token_fact(enc, "word_ids").tolist(), strict=True)
    ):
        before = -1
        for number, word in zip(numbers, words, strict=True):
            first = word >= 0 and word != before
            assert number == (3 * row + word + 1 if first else -100)
            before = word
    assert (labels == -100).sum() > special(enc).sum()


def test_all_pieces_of_a_word_can_have_its_label(tokenizer):
    enc = encoded(tokenizer, TEXTS)
    labels = align_labels([[1, 2, 3], [4, 5, 6]], enc, all_pieces=True)
    offset = torch.tensor([[1], [4]])
    assert torch.equal(
        labels, (token_fact(enc, "word_ids") + offset).masked_fill(special(enc), -100)
    )


def test_windows_share_the_labels_of_their_text(tokenizer):
    text = " ".join(SENTENCES[4:5] * 3)
    enc = encoded(tokenizer, [text], truncation=True, max_length=16, stride=0)
    assert len(enc.input_ids) > 1
    labels = align_labels([list(range(27))], enc, all_pieces=True)
    words = token_fact(enc, "word_ids")
    assert torch.equal(labels, words.masked_fill(words < 0, -100))


def test_only_the_first_text_of_a_pair_is_labelled(tokenizer):
    enc = encoded(tokenizer, [("the fox", "the fox jumps")])
    labels = align_labels([[7, 8]], enc, all_pieces=True)
    assert ((labels != -100) == (token_fact(enc, "sequence_ids") == 0)).all()


def test_missing_labels_are_named(tokenizer):
    enc = encoded(tokenizer, TEXTS)
    with pytest.raises(ValueError, match=r"row 1 has a word number 2 .* and only 2 labels"):
        align_labels([[1, 2, 3], [4, 5]], enc)
    with pytest.raises(ValueError, match="labels of 1 inputs were given for a batch with a row of"):
        align_labels([[1, 2, 3]], enc)
