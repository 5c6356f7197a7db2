"""Answers: which spans win, how windows combine, and what text they are."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from flodl.hf.auto import AutoModelForQuestionAnswering
from flodl.hf.errors import TokenizerMissingError
from flodl.hf.predict.answer import Answer, best_spans
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.batches import encoded
from tests.flodl.hf.predict.reference import SENTENCES, tokenizer_of, write
from tests.flodl.hf.predict.scripted import ScriptedQuestionAnswering
from tests.rows import each_row

WORDS = " ".join(SENTENCES).split()
QUESTION = "Who met Charles?"


def wrapped(family: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_inner(tokenizer_of(family).backend_tokenizer)


def brute_force(family, head, question, context, *, top_k, max_seq_len, doc_stride, **options):
    """The published rules, span by span, on the windows of the reference's own tokenizer."""
    windows = tokenizer_of(family)(
        question,
        context,
        truncation="only_second",
        max_length=max_seq_len,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    found, null_score = {}, 1e6
    for number in range(len(windows["input_ids"])):
        encoding = windows[number]
        ids = torch.tensor([encoding.ids])
        start, end = head.logits(ids)[0].numpy().T
        context_places = [p for p, s in enumerate(windows.sequence_ids(number)) if s == 1]
        hidden = np.ones(len(encoding.ids), dtype=bool)
        hidden[[0, *context_places]] = False
        start, end = (softmax(np.where(hidden, np.float32(-10000), side)) for side in (start, end))
        null_score = min(null_score, float(start[0] * end[0]))
        spans = [
            (float(start[s] * end[e]), s, e)
            for s in context_places
            for e in context_places
            if s <= e < s + options["max_answer_len"]
        ]
        wanted = 2 * top_k + 10 if options["align_to_words"] else top_k
        for score, s, e in sorted(spans, reverse=True)[:wanted]:
            begin, beyond = characters(encoding, s, e, options["align_to_words"])
            key = context[begin:beyond].lower()
            total, place = found.get(key, (0.0, (begin, beyond)))
            found[key] = (total + score, place)
    answers = list(found.values())
    if options["handle_impossible_answer"]:
        answers.append((null_score, (0, 0)))
    return sorted(answers, key=lambda answer: -answer[0])[:top_k]


def softmax(values):
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def characters(encoding, start, end, align):
    words = [encoding.token_to_word(start), encoding.token_to_word(end)]
    if not align or None in words:
        return encoding.offsets[start][0], encoding.offsets[end][1]
    first, last = (encoding.word_to_chars(word, 1) for word in words)
    return first[0], last[1]


@pytest.mark.case("hf", 31)
@pytest.mark.parametrize("first", range(0, 200, 25))
@each_row("step", range(25))
def test_the_three_best_answers_are_those_of_a_search_through_all_spans(first, step):
    seed = first + step
    chance = random.Random(seed)
    family = chance.choice(["bert", "roberta", "albert"])
    head = ScriptedQuestionAnswering(wrapped(family), seed, chance.choice([0.5, 2.0]))
    question = " ".join(chance.choices(WORDS, k=chance.randint(1, 3)))
    context = " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
    options = {
        "max_seq_len": chance.choice([60, 90, 384]),
        "doc_stride": chance.randint(0, 12),
        "max_answer_len": chance.choice([1, 4, 15, 500]),
        "align_to_words": chance.random() < 0.7,
        "handle_impossible_answer": chance.random() < 0.5,
    }
    expected = brute_force(family, head, question, context, top_k=3, **options)
    answers = head.answer(question, context, top_k=3, **options)
    assert [(a.start_char, a.end_char) for a in answers] == [span for _, span in expected]
    scores = [score for score, _ in expected]
    assert [a.score for a in answers] == pytest.approx(scores, abs=1e-6)
    assert all(context[a.start_char : a.end_char] == a.text for a in answers)


@pytest.mark.case("hf", 31)
def test_a_context_of_two_thousand_tokens_is_read_to_its_end():
    tokenizer = wrapped("bert")
    head = ScriptedQuestionAnswering(tokenizer, 0, 0.0)
    head.by_token[tokenizer.inner.token_to_id("!")] = 9.0
    context = "the " * 2100 + "! the dog"
    assert encoded(tokenizer, [context]).input_ids.shape[1] > 2000
    answer = head.answer("the dog", context)
    assert (answer.text, answer.start_char) == ("!", context.index("!"))
    assert context[answer.start_char : answer.end_char] == answer.text


def test_windows_are_read_in_any_batch_with_the_same_answers():
    head = ScriptedQuestionAnswering(wrapped("bert"), 3)
    chance = random.Random(0)
    pairs = [(QUESTION, " ".join(chance.choices(WORDS, k=5 * n + 1))) for n in range(12)]
    options = {"max_seq_len": 48, "doc_stride": 8, "top_k": 4}
    alone = [head.answer(question, context, **options) for question, context in pairs]
    assert head.answer_batch(pairs, **options) == alone
    assert head.answer_batch(pairs, batch_size=3, bucket=False, **options) == alone
    assert head.answer_batch(pairs, batch_size=None, max_tokens=100, **options) == alone


def test_one_answer_comes_as_it_is_and_several_as_a_list():
    head = ScriptedQuestionAnswering(wrapped("bert"), 3)
    one = head.answer(QUESTION, SENTENCES[0])
    several = head.answer(QUESTION, SENTENCES[0], top_k=3)
    assert isinstance(one, Answer)
    assert [type(answer) for answer in several] == [Answer] * 3
    assert [answer.score for answer in several] == sorted((a.score for a in several), reverse=True)
    assert head.answer_batch([(QUESTION, SENTENCES[0])]) == [one]
    assert head.answer_batch([]) == []


def test_tokens_of_an_answer_are_those_its_text_is_made_of():
    tokenizer = wrapped("bert")
    head = ScriptedQuestionAnswering(tokenizer, 5)
    batch = encoded(tokenizer, [(QUESTION, SENTENCES[1])])
    for align in (True, False):
        answers = head.answer(QUESTION, SENTENCES[1], top_k=5, align_to_words=align)
        assert len(answers) == 5
        for answer in answers:
            offsets = batch.encodings[0].offsets
            begin, beyond = offsets[answer.start][0], offsets[answer.end][1]
            assert (answer.start_char, answer.end_char) == (begin, beyond)


def test_the_place_for_no_answer_takes_part_and_is_no_answer():
    logits = torch.tensor([[[2.0, 2.0], [9.0, 9.0], [1.0, 0.0], [0.0, 1.0]]])
    context = torch.tensor([[False, False, True, True]])
    null = torch.tensor([[True, False, False, False]])
    spans = best_spans(logits, context, null, 9, 15)
    start, end = (logits[0, [0, 2, 3], side].softmax(0) for side in range(2))
    assert spans.null_scores.tolist() == pytest.approx([float(start[0] * end[0])])
    real = spans.scores[0] >= 0
    pairs = zip(spans.starts[0, real].tolist(), spans.ends[0, real].tolist(), strict=True)
    products = {(2, 3): start[1] * end[2], (3, 3): start[2] * end[2], (2, 2): start[1] * end[1]}
    scored = dict(zip(pairs, spans.scores[0, real].tolist(), strict=True))
    assert scored == pytest.approx({pair: float(score) for pair, score in products.items()})


def test_a_pair_without_a_context_is_named():
    head = ScriptedQuestionAnswering(wrapped("bert"), 1)
    with pytest.raises(ValueError, match="pair 1 has no token of a context"):
        head.answer_batch([(QUESTION, "the dog"), (QUESTION, ""), (QUESTION, "the fox")])


def test_mistakes_are_named():
    head = ScriptedQuestionAnswering(wrapped("bert"), 1)
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        head.answer(QUESTION, "the dog", top_k=0)
    with pytest.raises(ValueError, match="max_answer_len must be at least 1, got 0"):
        head.answer(QUESTION, "the dog", max_answer_len=0)
    with pytest.raises(TypeError, match=r"answer\(\) takes no argument 'max_answer_length'"):
        head.answer(QUESTION, "the dog", max_answer_length=3)
    with pytest.raises(TypeError, match=r"answer_batch\(\) takes no argument 'truncation'"):
        head.answer_batch([(QUESTION, "the dog")], truncation=True)
    for pairs in (["ab"], [(QUESTION, "the dog", "x")], [None]):
        with pytest.raises(TypeError, match="pair 0 must be two texts"):
            head.answer_batch(pairs)
    with pytest.raises(TypeError, match=r"answer_batch\(\) takes a list of texts, got one string"):
        head.answer_batch("ab")
    head._tokenizer = None
    with pytest.raises(TokenizerMissingError, match=r"answer\(\) needs a tokenizer"):
        head.answer(QUESTION, "the dog")


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_a_model_answers_from_its_own_logits(tmp_path, family):
    model = write(tmp_path, family, "ForQuestionAnswering")
    head = AutoModelForQuestionAnswering.from_pretrained(tmp_path)

    class Reference:
        def logits(self, ids):
            pair = tokenizer_of(family)(QUESTION, SENTENCES[1], return_tensors="pt")
            assert pair["input_ids"].tolist() == ids.tolist()
            with torch.no_grad():
                outputs = model(**pair)
            return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)

    options = {"max_answer_len": 15, "align_to_words": True, "handle_impossible_answer": True}
    expected = brute_force(
        family,
        Reference(),
        QUESTION,
        SENTENCES[1],
        top_k=3,
        max_seq_len=120,
        doc_stride=20,
        **options,
    )
    answers = head.answer(QUESTION, SENTENCES[1], top_k=3, handle_impossible_answer=True)
    assert [(a.start_char, a.end_char) for a in answers] == [span for _, span in expected]
    assert [a.score for a in answers] == pytest.approx([score for score, _ in expected], abs=1e-6)
