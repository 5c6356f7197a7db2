"""Extractive question answering: find the span of a text that answers a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, TypedDict, Unpack, overload

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import Tensor

from flodl.hf.batch_encoding import Batch, mask_of, token_fact
from flodl.hf.head_kind import HeadKind
from flodl.hf.losses import question_answering_loss
from flodl.hf.model_call import QuestionAnsweringModelOutput, head_values
from flodl.hf.predict.batching import (
    Batching,
    TextEncoding,
    encoded_batches,
    listed_pairs,
    need_tokenizer,
    running,
)
from flodl.hf.task_heads import Head
from flodl.hf.text.call_options import check_options
from flodl.hf.tokenizer import PreTrainedTokenizerFast

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
        search = _Search.of(top_k, options)
        encoding = _encoding(need_tokenizer(self, "answer"), options)
        pairs = listed_pairs([(question, context)], "answer")
        return search.shown(_answers(self, pairs, encoding, search, Batching()))[0]

    @overload
    def answer_batch(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: Literal[1] = 1,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
        **options: Unpack[AnswerOptions],
    ) -> list[Answer]: ...

    @overload
    def answer_batch(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: int,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
        **options: Unpack[AnswerOptions],
    ) -> list[Answer] | list[list[Answer]]: ...

    def answer_batch(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: int = 1,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
        **options: Unpack[AnswerOptions],
    ) -> list[Answer] | list[list[Answer]]:
        """Answer questions, each from its own context.

        A context that does not fit is read in windows that overlap. Answers with the same text,
        ignoring case, are one answer, and their scores are added.

        Args:
            pairs: Question and context.
            top_k: Number of answers for each pair; there may be fewer.
            batch_size: See :class:`Batching`; a window counts as one input.
            max_tokens: See :class:`Batching`.
            bucket: See :class:`Batching`.
            **options: See :class:`AnswerOptions`.

        Returns:
            For each pair, in order, its answer; a list, best first, if ``top_k`` is above 1.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A context has no token, a question leaves no space for its context, or an
                argument is invalid.
            TypeError: An entry is not two texts, or an option is unknown.
        """
        check_options(options, AnswerOptions, "answer_batch")
        search = _Search.of(top_k, options)
        encoding = _encoding(need_tokenizer(self, "answer_batch"), options)
        pairs = listed_pairs(pairs, "answer_batch")
        batching = Batching(batch_size, max_tokens, bucket)
        return search.shown(_answers(self, pairs, encoding, search, batching))


class _Window(NamedTuple):
    """The answers in one row."""

    answers: list[Answer]
    null_score: float


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for answers; the attributes are those of :class:`AnswerOptions`."""

    top_k: int
    max_answer_len: int
    handle_impossible_answer: bool
    align_to_words: bool

    def __post_init__(self) -> None:
        for name, value in (("top_k", self.top_k), ("max_answer_len", self.max_answer_len)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @classmethod
    def of(cls, top_k: int, options: AnswerOptions) -> Self:
        """The search for the options of a call."""
        return cls(
            top_k,
            options.get("max_answer_len", 15),
            options.get("handle_impossible_answer", False),
            options.get("align_to_words", True),
        )

    def windows(
        self, enc: Batch, logits: Tensor, pairs: Sequence[int], contexts: Sequence[str]
    ) -> list[_Window]:
        """The best answers of each row.

        Args:
            enc: The rows.
            logits: Start and end, ``[B, S, 2]``.
            pairs: The number of the pair of each row.
            contexts: The context of each pair.

        Raises:
            ValueError: A row has no context.
        """
        context, null = answer_positions(enc)
        for pair, has_context in zip(pairs, context.any(dim=1).tolist(), strict=True):
            if not has_context:
                raise ValueError(f"pair {pair} has no token of a context to find an answer in")
        # Some spans become equal when they are widened to words, so search for more.
        count = self.top_k * 2 + 10 if self.align_to_words else self.top_k
        device = logits.device
        best = best_spans(logits, context.to(device), null.to(device), count, self.max_answer_len)
        first, beyond = token_fact(enc, "offsets").unbind(dim=-1)
        spans = Spans(*(tensor.to(first.device) for tensor in best))
        if self.align_to_words:
            spans = whole_words(enc, spans)
        columns = zip(
            spans.starts.tolist(),
            spans.ends.tolist(),
            spans.scores.tolist(),
            first.gather(1, spans.starts).tolist(),
            beyond.gather(1, spans.ends).tolist(),
            strict=True,
        )
        windows = []
        for pair, fields, null_score in zip(
            pairs, columns, spans.null_scores.tolist(), strict=True
        ):
            found = [Answer("", *answer) for answer in zip(*fields, strict=True)]
            passage = contexts[pair]
            answers = [
                one._replace(text=passage[one.start_char : one.end_char])
                for one in found
                if one.score >= 0
            ]
            windows.append(_Window(answers, null_score))
        return windows

    def merged(self, windows: Sequence[_Window]) -> list[Answer]:
        """The best answers of all windows of one pair."""
        answers: dict[str, Answer] = {}
        for window in windows:
            for answer in window.answers:
                key = answer.text.lower()
                known = answers.get(key)
                score = answer.score + (known.score if known else 0.0)
                answers[key] = (known or answer)._replace(score=score)
        ranked = list(answers.values())
        if self.handle_impossible_answer:
            least = min(window.null_score for window in windows)
            ranked.append(Answer("", 0, 0, least, 0, 0))
        return sorted(ranked, key=lambda answer: -answer.score)[: self.top_k]

    def shown(self, answers: list[list[Answer]]) -> list[Answer] | list[list[Answer]]:
        """One answer per pair if only one was requested, else the lists."""
        return [found[0] for found in answers] if self.top_k == 1 else answers


def _answers(
    head: QuestionAnswerer,
    pairs: Sequence[tuple[str, str]],
    encoding: TextEncoding,
    search: _Search,
    batching: Batching,
) -> list[list[Answer]]:
    contexts = [context for _, context in pairs]
    # Sorted by row, not by arrival: of equal answers, the one in the first window stays.
    windows: list[dict[int, _Window]] = [{} for _ in pairs]
    with running(head._graph) as device:
        for inputs, rows, batch in encoded_batches(pairs, encoding, batching.on(device)):
            logits = head.forward_encoded(batch, padding=False)
            found = search.windows(batch, logits, inputs, contexts)
            for pair, row, window in zip(inputs, rows, found, strict=True):
                windows[pair][row] = window
    return [search.merged([rows[row] for row in sorted(rows)]) for rows in windows]


def _encoding(tokenizer: PreTrainedTokenizerFast, options: AnswerOptions) -> TextEncoding:
    length = options.get("max_seq_len")
    if length is None:
        length = min(_WINDOW, tokenizer.limit or _WINDOW)
    overlap = options.get("doc_stride")
    if overlap is None:
        overlap = min(_OVERLAP, length // 2)
    return TextEncoding(tokenizer, "only_second", length, overlap)


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


def answer_positions(enc: Batch) -> tuple[Tensor, Tensor]:
    """The positions of answers: the tokens of the second text, and the first special token.

    Args:
        enc: Pairs of a question and a context.

    Returns:
        Context and null position, each boolean ``[B, S]``.
    """
    attended = mask_of(enc) != 0
    special = attended & (token_fact(enc, "special_tokens_mask") != 0)
    first = special & (special.cumsum(dim=1) == 1)
    return attended & (token_fact(enc, "sequence_ids") == 1), first


def whole_words(enc: Batch, spans: Spans) -> Spans:
    """Widen spans to the words in which they begin and end.

    A span stays as it is if the tokenizer knows no word there.

    Args:
        enc: The rows.
        spans: Their spans.
    """
    words, texts = token_fact(enc, "word_ids"), token_fact(enc, "sequence_ids")
    same = (words[:, 1:] == words[:, :-1]) & (texts[:, 1:] == texts[:, :-1])
    parted = F.pad(~same, (1, 1), value=True)
    columns = torch.arange(words.shape[1], device=words.device).expand_as(words)
    # The last start of a word at or before each token, and the next end at or after it.
    first = columns.where(parted[:, :-1], columns.new_zeros(())).cummax(dim=1).values
    beyond = columns.new_full((), words.shape[1])
    last = columns.where(parted[:, 1:], beyond).flip(1).cummin(dim=1).values.flip(1)
    known = (words.gather(1, spans.starts) >= 0) & (words.gather(1, spans.ends) >= 0)
    return spans._replace(
        starts=first.gather(1, spans.starts).where(known, spans.starts),
        ends=last.gather(1, spans.ends).where(known, spans.ends),
    )
