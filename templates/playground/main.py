"""Try models of the Hugging Face Hub: `fdl flodl-hf`. Change this file as you like."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from fdl import FdlArgs, arg, option
from flodl import Trainer, entry
from flodl.hf import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    HeadKind,
    SentenceTransformer,
)
from flodl.hf.ready import ready_source

TEXTS = (
    "The new build is twice as fast, and I love it.",
    "It crashed again, and my work of today is gone.",
    "The meeting has moved to three o'clock.",
)
NAMES = (
    "Ada Lovelace met Charles Babbage in London.",
    "The Louvre in Paris shows works of Leonardo da Vinci.",
)
CONTEXT = "The lighthouse of Alexandria was built in the third century BC, on the island of Pharos."
QUESTIONS = ("Where was the lighthouse built?", "When was it built?")

REVIEWS = (
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

MODELS = {
    "classify": "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
    "ner": "dslim/bert-base-NER",
    "qa": "deepset/roberta-base-squad2",
    "fill-mask": "google-bert/bert-base-uncased",
    "encode": "sentence-transformers/all-MiniLM-L6-v2",
    "finetune": "distilbert/distilbert-base-uncased",
}
HEADS = {
    "classify": HeadKind.SEQCLS,
    "ner": HeadKind.TOKCLS,
    "qa": HeadKind.QA,
    "fill-mask": HeadKind.MLM,
    "encode": HeadKind.BASE,
    "finetune": HeadKind.BASE,
}


class Args(FdlArgs):
    """Run a model of the Hub over a few texts, or fine-tune one."""

    model: str | None = arg(
        help="Repository (owner/name) or folder, instead of the default one; tiny: random weights"
    )
    task: Literal["classify", "ner", "qa", "fill-mask", "encode", "finetune"] = option(
        default="classify"
    )
    usual: str = option(default="", help="Default model [default: that of the task]")


def classify(source: str) -> None:
    """The best three labels of every text."""
    model = AutoModelForSequenceClassification.from_pretrained(source)
    for text, scores in zip(TEXTS, model.predict(TEXTS), strict=True):
        (label, score), *others = scores[:3]
        print(f"{text}\n  {label} {score:.1%}")
        if others:
            print("  then " + ", ".join(f"{label} {score:.1%}" for label, score in others))


def ner(source: str) -> None:
    """The names in every text: people, places, organisations."""
    model = AutoModelForTokenClassification.from_pretrained(source)
    for text, found in zip(NAMES, model.predict(NAMES, aggregation="simple"), strict=True):
        print(text)
        for one in found:
            print(f"  {one.label} {one.score:.1%}  {text[one.start : one.end]}")


def qa(source: str) -> None:
    """The part of a text that answers each question."""
    model = AutoModelForQuestionAnswering.from_pretrained(source)
    print(CONTEXT)
    for question in QUESTIONS:
        answer = model.answer(question, CONTEXT)
        print(f"{question}\n  {answer.text} ({answer.score:.1%})")


def fill_mask(source: str) -> None:
    """The words that fit best into a gap."""
    model = AutoModelForMaskedLM.from_pretrained(source)
    mask = model.tokenizer.mask_token if model.tokenizer else "[MASK]"
    text = f"The ship sailed across the {mask}."
    print(text)
    for candidates in model.fill_mask(text, top_k=5):
        for one in candidates:
            print(f"  {one.score:.1%}  {one.token}")


def encode(source: str) -> None:
    """How similar the texts are: the cosines of their vectors."""
    vectors = SentenceTransformer(source).encode(TEXTS, normalize_embeddings=True)
    for text, row in zip(TEXTS, (vectors @ vectors.T).tolist(), strict=True):
        print("  ".join(f"{cosine:6.3f}" for cosine in row), f" {text}")


def finetune(source: str) -> None:
    """Fine-tune a classifier on ten sentences, and save it in the folder finetuned/."""
    model = AutoModelForSequenceClassification.from_pretrained(
        source, id2label=["negative", "positive"], head_init="replace", seed=0
    )
    if model.tokenizer is None:
        sys.exit(f"{source} has no tokenizer, so texts cannot be encoded")
    torch.manual_seed(0)
    batch = model.tokenizer([text for text, _ in REVIEWS], padding=True, return_tensors="pt")
    labels = torch.tensor([label for _, label in REVIEWS])
    chosen = list(model.parameters())
    setup = Trainer.setup_head(model, None, lambda _: torch.optim.Adam(chosen, lr=5e-5))
    for step in range(1, 6):
        loss = model.compute_loss(batch.to(setup.device), labels.to(setup.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(chosen, 1.0)
        model.graph.step()
        print(f"step {step}: loss {loss.item():.4f}")
    model.eval()
    best = model.predict(["I was pleasantly surprised."])[0][0]
    print(f"after: 'I was pleasantly surprised.' is {best.label} ({best.score:.3f})")
    out = Path(__file__).resolve().parent / "finetuned"
    out.mkdir(exist_ok=True)
    model.graph.save_checkpoint(out / "model.fdl")
    model.tokenizer.save(out / "tokenizer.json")
    checks = "--no-hub-source" if find_spec("transformers") else "--structural"
    print(f"saved {out / 'model.fdl'}; export and check it with")
    print(f"    fdl flodl-hf export --checkpoint {out / 'model.fdl'} --out {out / 'export'}")
    print(f"    fdl flodl-hf verify-export {out / 'export'} {checks}")


TASKS = {
    "classify": classify,
    "ner": ner,
    "qa": qa,
    "fill-mask": fill_mask,
    "encode": encode,
    "finetune": finetune,
}


def main(args: Args) -> None:
    """Get the model, and run the task."""
    TASKS[args.task](
        ready_source(
            args.model or args.usual or MODELS[args.task],
            HEADS[args.task],
            again=f"fdl flodl-hf {args.task} -- tiny",
            words=(*TEXTS, *NAMES, CONTEXT, *QUESTIONS),
        )
    )


if __name__ == "__main__":
    sys.exit(entry(main, Args.parse_or_schema()))
