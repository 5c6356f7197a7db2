"""Make training data of encoded texts: labels of tokens, and hidden tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.losses import IGNORED
from flodl.hf.text.encodings import Batch, mask_of, samples_of, token_fact
from flodl.hf.tokenizer import PreTrainedTokenizerFast

_USUAL_MASKS = ("[MASK]", "<mask>")


def align_labels(
    word_labels: Sequence[Sequence[int]], enc: Batch, all_pieces: bool = False
) -> Tensor:
    """Turn labels of words into labels of tokens, for ``token_classification_loss``.

    Words are those that the tokenizer found in the text, ``enc.word_ids(row)``. Many tokenizers
    also split at punctuation, so a text of the words ``["U.S.", "GDP"]`` can have more than two.

    Args:
        word_labels: For each input, the label of each of its words. Rows that are windows of one
            input (``overflow_to_sample_mapping``) share its labels. In pairs, the first text is
            labelled.
        enc: The encoded texts.
        all_pieces: Whether all pieces of a word get its label, or only the first piece.

    Returns:
        Labels ``[B, S]``, int64; -100, which does not count, for all positions without a label.

    Raises:
        ValueError: An input has no labels, or a text has more words than labels.
    """
    samples = samples_of(enc)
    if len(word_labels) <= max(samples, default=-1):
        raise ValueError(
            f"labels of {len(word_labels)} inputs were given for a batch with a row of input "
            f"{max(samples)} (from 0)"
        )
    words = token_fact(enc, "word_ids").masked_fill(token_fact(enc, "sequence_ids") != 0, -1)
    counts = [len(word_labels[sample]) for sample in samples]
    for row, (highest, count) in enumerate(zip(words.amax(dim=1).tolist(), counts, strict=True)):
        if highest >= count:
            raise ValueError(
                f"row {row} has a word number {highest} (from 0) and only {count} labels: label "
                "words as the tokenizer divides the text, which is often at punctuation too"
            )
    # The last column stays ignored, because word -1 indexes it.
    table = torch.full((len(samples), max(counts, default=0) + 1), IGNORED)
    for row, sample in enumerate(samples):
        table[row, : counts[row]] = torch.tensor(word_labels[sample], dtype=torch.int64)
    labels = table.to(words.device).gather(1, words % table.shape[1])
    if not all_pieces:
        labels[:, 1:][words[:, 1:] == words[:, :-1]] = IGNORED
    return labels


def mask_tokens(
    enc: Batch,
    tokenizer: PreTrainedTokenizerFast,
    p: float = 0.15,
    generator: torch.Generator | None = None,
) -> tuple[BatchEncoding, Tensor]:
    """Hide tokens for a model to find, as BERT was trained (Devlin et al. 2019, section 3.1).

    Each token is chosen with probability ``p``, but never special tokens or padding. Of the chosen
    tokens 80 % become the mask token, 10 % become a random token of the vocabulary, 10 % stay.

    Args:
        enc: Encoded texts; not changed.
        tokenizer: The tokenizer of these texts.
        p: Probability of each token, 0 … 1.
        generator: Source of the random numbers, on the device of ``enc``; None for torch's
            default generator.

    Returns:
        - The batch for the model, with tokens hidden (without offsets and words).
        - Labels ``[B, S]`` for ``masked_lm_loss``: the ids of the chosen tokens, -100 elsewhere.

    Raises:
        ValueError: ``p`` is not a probability, or the tokenizer has no mask token.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be a probability, 0 … 1, got {p}")
    ids: Tensor = enc["input_ids"]
    device, special = ids.device, token_fact(enc, "special_tokens_mask")
    mask_id = mask_id_of(tokenizer)
    framing = torch.tensor(_framing(tokenizer, mask_id), device=device)
    draws = torch.rand(ids.shape, generator=generator, device=device)
    chosen = (draws < p) & (special == 0) & ~torch.isin(ids, framing)
    fate = torch.rand(ids.shape, generator=generator, device=device)
    vocabulary = tokenizer.inner.get_vocab_size(with_added_tokens=True)
    others = torch.randint(vocabulary, ids.shape, generator=generator, device=device)
    hidden = ids.masked_fill(chosen & (fate < 0.8), mask_id)
    hidden = hidden.where(~(chosen & (fate >= 0.9)), others)
    masked = BatchEncoding(
        {**enc, "input_ids": hidden, "attention_mask": mask_of(enc), "special_tokens_mask": special}
    )
    return masked, ids.masked_fill(~chosen, IGNORED)


def _framing(tokenizer: PreTrainedTokenizerFast, mask_id: int) -> list[int]:
    """Ids of special tokens; batches made only from ids do not mark them."""
    known = (tokenizer.cls_token_id, tokenizer.sep_token_id, mask_id)
    return [number for number in known if number is not None]


def mask_id_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id of the mask token; if the files name none, one of the usual spellings.

    Raises:
        ValueError: There is no such token.
    """
    if tokenizer.mask_token_id is not None:
        return tokenizer.mask_token_id
    for token in _USUAL_MASKS:
        number = tokenizer.inner.token_to_id(token)
        if number is not None:
            return number
    raise ValueError(
        f"the tokenizer has no mask token: its files name none, and its vocabulary has neither "
        f"{' nor '.join(_USUAL_MASKS)}"
    )
