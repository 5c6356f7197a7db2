"""Predict one label per token, and entities from these: names, places, parts of speech."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, overload

from torch import Tensor

from flodl.hf.encoded import EncodedBatch
from flodl.hf.predict.batching import Batching, encoded_batches, running
from flodl.hf.predict.entities import AGGREGATIONS, Entity, WordRule, entities_of
from flodl.hf.predict.head import EncoderHead
from flodl.hf.predict.text import TextEncoding, listed_texts, need_tokenizer
from flodl.hf.tokenizer import HfTokenizer, TruncationChoice

Aggregation: TypeAlias = Literal["simple", "first", "average", "max"]
"""How pieces of words become entities; see :meth:`TokenPrediction.predict`."""


class TokenPrediction(NamedTuple):
    """The prediction for one position of the input.

    Attributes:
        token: The piece, as spelled in the vocabulary.
        label: Name of the most likely label.
        score: Its probability.
        attends: Whether the model read the token; False for padding.
        start: First character of the text that it covers.
        end: The character after the last one; equal to ``start`` if it covers none.
        word_id: Number of its word, as the tokenizer splits the text; None if there is none.
        special: Whether the tokenizer added it: a special token or padding.
    """

    token: str
    label: str
    score: float
    attends: bool
    start: int
    end: int
    word_id: int | None
    special: bool


class TokenTagging:
    """Prediction for a head that gives one label per token."""

    @overload
    def predict(
        self: EncoderHead,
        texts: Sequence[str],
        *,
        aggregation: None = None,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> list[list[TokenPrediction]]: ...

    @overload
    def predict(
        self: EncoderHead,
        texts: Sequence[str],
        *,
        aggregation: Aggregation,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> list[list[Entity]]: ...

    def predict(
        self: EncoderHead,
        texts: Sequence[str],
        *,
        aggregation: Aggregation | None = None,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        batch_size: int | None = 32,
        max_tokens: int | None = None,
        bucket: bool = True,
    ) -> list[list[TokenPrediction]] | list[list[Entity]]:
        """Label every token of every text, or find the entities in it.

        With ``"first"``, ``"average"`` or ``"max"`` every word gets one label:

        - ``"first"``: that of its first piece;
        - ``"average"``: that of the mean over its pieces;
        - ``"max"``: that of the piece with the highest probability.

        With ``"simple"`` every piece keeps its label. Adjacent words or pieces with the same label
        are then merged, unless the later one begins an entity (``B-``). The label ``O`` is left
        out. Some tokenizers mark the pieces that continue a word; otherwise spaces separate words.

        Args:
            texts: The texts.
            aggregation: As above; None for the labels of the tokens.
            truncation: Whether texts that are too long are cut; otherwise they raise an error.
            max_length: Tokens to cut to; None for the limit of the model.
            batch_size: See :class:`Batching`.
            max_tokens: See :class:`Batching`.
            bucket: See :class:`Batching`.

        Returns:
            For each text, in order, one prediction per position of its row, with special tokens and
            padding; or its entities from left to right.

        Raises:
            TokenizerMissingError: The model has no tokenizer.
            ValueError: A text is too long, or an argument is invalid.
            TypeError: ``texts`` is a single string, or an entry is not a text.
        """
        texts = listed_texts(texts, "predict")
        if aggregation is not None and aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation {aggregation!r} is none of {', '.join(AGGREGATIONS)}")
        tokenizer = need_tokenizer(self, "predict")
        encoding = TextEncoding(tokenizer, truncation, max_length)
        words = WordRule.of(tokenizer)
        tagged: list[list[TokenPrediction]] = [[] for _ in texts]
        entities: list[list[Entity]] = [[] for _ in texts]
        with running(self.graph, len(texts)) as device:
            batching = Batching(batch_size, max_tokens, bucket)
            for rows, _, batch in encoded_batches(texts, encoding, batching.on(device)):
                probabilities = self.forward_encoded(batch.to(device)).float().softmax(dim=-1).cpu()
                if aggregation is None:
                    found = _tagged(batch, probabilities, self.labels, tokenizer)
                    for row, predictions in zip(rows, found, strict=True):
                        tagged[row] = predictions
                    continue
                for index, row in enumerate(rows):
                    pieces = words.pieces(batch, index, texts[row])
                    chosen = probabilities[index, pieces.columns]
                    entities[row] = entities_of(
                        pieces, chosen, self.labels, aggregation, texts[row]
                    )
        return tagged if aggregation is None else entities

    def tag(self: EncoderHead, enc: EncodedBatch) -> list[list[TokenPrediction]]:
        """Label every token of texts that are encoded already, all in one batch.

        Args:
            enc: Encoded texts.

        Returns:
            For each row, one prediction per position, with special tokens and padding.

        Raises:
            TokenizerMissingError: The model has no tokenizer, which names the tokens.
        """
        tokenizer = need_tokenizer(self, "tag")
        with running(self.graph) as device:
            probabilities = self.forward_encoded(enc.to(device)).float().softmax(dim=-1)
            return _tagged(enc, probabilities, self.labels, tokenizer)


def _tagged(
    enc: EncodedBatch, probabilities: Tensor, labels: Sequence[str], tokenizer: HfTokenizer
) -> list[list[TokenPrediction]]:
    best = probabilities.max(dim=-1)
    spelled = tokenizer.inner.id_to_token
    columns = zip(
        enc.input_ids.tolist(),
        best.indices.tolist(),
        best.values.tolist(),
        enc.attention_mask.tolist(),
        enc.offsets.tolist(),
        enc.word_ids.tolist(),
        enc.special_mask.tolist(),
        strict=True,
    )
    return [
        [
            TokenPrediction(
                spelled(token) or "",
                labels[label],
                score,
                bool(attends),
                start,
                end,
                None if word < 0 else word,
                bool(special),
            )
            for token, label, score, attends, (start, end), word, special in zip(*row, strict=True)
        ]
        for row in columns
    ]
