"""One training for :mod:`benchmarks.plan_memory`, which is only rehearsed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.ten_models_networks import Benchmark, Pair, networks, next_token, tokens
from flodl import TensorDataSet, Trainer
from flodl.ddp_bench.models.text import CHARACTERS, WINDOW, GptNano
from flodl.hf import AutoConfig, AutoModelForSequenceClassification

BATCHES = 3
_WORDS, _LABELS = 30_522, 2
_BERT = {
    "model_type": "bert", "vocab_size": _WORDS, "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 512,
    "type_vocab_size": 2,
}  # fmt: skip
"""The settings of bert-base."""


class Classifier(nn.Module):
    """A BERT with newly drawn values: tokens ``[B, T]`` to logits ``[B, 2]``."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        settings = {**_BERT, **sizes}
        config = AutoConfig.from_json_str(json.dumps(settings))
        self.model = AutoModelForSequenceClassification.from_config(config)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        logits: Tensor = self.model(input_ids=x).logits
        return logits


def labelled(texts: int, length: int, generator: torch.Generator) -> Pair:
    """Tokens ``[B, T]`` and a class for each text."""
    x, _ = tokens((texts, length), _WORDS, generator)
    return x, torch.randint(_LABELS, (texts,), generator=generator)


def classified(model: nn.Module, batch: Iterable[Tensor]) -> Tensor:
    """Cross-entropy over the classes."""
    x, y = batch
    return cross_entropy(model(x), y)


def benchmarks(*, small: bool = False) -> dict[str, Benchmark]:
    """The ten networks, a GPT and a BERT, by name."""
    width, depth, texts = (16, 1, 2) if small else (384, 6, 32)
    sizes = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2} if small else {}
    more = (
        Benchmark(
            name="gpt, 10.7 million",
            network=partial(GptNano, width, depth, 4 if small else 6),
            draw=partial(tokens, (texts, WINDOW), CHARACTERS),
            loss=next_token,
        ),
        Benchmark(
            name="bert-base",
            network=partial(Classifier, **sizes),
            draw=partial(labelled, texts // 2, WINDOW),
            loss=classified,
        ),
    )
    return {**networks(small=small), **{one.name: one for one in more}}


NAMES = tuple(benchmarks(small=True))


def main(name: str, small: str = "") -> None:
    """Describe the training and run it, which rehearses it."""
    subject = benchmarks(small=bool(small))[name]
    drawn = subject.data(BATCHES)
    x, y = (torch.cat([pair[part] for pair in drawn]) for part in (0, 1))
    trainer = Trainer.builder(
        lambda device: subject.build().to(device),
        lambda parameters: torch.optim.Adam(parameters, lr=subject.lr),
        subject.loss,
    )
    trainer.dataset(TensorDataSet(x, y)).batch_size(len(drawn[0][0])).num_epochs(1).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
