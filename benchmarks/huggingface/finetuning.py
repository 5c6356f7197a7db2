"""One fine-tuning in a process of its own: its losses, accuracy, time and memory.

    python -m benchmarks.huggingface.finetuning WAY FOLDER

``FOLDER`` holds ``task.json`` and the classifier in ``start``. It prints one JSON object.
"""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.huggingface.cold import peak, reset_peak
from benchmarks.huggingface.finetune_data import Labelled, Task

OURS, OURS_AUTO = "flodl", "flodl, engine auto"
THEIRS = "transformers' Trainer"
PLAIN, OTHER = "plain PyTorch", "plain PyTorch, other kernels"
OURS_RANKS, THEIRS_RANKS = "flodl, two ranks", "transformers' Trainer, two ranks"
OURS_CADENCE = "flodl, two ranks, policy cadence"

SPEEDS = (1.0, 0.4)
"""Speeds of two ranks: the second one takes 2.5 times as long for a batch."""

_MODULE = "benchmarks.huggingface.finetuning"
_CLIP = 1.0
_TRIED = 4
"""Steps that tell how long a step of a rank takes, after one to warm up."""


class Found(TypedDict):
    """What one process found.

    Attributes:
        seconds: From the texts to the trained model; with ranks, the steps alone.
        losses: Of every step, before it.
        accuracy: On the test texts.
        grown: Bytes of the peak over what the imports take.
        whole: Bytes of the peak of the process.
        shares: Batches of each rank.
        process: Seconds of the whole process, with imports and the accuracy.
    """

    seconds: float
    losses: list[float]
    accuracy: float
    grown: int
    whole: int
    shares: list[int]
    process: float


def _rows(tokenizer: Any, texts: Labelled, length: int) -> list[dict[str, Any]]:
    """Texts as ids, one mapping per text, for collators of either library."""
    found = tokenizer([text for text, _ in texts], truncation=True, max_length=length)
    return [
        {"label": label, **{name: values[row] for name, values in found.items()}}
        for row, (_, label) in enumerate(texts)
    ]


def _loader(rows: Any, batch: int, collate: Any) -> DataLoader[Any]:
    return DataLoader(rows, batch, shuffle=False, collate_fn=collate)


def _ready() -> int:
    """Load what torch loads for its first optimizer, and let the peak start from here; its bytes.

    transformers loads the same when it is imported, and imports do not count.
    """
    torch.optim.AdamW([torch.zeros(1)])
    return reset_peak()


def _adamw(rate: float, parameters: Iterable[Tensor], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(parameters), lr=rate, weight_decay=0.0, **options)


def accuracy(model: Any, rows: list[dict[str, Any]], collate: Any, texts: Labelled) -> float:
    """The part of the test texts whose label is found."""
    model.eval()
    right = 0
    labels = torch.tensor([label for _, label in texts])
    with torch.no_grad():
        for batch, wanted in zip(_loader(rows, 64, collate), torch.split(labels, 64), strict=True):
            right += int((model(**batch).logits.argmax(-1) == wanted).sum())
    return right / len(texts)


# --- One rank -----------------------------------------------------------------------------------


def flodl(folder: Path, task: Task, *, engine: str = "eager") -> Found:
    """Train with flodl, as the tutorial teaches it; the trained model is saved in ``trained``."""
    from flodl import Trainer
    from flodl.hf import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    losses: list[Tensor] = []
    before = _ready()

    def step(model: Any, batch: Any) -> Tensor:
        loss: Tensor = model(**batch).loss
        losses.append(loss.detach())
        return loss

    model = AutoModelForSequenceClassification.from_pretrained(folder / "start")
    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    collate = DataCollatorWithPadding(tokenizer)
    began = time.perf_counter()
    rows = _rows(tokenizer, task.train, task.length)
    builder = Trainer.builder(model, partial(_adamw, task.rate), step)
    builder.dataset(_loader(rows, task.batch, collate))
    builder.num_epochs(1).device("cpu").max_grad_norm(_CLIP).engine(engine).progress(False).run()
    seconds = time.perf_counter() - began
    found = _found(seconds, losses, before)
    test = _rows(tokenizer, task.test, task.length)
    found["accuracy"] = accuracy(model, test, collate, task.test)
    if engine == "eager":
        model.save_pretrained(folder / "trained", force=True)
    return found


def transformers(folder: Path, task: Task) -> Found:
    """Train the same batches with transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    _import_theirs()
    losses: list[Tensor] = []
    before = _ready()
    model = AutoModelForSequenceClassification.from_pretrained(folder / "start")
    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    began = time.perf_counter()
    trainer = _their_trainer(folder, model, tokenizer, task, losses)
    trainer.train()
    found = _found(time.perf_counter() - began, losses, before)
    found["accuracy"] = _their_accuracy(model, tokenizer, task)
    return found


def plain(folder: Path, task: Task, *, other: bool = False) -> Found:
    """A loop of torch with the model of transformers.

    Args:
        folder: Where the classifier is.
        task: The texts.
        other: Use the fused optimizer and attention by its formula. Both are honest ways to compute
            the same, so their difference from the first loop is the drift of rounding.
    """
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
    )

    _import_theirs()
    losses: list[Tensor] = []
    before = _ready()
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "start", attn_implementation="eager" if other else "sdpa"
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    began = time.perf_counter()
    rows = _rows(tokenizer, task.train, task.length)
    collate = DataCollatorWithPadding(tokenizer)
    optimizer = _adamw(task.rate, model.parameters(), fused=other or None)
    model.train()
    for batch in _loader(rows, task.batch, collate):
        loss = model(**batch).loss
        losses.append(loss.detach())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        optimizer.zero_grad()
    found = _found(time.perf_counter() - began, losses, before)
    found["accuracy"] = _their_accuracy(model, tokenizer, task)
    return found


def _import_theirs() -> None:
    """Import what transformers imports at its first use: memory does not count imports."""
    import transformers

    for name in ("BertForSequenceClassification", "DataCollatorWithPadding", "Trainer"):
        getattr(transformers, name)


def _found(seconds: float, losses: list[Tensor], before: int) -> Found:
    told = torch.stack(losses).tolist() if losses else []
    most = peak()
    return Found(
        seconds=seconds,
        losses=told,
        accuracy=0.0,
        grown=most - before,
        whole=most,
        shares=[],
        process=0.0,
    )


def _their_trainer(
    folder: Path, model: Any, tokenizer: Any, task: Task, losses: list[Tensor]
) -> Any:
    """A Trainer of transformers that keeps its losses and changes nothing else."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    class Recorded(Trainer):
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            loss: Any = super().compute_loss(*args, **options)
            losses.append(loss.detach())
            return loss

    arguments = TrainingArguments(
        output_dir=str(folder / "runs"),
        num_train_epochs=1,
        per_device_train_batch_size=task.batch,
        learning_rate=task.rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=_CLIP,
        optim="adamw_torch",
        train_sampling_strategy="sequential",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        disable_tqdm=True,
    )
    rows: Any = _rows(tokenizer, task.train, task.length)
    return Recorded(
        model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)
    )


def _their_accuracy(model: Any, tokenizer: Any, task: Task) -> float:
    from transformers import DataCollatorWithPadding

    test = _rows(tokenizer, task.test, task.length)
    return accuracy(model, test, DataCollatorWithPadding(tokenizer), task.test)


# --- Two unequal ranks --------------------------------------------------------------------------


def _opened(folder: Path, _device: object) -> Any:
    from flodl.hf import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(folder / "start").train()


def _loss(model: Any, batch: Any) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def flodl_ranks(folder: Path, task: Task, policy: str | None = None) -> Found:
    """Train with flodl on two ranks, with the default policy if none is given."""
    from flodl import Trainer
    from flodl.hf import AutoTokenizer, DataCollatorWithPadding

    before = _ready()
    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    collate = DataCollatorWithPadding(tokenizer)
    batch = collate(_rows(tokenizer, task.train, task.length))
    data = {name: batch[name] for name in batch}
    builder = Trainer.builder(partial(_opened, folder), partial(_adamw, task.rate), _loss)
    builder.dataset(data).batch_size(task.batch).num_epochs(1).max_grad_norm(_CLIP)
    builder.ranks(2).simulate_speed(SPEEDS).progress(False)
    handle = (builder if policy is None else builder.policy(policy)).run()
    (epoch,) = handle.poll_metrics()
    model = _opened(folder, "cpu")
    handle.join().load_into(model)
    found = _found(epoch.epoch_ms / 1000, [], before)
    found["losses"] = [epoch.avg_loss]
    found["shares"] = [rank.batches for rank in epoch.per_rank]
    test = _rows(tokenizer, task.test, task.length)
    found["accuracy"] = accuracy(model, test, collate, task.test)
    return found


def transformers_ranks(folder: Path, task: Task) -> Found:
    """Train with transformers on two ranks, started as torchrun does; both train every step."""
    if "RANK" in os.environ:
        return _their_rank(folder, task, int(os.environ["RANK"]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", _MODULE, THEIRS_RANKS, str(folder)]
    started = []
    for rank in ("0", "1"):
        own = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(
                command,
                env={**os.environ, **names, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    told = [process.communicate(timeout=300) for process in started]
    for process, (_, errors) in zip(started, told, strict=True):
        if process.returncode:
            raise RuntimeError(f"a rank of transformers' Trainer failed:\n{errors}")
    found: Found = json.loads(told[0][0].splitlines()[-1])
    return found


def _their_rank(folder: Path, task: Task, rank: int) -> Found:
    """One of the ranks: before every step it waits as long as its speed takes longer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    _import_theirs()
    losses: list[Tensor] = []
    before = _ready()
    model = AutoModelForSequenceClassification.from_pretrained(folder / "start")
    tokenizer = AutoTokenizer.from_pretrained(folder / "start")
    trainer = _their_trainer(folder, model, tokenizer, task, losses)
    collate = trainer.data_collator
    batch = collate(_rows(tokenizer, task.train[: task.batch], task.length))
    torch.distributed.barrier()
    wait = _step_seconds(copy.deepcopy(model), batch, task) * (1 / SPEEDS[rank] - 1)
    take = trainer.training_step

    def slowed(*args: Any, **options: Any) -> Any:
        # What is stretched must not be the waiting for the other rank.
        time.sleep(wait)
        return take(*args, **options)

    trainer.training_step = slowed
    torch.distributed.barrier()
    began = time.perf_counter()
    trainer.train()
    found = _found(time.perf_counter() - began, losses, before)
    found["shares"] = [len(losses)] * 2
    found["accuracy"] = _their_accuracy(model, tokenizer, task) if rank == 0 else 0.0
    return found


def _step_seconds(model: Any, batch: Any, task: Task) -> float:
    """Seconds of a step of this rank that exchanges nothing."""
    optimizer = _adamw(task.rate, model.parameters())
    model.train()
    began = 0.0
    for number in range(1 + _TRIED):
        if number == 1:
            began = time.perf_counter()
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - began) / _TRIED


# --- Processes ----------------------------------------------------------------------------------

WAYS: dict[str, Callable[[Path, Task], Found]] = {
    OURS: flodl,
    OURS_AUTO: partial(flodl, engine="auto"),
    THEIRS: transformers,
    PLAIN: plain,
    OTHER: partial(plain, other=True),
}
RANKS: dict[str, Callable[[Path, Task], Found]] = {
    OURS_RANKS: flodl_ranks,
    OURS_CADENCE: partial(flodl_ranks, policy="cadence"),
    THEIRS_RANKS: transformers_ranks,
}


def measured(way: str, folder: Path) -> Found:
    """Train in a process of its own.

    Raises:
        RuntimeError: It failed.
    """
    command = [sys.executable, "-m", _MODULE, way, str(folder)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{way} failed:\n{done.stderr}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    found["process"] = time.perf_counter() - began
    return found


if __name__ == "__main__":
    place = Path(sys.argv[2])
    told = {**WAYS, **RANKS}[sys.argv[1]](place, Task.read(place))
    sys.stdout.write(json.dumps(told) + "\n")
