"""A server of several threads over one model: requests per second, and whether answers are equal.

    python -m benchmarks.huggingface.serving CHECKPOINT REQUESTS ROUNDS

prints one JSON object: way -> the seconds of each round, and how its answers differ from those of
one thread. Each way answers the same requests of one text each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.huggingface import material
from benchmarks.measure import in_turns, seconds_of

THREADS = 8
ALONE, OURS = "flodl, one thread", f"flodl, {THREADS} threads"
THEIRS_ALONE = "transformers, one thread"
LOCKED = f"transformers, {THREADS} threads and a lock"
FREE = f"transformers, {THREADS} threads, no lock"
WAYS = {
    ALONE: ALONE,
    OURS: ALONE,
    THEIRS_ALONE: THEIRS_ALONE,
    LOCKED: THEIRS_ALONE,
    FREE: THEIRS_ALONE,
}
"""Way -> the way of one thread whose answers it must give."""

Answer = list[float]
"""The scores of all classes for one text."""
Answering = Callable[[str], Answer]


def ours(folder: Path) -> Answering:
    """Classify one text with flodl."""
    from flodl.hf import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    labels = model.labels

    def answer(text: str) -> Answer:
        scores = {found.label: found.score for found in model.predict([text])[0]}
        return [scores[label] for label in labels]

    return answer


def theirs(folder: Path) -> Answering:
    """Classify one text with transformers, without padding."""
    from transformers import AutoTokenizer, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = BertForSequenceClassification.from_pretrained(folder).eval()

    def answer(text: str) -> Answer:
        with torch.inference_mode():
            logits = model(**tokenizer([text], return_tensors="pt")).logits
        scores: Answer = logits.softmax(-1)[0].tolist()
        return scores

    return answer


def locked(answer: Answering) -> Answering:
    """The same behind a lock, as for a model that must not be used by two threads at a time."""
    lock = threading.Lock()

    def one_at_a_time(text: str) -> Answer:
        with lock:
            return answer(text)

    return one_at_a_time


def served(folder: Path, requests: int, rounds: int) -> dict[str, Any]:
    """Answer all requests in every way, in turns.

    Args:
        folder: The checkpoint.
        requests: Texts of 5 to 64 tokens.
        rounds: How often.

    Returns:
        ``seconds``: way -> those of each round. ``unequal``: way -> answers that are not equal to
        the bit to those of one thread, in all rounds. ``difference``: way -> the largest
        difference of a score.
    """
    texts = material.sentences(requests, 5, 64)
    mine, other = ours(folder), theirs(folder)
    answering = {ALONE: mine, OURS: mine, THEIRS_ALONE: other, LOCKED: locked(other), FREE: other}
    expected = {name: [answering[name](text) for text in texts] for name in (ALONE, THEIRS_ALONE)}
    unequal = dict.fromkeys(WAYS, 0)
    difference = dict.fromkeys(WAYS, 0.0)
    answers: list[Answer] = []
    with ThreadPoolExecutor(THREADS) as pool:

        def measure(name: str) -> float:
            run: Callable[..., Any] = map if WAYS[name] == name else pool.map
            taken = seconds_of(lambda: answers.extend(run(answering[name], texts)))
            for found, alone in zip(answers, expected[WAYS[name]], strict=True):
                unequal[name] += found != alone
                difference[name] = max(
                    difference[name],
                    *(abs(one - two) for one, two in zip(found, alone, strict=True)),
                )
            answers.clear()
            return taken

        seconds = in_turns(list(WAYS), measure, rounds)
    return {"seconds": seconds, "unequal": unequal, "difference": difference, "amount": requests}


def measured(folder: Path, requests: int, rounds: int, threads: int) -> Mapping[str, Any]:
    """The ways in a process of its own, with a number of threads for each operation of torch."""
    words: Sequence[object] = ["benchmarks.huggingface.serving", folder, requests, rounds, threads]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"serving failed:\n{done.stderr}")
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[4]))
    found = served(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps(found) + "\n")
