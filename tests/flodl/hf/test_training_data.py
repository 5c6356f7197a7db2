"""What heads are trained on: labels that fit the tokens, and tokens that are hidden."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models

from flodl.hf.text.encodings import token_fact
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from flodl.hf.training_data import align_labels, mask_tokens
from tests.flodl.hf.batches import batch_of_ids, encoded
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


def test_a_share_of_the_tokens_is_hidden_and_its_ids_are_the_labels(tokenizer):
    enc = encoded(tokenizer, list(SENTENCES[:5]) * 100)
    hidden, labels = mask_tokens(enc, tokenizer, generator=torch.Generator().manual_seed(0))
    chosen = labels != -100
    mask = tokenizer.mask_token_id
    assert not (chosen & special(enc)).any()
    assert torch.equal(labels[chosen], enc.input_ids[chosen])
    assert torch.equal(hidden.input_ids[~chosen], enc.input_ids[~chosen])
    for name in ("attention_mask", "token_type_ids", "overflow_to_sample_mapping"):
        assert torch.equal(hidden[name], enc[name])
    assert torch.equal(special(hidden), special(enc))

    # Shares of more than 10,000 tokens: five standard deviations are less than 0.02.
    count = int((~special(enc)).sum())
    assert count > 10_000
    assert int(chosen.sum()) / count == pytest.approx(0.15, abs=0.02)
    now, before = hidden.input_ids[chosen], enc.input_ids[chosen]
    assert float((now == mask).float().mean()) == pytest.approx(0.8, abs=0.05)
    assert float((now == before).float().mean()) == pytest.approx(0.1, abs=0.04)
    others = now[(now != mask) & (now != before)]
    assert len(others.unique()) > 50
    assert int(others.max()) < tokenizer.inner.get_vocab_size()


def test_the_same_generator_hides_the_same_tokens_and_the_input_stays(tokenizer):
    enc = encoded(tokenizer, TEXTS)
    ids = enc.input_ids.clone()
    first, again = (
        mask_tokens(enc, tokenizer, 0.5, torch.Generator().manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first[0].input_ids, again[0].input_ids)
    assert torch.equal(first[1], again[1])
    assert torch.equal(enc.input_ids, ids)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_none_or_all_tokens_can_be_chosen(tokenizer, p):
    enc = encoded(tokenizer, TEXTS)
    _, labels = mask_tokens(enc, tokenizer, p)
    assert torch.equal(labels != -100, ~special(enc) & bool(p))


def test_special_tokens_are_known_in_batches_that_do_not_mark_them(tokenizer):
    enc = encoded(tokenizer, TEXTS)
    bare = batch_of_ids(enc.input_ids, enc.attention_mask)
    _, labels = mask_tokens(bare, tokenizer, 1.0)
    assert torch.equal(labels != -100, ~special(enc))


def test_mistakes_are_named(tokenizer):
    enc = encoded(tokenizer, TEXTS)
    with pytest.raises(ValueError, match="p must be a probability, 0 … 1, got 15"):
        mask_tokens(enc, tokenizer, 15)
    bare = PreTrainedTokenizerFast.from_inner(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ValueError, match=r"neither \[MASK\] nor <mask>"):
        mask_tokens(enc, bare)


def test_the_usual_mask_token_stands_in_where_none_is_named():
    bare = PreTrainedTokenizerFast.from_inner(
        Tokenizer(models.WordLevel({"a": 0, "<mask>": 1}, unk_token="a"))
    )
    hidden, _ = mask_tokens(encoded(bare, ["a"] * 50), bare, 1.0, torch.Generator().manual_seed(0))
    assert (hidden.input_ids == 1).sum() > 30
