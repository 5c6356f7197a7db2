"""Whole processes: from the start of Python to the first answer.

    python -m benchmarks.huggingface.cold SUBJECT CHECKPOINT

prints one JSON object: what the subject answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTS = {
    "torch": ["-c", "import torch"],
    "torch, flodl.hf": ["-c", "import torch, flodl.hf"],
    "torch, flodl.hf and a class of it": [
        "-c",
        "import torch; from flodl.hf import AutoModelForSequenceClassification",
    ],
    "torch, transformers and a class of it": [
        "-c",
        "import torch; from transformers import AutoModelForSequenceClassification",
    ],
}

TEXT = "a question that one process asks and then ends"


def flodl(folder: str) -> list[float]:
    """What a program writes that uses flodl."""
    from flodl.hf import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder)
    scores = {found.label: found.score for found in model.predict([TEXT])[0]}
    return [scores[label] for label in model.labels]


def transformers(folder: str) -> list[float]:
    """What a program writes that uses transformers."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        logits = model(**tokenizer([TEXT], return_tensors="pt")).logits
    answers: list[float] = logits.softmax(-1)[0].tolist()
    return answers


def floor(folder: str) -> list[float]:
    """The least there is to do: map the weights, load the tokenizer, multiply."""
    import torch
    from safetensors import safe_open
    from tokenizers import Tokenizer

    weights = {}
    with safe_open(f"{folder}/model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - the file is no mapping
            weights[name] = file.get_tensor(name)
    encoded = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(TEXT)
    ids, types = torch.tensor([encoded.ids]), torch.tensor([encoded.type_ids])
    with torch.inference_mode():
        logits = multiplied(weights, ids, types)
    answers: list[float] = logits.softmax(-1)[0].tolist()
    return answers


def multiplied(weights: Mapping[str, Any], ids: Any, types: Any) -> Any:
    """The logits of a BERT classifier of 12 layers and heads, in functions of torch.

    Args:
        weights: By the names in the file.
        ids: ``[B, S]``, without padding.
        types: ``[B, S]``, the segments.
    """
    from torch.nn import functional as F  # noqa: N812

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, (x.shape[-1],), scale, shift, 1e-12)

    tables = "bert.embeddings"
    x = F.embedding(ids, weights[f"{tables}.word_embeddings.weight"])
    x = x + F.embedding(types, weights[f"{tables}.token_type_embeddings.weight"])
    x = x + weights[f"{tables}.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x, f"{tables}.LayerNorm")
    for number in range(12):
        layer = f"bert.encoder.layer.{number}"
        parts = (
            linear(x, f"{layer}.attention.self.{name}").unflatten(-1, (12, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        seen = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = x + linear(seen, f"{layer}.attention.output.dense")
        x = norm(x, f"{layer}.attention.output.LayerNorm")
        inner = F.gelu(linear(x, f"{layer}.intermediate.dense"))
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return linear(linear(x[:, 0], "bert.pooler.dense").tanh(), "classifier")


def reset_peak() -> int:
    """Let the peak start from here (Linux: 5 into clear_refs); returns what is resident."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak()


def peak() -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    line = next(line for line in lines if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


SUBJECTS: Mapping[str, Any] = {
    "flodl": flodl,
    "transformers": transformers,
    "floor": floor,
}


def answer(subject: str, folder: Path) -> Any:
    """Ask a subject in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.huggingface.cold", subject, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{subject} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def programs(folder: Path) -> dict[str, list[str]]:
    """The arguments of the interpreter for each subject that answers."""
    return {
        name: ["-m", "benchmarks.huggingface.cold", name, str(folder)]
        for name in ("flodl", "transformers", "floor")
    }


def seconds(programs: Mapping[str, Sequence[str]], rounds: int) -> dict[str, list[float]]:
    """Time Python programs given as arguments of the interpreter, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    names = list(programs)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.perf_counter()
            command = [sys.executable, *programs[name]]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            if number:  # the first round reads files that the others find in memory
                taken[name].append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    sys.stdout.write(json.dumps(SUBJECTS[sys.argv[1]](sys.argv[2])) + "\n")
