"""Fine-tune a classifier on ten sentences: all weights, or adapters only."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from flodl.hf.families import AutoModelForSequenceClassification
from flodl.hf.lora import add_lora, merge_lora
from flodl.hf.lora_files import save_lora
from flodl.hf.predict.text import need_tokenizer
from flodl.hf.task_heads import SequenceClassifier
from flodl.nn import clip_grad_norm
from flodl.trainer import Trainer

LABELS = ("negative", "positive")
SENTENCES = (
    ("I would read it again at once.", 1),
    ("Two hours of my life that nobody gives back.", 0),
    ("The kindest staff I have ever met.", 1),
    ("It broke on the second day.", 0),
    ("Everything worked as promised.", 1),
    ("The soup was cold and so was the waiter.", 0),
    ("A joy from the first page to the last.", 1),
    ("They never answered my letter.", 0),
    ("Light, quiet and quick.", 1),
    ("I cannot recommend it to anybody.", 0),
)
PROBE = "I was pleasantly surprised."

_STEPS = 5
_RATE, _ADAPTER_RATE = 5e-5, 1e-3
_MOST_NORM = 1.0
_ADAPTED = {
    "distilbert": ("q_lin", "v_lin"),
    "deberta-v2": ("query_proj", "value_proj"),
    "modernbert": ("Wqkv",),
}


def full(src: str, out: Path) -> None:
    """Train all weights, save a checkpoint, and print how to export it.

    Args:
        src: Repository or directory of an encoder, with or without a head.
        out: Folder for ``model.fdl``, its configuration and the tokenizer.
    """
    model = _opened(src)
    _train(model, model.graph.parameters(), _RATE)
    out.mkdir(parents=True, exist_ok=True)
    model.graph.save_checkpoint(out / "model.fdl")
    need_tokenizer(model, "save").save(out / "tokenizer.json")
    _say(f"saved {out / 'model.fdl'}; export and check it with")
    _say(f"    fdl flodl-hf export --checkpoint {out / 'model.fdl'} --out {out / 'export'}")
    _say(f"    fdl flodl-hf verify-export {out / 'export'} {_checks()}")


def lora(src: str, out: Path) -> None:
    """Train small changes to the attention and the head, save them, and merge them.

    Args:
        src: Repository or directory of an encoder, with or without a head.
        out: Folder for the adapters, as files that PEFT reads.
    """
    model = _opened(src)
    paths = _ADAPTED.get(model.config.model_type, ("query", "value"))
    adapted = add_lora(model.graph, paths, r=8, alpha=16)
    trained = model.graph.trainable_parameters()
    share = sum(one.numel() for one in trained) / sum(
        one.numel() for one in model.graph.parameters()
    )
    _say(f"{len(adapted)} layers adapted, {share:.1%} of the weights are trained")
    _train(model, trained, _ADAPTER_RATE)
    save_lora(model.graph, out, base_model=src)
    merge_lora(model.graph)
    _probe(model, "merged")
    _say(f"saved the adapters to {out}")


def _checks() -> str:
    """The flag for the checks that can run here: with ``transformers`` or without it."""
    return "--no-hub-source" if find_spec("transformers") else "--structural"


def _opened(src: str) -> SequenceClassifier:
    return AutoModelForSequenceClassification.from_pretrained(
        src, id2label=list(LABELS), head_init="replace", seed=0
    )


def _train(model: SequenceClassifier, parameters: Iterable[nn.Parameter], rate: float) -> None:
    """Train five steps on all ten sentences at once."""
    chosen = list(parameters)
    torch.manual_seed(0)
    texts = [text for text, _ in SENTENCES]
    enc = need_tokenizer(model, "encode").encode(texts)
    labels = torch.tensor([label for _, label in SENTENCES])
    _probe(model, "before")
    setup = Trainer.setup_head(model, None, lambda _: torch.optim.Adam(chosen, lr=rate))
    for step in range(1, _STEPS + 1):
        loss = model.compute_loss(enc.to(setup.device), labels.to(setup.device))
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm(chosen, _MOST_NORM)
        model.graph.step()
        _say(f"step {step}: loss {loss.item():.4f}")
    model.graph.eval()
    _probe(model, "after")


def _probe(model: SequenceClassifier, when: str) -> None:
    best = model.predict([PROBE])[0][0]
    _say(f"{when}: {PROBE!r} is {best.label} ({best.score:.3f})")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
