"""Run the five heads on a few sentences."""

from __future__ import annotations

import sys
from collections.abc import Callable

from flodl.hf.config_json import EncoderConfig
from flodl.hf.embed import TextEncoder
from flodl.hf.families import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from flodl.hf.predict.text import need_tokenizer

SENTENCES = (
    "What a wonderful day to learn something new.",
    "The train was late again, and nobody said why.",
    "The meeting has been moved to Thursday.",
)
PEOPLE = "Ada Lovelace was born in London and worked with Charles Babbage."
QUESTION = "Where was Ada Lovelace born?"
GAP = "Paris is the {mask} of France."

_SHOWN = 3


def embed(src: str, family: str | None) -> None:
    """Print how similar the sentences are, by the cosine of their vectors."""
    model = TextEncoder.from_pretrained(src)
    _check(model.config, family)
    vectors = model.encode(list(SENTENCES), normalize=True)
    alike = vectors @ vectors.T
    for row, sentence in enumerate(SENTENCES):
        cosines = "  ".join(f"{value:6.3f}" for value in alike[row].tolist())
        _say(f"{cosines}  {sentence}")


def classify(src: str, family: str | None) -> None:
    """Print the most likely labels of each sentence."""
    model = AutoModelForSequenceClassification.from_pretrained(src)
    _check(model.config, family)
    found = model.predict(list(SENTENCES), top_k=_SHOWN)
    for sentence, labels in zip(SENTENCES, found, strict=True):
        told = ", ".join(f"{one.label} {one.score:.3f}" for one in labels)
        _say(f"{sentence}\n    {told}")


def ner(src: str, family: str | None) -> None:
    """Print the entities of a sentence."""
    model = AutoModelForTokenClassification.from_pretrained(src)
    _check(model.config, family)
    _say(PEOPLE)
    for entity in model.predict([PEOPLE], aggregation="simple")[0]:
        _say(f"    {entity.label:<8}{entity.text} ({entity.score:.3f})")


def qa(src: str, family: str | None) -> None:
    """Print the answer to a question about a sentence."""
    model = AutoModelForQuestionAnswering.from_pretrained(src)
    _check(model.config, family)
    answer = model.answer(QUESTION, PEOPLE)
    _say(f"{PEOPLE}\n{QUESTION}\n    {answer.text} ({answer.score:.3f})")


def fill_mask(src: str, family: str | None) -> None:
    """Print the best tokens for the gap of a sentence."""
    model = AutoModelForMaskedLM.from_pretrained(src)
    _check(model.config, family)
    mask = need_tokenizer(model, "fill_mask").mask_token or "[MASK]"
    for gap in model.fill_mask(GAP.format(mask=mask), top_k=_SHOWN):
        for one in gap:
            _say(f"    {one.score:.3f}  {one.sequence}")


TASKS: dict[str, Callable[[str, str | None], None]] = {
    "embed": embed,
    "classify": classify,
    "ner": ner,
    "qa": qa,
    "fill-mask": fill_mask,
}
"""Name -> a function of a repository or directory, and the family it needs, or None."""


def _check(config: EncoderConfig, family: str | None) -> None:
    if family is not None and config.model_type != family:
        raise ValueError(
            f"the model is of the family {config.model_type}, and the example is for {family}"
        )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
