"""Extractive question answering: find the span of a text that answers a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Unpack, overload

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from flodl.hf.batch_encoding import Batch
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import question_answering_loss
from flodl.hf.model_call import QuestionAnsweringModelOutput, head_values
from flodl.hf.predict.batching import (
    Batching,
    BatchOptions,
    Part,
    TextEncoding,
    answered,
    listed_pairs,
    need_tokenizer,
)
from flodl.hf.task_heads import Head
from flodl.hf.text.call_options import check_options
from flodl.hf.tokenizer import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from tokenizers import Encoding

_WINDOW = 384
_OVERLAP = 128


class Answer(NamedTuple):
    """A span of a context that answers the question.

    Attributes:
        text: The span; empty for "there is no answer".
        start: Its first token, counted in its row. A long context is read in several windows; each
            window is a row.
        end: Its last token.
        score: Probability of the start times that of the end; the sum over equal texts.
        start_char: Its first character in the context.
        end_char: The character after its last character.
    """

    text: str
    start: int
    end: int
    score: float
    start_char: int
    end_char: int


class AnswerOptions(TypedDict, total=False):
    """The allowed answers and the way contexts are read; every entry is optional.

    Attributes:
        handle_impossible_answer: Whether "there is no answer", an empty text, is an answer (default
            False). Its score is its lowest score in any window.
        max_answer_len: Maximum number of tokens of an answer (15).
        align_to_words: Widen answers to whole words (True).
        max_seq_len: Tokens of a window, with the question; None (default) for 384, or the limit of
            the model if that is less.
        doc_stride: Tokens by which windows overlap; None (default) for 128, or half a window if
            that is less.
    """

    handle_impossible_answer: bool
    max_answer_len: int
    align_to_words: bool
    max_seq_len: int | None
    doc_stride: int | None


class BatchAnswerOptions(AnswerOptions, BatchOptions, total=False):
    """The same for many questions; a window counts as one input of a batch."""


class _Window(NamedTuple):
    """The answers in one row.

    Attributes:
        pair: The number of its pair.
        answers: The answers.
        null_score: The score of the position that stands for no answer.
    """

    pair: int
    answers: list[Answer]
    null_score: float


class QuestionAnswerer(Head):
    """The span of an answer in a text: ``answer``, ``answer_batch``, ``compute_loss``."""

    kind = HeadKind.QA

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> QuestionAnsweringModelOutput | tuple[Any, ...]:
        """Run the model in its current mode, with gradients; ``head(**batch)`` calls this.

        Args:
            input_ids: As for the other heads; see :meth:`LabelledHead.forward`.
            attention_mask: As there.
            token_type_ids: As there.
            position_ids: As there.
            inputs_embeds: As there.
            start_positions: First token of each answer, ``[B]``; gives a loss with the next.
            end_positions: Last token of each answer, ``[B]``.
            output_hidden_states: As there.
            output_attentions: As there.
            return_dict: As there.
            **others: As there.

        Returns:
            The outputs.

        Raises:
            TypeError: There is no such argument.
            ValueError: There are neither ids nor vectors, or both, or positions do not fit.
        """
        arguments = self._arguments(
            (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds),
            hidden_states=output_hidden_states,
            attentions=output_attentions,
            others=others,
        )
        found = head_values(self._graph, self.config, arguments)
        logits, loss = found.output, None
        if start_positions is not None and end_positions is not None:
            loss = question_answering_loss(logits, start_positions, end_positions)
        output = QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=logits[..., 0].contiguous(),
            end_logits=logits[..., 1].contiguous(),
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return self._returned(output, return_dict)

    def compute_loss(self, enc: Batch, start_positions: Tensor, end_positions: Tensor) -> Tensor:
        """Run the model and compare with the answers.

        See :func:`~flodl.hf.losses.question_answering_loss`.

        The softmax goes over all positions of a row, with padding, as in ``transformers``. After
        ``set_unpad(head, True)`` padding has the logits that zeros give: that is faster, and the
        loss differs.
        """
        return question_answering_loss(self.forward_encoded(enc), start_positions, end_positions)

    @overload
    def answer(
        self,
        question: str,
        context: str,
        *,
        top_k: Literal[1] = 1,
        **options: Unpack[AnswerOptions],
    ) -> Answer: ...

    @overload
    def answer(
        self,
        question: str,
        context: str,
        *,
        top_k: int,
        **options: Unpack[AnswerOptions],
    ) -> Answer | list[Answer]: ...

    def answer(
        self,
        question: str,
        context: str,
        *,
        top_k: int = 1,
        **options: Unpack[AnswerOptions],
    ) -> Answer | list[Answer]:
        """Answer one question; see :meth:`answer_batch`.

        Returns:
            The best answer; a list of answers if ``top_k`` is above 1.
        """
        check_options(options, AnswerOptions, "answer")
        return self._answered("answer", [(question, context)], top_k, options, Batching())[0]

    @overload
    def answer_batch(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: Literal[1] = 1,
        **options: Unpack[BatchAnswerOptions],
    ) -> list[Answer]: ...

    @overload
    def answer_batch(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: int,
        **options: Unpack[BatchAnswerOptions],
    ) -> list[Answer] | list[list[Answer]]: ...

    def answer_batch(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: int = 1,
        **options: Unpack[BatchAnswerOptions],
    ) -> list[Answer] | list[list[Answer]]:
        """Answer questions, each from its own context.

        A context that does not fit is read in windows that overlap. Answers with the same text,
        ignoring case, are one answer, and their scores are added.

        Args:
            pairs: Question and context.
            top_k: Number of answers for each pair; there may be fewer.
            **options: See :class:`AnswerOptions` and :class:`BatchAnswerOptions`.

        Returns:
            For each pair, in order, its answer; a list, best first, if ``top_k`` is above 1.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A context has no token, a question leaves no space for its context, or an
                argument is invalid.
            TypeError: An entry is not two texts, or an option is unknown.
        """
        check_options(options, BatchAnswerOptions, "answer_batch")
        return self._answered("answer_batch", pairs, top_k, options, Batching.of(options))

    def _answered(
        self,
        method: str,
        pairs: Sequence[tuple[str, str]],
        top_k: int,
        options: AnswerOptions,
        batching: Batching,
    ) -> list[Answer] | list[list[Answer]]:
        longest = options.get("max_answer_len", 15)
        for name, value in (("top_k", top_k), ("max_answer_len", longest)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        aligned = options.get("align_to_words", True)
        # Some spans become equal when they are widened to words, so search for more.
        count = top_k * 2 + 10 if aligned else top_k
        encoding = _encoding(need_tokenizer(self, method), options)
        pairs = listed_pairs(pairs, method)

        def windows(part: Part) -> list[_Window]:
            logits = self.forward_encoded(part.batch, padding=False)
            rows = part.batch.encodings or ()
            context, null = _positions(rows)
            device = logits.device
            best = best_spans(logits, context.to(device), null.to(device), count, longest)
            found = []
            for pair, row, starts, ends, scores, null_score in zip(
                part.inputs, rows, *(one.tolist() for one in best), strict=True
            ):
                spans = zip(starts, ends, scores, strict=True)
                answers = _answers_in(row, pairs[pair][1], spans, aligned)
                if not answers:
                    raise ValueError(f"pair {pair} has no token of a context to find an answer in")
                found.append(_Window(pair, answers, null_score))
            return found

        read = answered(self, pairs, encoding, batching, windows)
        found = []
        for _, group in groupby(read, key=attrgetter("pair")):
            each = list(group)
            answers = _merged(each)
            if options.get("handle_impossible_answer", False):
                answers.append(Answer("", 0, 0, min(one.null_score for one in each), 0, 0))
            found.append(sorted(answers, key=lambda answer: -answer.score)[:top_k])
        return [answers[0] for answers in found] if top_k == 1 else found


def _encoding(tokenizer: PreTrainedTokenizerFast, options: AnswerOptions) -> TextEncoding:
    length = options.get("max_seq_len")
    if length is None:
        length = min(_WINDOW, tokenizer.limit or _WINDOW)
    overlap = options.get("doc_stride")
    if overlap is None:
        overlap = min(_OVERLAP, length // 2)
    return TextEncoding(tokenizer, "only_second", length, overlap)


def _answers_in(
    row: Encoding, context: str, spans: Iterable[tuple[int, int, float]], aligned: bool
) -> list[Answer]:
    """The answers of one row.

    Args:
        row: The row.
        context: The text with the answers.
        spans: First token, last token and score of each; one with a negative score does not count.
        aligned: Whether answers are widened to whole words.
    """
    offsets, found = row.offsets, []
    for start, end, score in spans:
        if score >= 0:
            first, last = _whole_words(row, start, end) if aligned else (start, end)
            begin, beyond = offsets[first][0], offsets[last][1]
            found.append(Answer(context[begin:beyond], first, last, score, begin, beyond))
    return found


def _merged(windows: Sequence[_Window]) -> list[Answer]:
    """The answers of all windows of one pair; those with the same text are one."""
    answers: dict[str, Answer] = {}
    for window in windows:
        for answer in window.answers:
            key = answer.text.lower()
            known = answers.get(key)
            score = answer.score + (known.score if known else 0.0)
            answers[key] = (known or answer)._replace(score=score)
    return list(answers.values())


# Score before the softmax of positions that cannot be part of an answer. They vanish; unlike with
# -inf, the result is a number even if there are no other positions.
_EXCLUDED = -10000.0


class Spans(NamedTuple):
    """The best spans of each row, best first.

    Attributes:
        starts: First token of each span ``[B, K]``.
        ends: Last token of each span ``[B, K]``.
        scores: Probability of the start times that of the end ``[B, K]``; negative if a row has
            fewer than K spans.
        null_scores: The same for the position that means "there is no answer" ``[B]``.
    """

    starts: Tensor
    ends: Tensor
    scores: Tensor
    null_scores: Tensor


def best_spans(logits: Tensor, context: Tensor, null: Tensor, count: int, longest: int) -> Spans:
    """Find the most probable spans.

    Start and end each have a distribution over the context and the null position. The probability
    of a span is that of its start times that of its end. Work and memory grow with ``S * longest``.

    Args:
        logits: Start and end, ``[B, S, 2]``.
        context: The positions that an answer can contain, boolean ``[B, S]``.
        null: The position that means no answer, boolean ``[B, S]``, at most one per row.
        count: Number of spans per row, K.
        longest: Maximum number of tokens of a span.
    """
    length = logits.shape[1]
    reach = min(longest, length)
    excluded = ~(context | null)[..., None]
    probabilities = logits.float().masked_fill(excluded, _EXCLUDED).softmax(dim=1)
    null_scores = probabilities.masked_fill(~null[..., None], 0.0).sum(dim=1).prod(dim=-1)
    # [B, S, reach]: one row per start, one column per number of tokens after it.
    ends = F.pad(probabilities[..., 1], (0, reach - 1)).unfold(1, reach, 1)
    inside = context[..., None] & F.pad(context, (0, reach - 1)).unfold(1, reach, 1)
    scores = (probabilities[..., :1] * ends).masked_fill(~inside, -1.0).flatten(1)
    best = scores.topk(min(count, scores.shape[1]), dim=1)
    starts = best.indices // reach
    # Entries that are not spans may end behind the row.
    ends_at = (starts + best.indices % reach).clamp(max=length - 1)
    return Spans(starts, ends_at, best.values, null_scores)


def _positions(rows: Sequence[Encoding]) -> tuple[Tensor, Tensor]:
    """The positions of answers: the tokens of the second text, and the first special token.

    Args:
        rows: Pairs of a question and a context.

    Returns:
        Context and null position, each boolean ``[B, S]``.
    """
    context = torch.tensor([[text == 1 for text in row.sequence_ids] for row in rows])
    attended = torch.tensor([row.attention_mask for row in rows])
    special = attended & torch.tensor([row.special_tokens_mask for row in rows])
    return context, (special == 1) & (special.cumsum(dim=1) == 1)


def _whole_words(row: Encoding, start: int, end: int) -> tuple[int, int]:
    """Widen a span of the second text to the words in which it begins and ends.

    It stays as it is if the tokenizer knows no word there.
    """
    first, last = row.token_to_word(start), row.token_to_word(end)
    if first is None or last is None:
        return start, end
    # Their words have tokens: these ones.
    words = [row.word_to_tokens(word, 1) or (start, end + 1) for word in (first, last)]
    return words[0][0], words[1][1] - 1
