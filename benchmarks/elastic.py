"""Ranks that die and join at random moments: how much of what they could train is trained?

Run with ``python -m benchmarks.elastic --output docs/benchmarks/elastic.md --way elastic --every
10``; one call measures one row. Four ranks train on one machine. Each pads its batches by sleeping
until they take its own time, so the speeds are simulated. At random moments, a rank is killed
(SIGKILL) and, in turn, another one is started.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from benchmarks.measure import Bar, command_line, page, publish, read_options, table
from benchmarks.rows import Kept, Row
from flodl import Batch, Callback, FlodlError, RunDirectory, TensorDataSet, Trainer
from flodl.ranks.launch.launcher import JOIN_VARIABLE
from flodl.train.callbacks import TrainingRun
from flodl.train.run.verify import verify_run

PACE_MS = (40.0, 50.0, 80.0, 100.0)
"""Simulated milliseconds per batch of each rank; a rank that joins has that of a killed one."""
B = 8
EPOCH = 1000
"""Batches: 15 s if all four train."""
MAX_ANCHOR = 20
SYNC_EVERY = 20
"""Steps between two averages of torchft's LocalSGD."""
PATIENCE = 180.0
"""Seconds after which a program counts as hung."""
WAYS = {
    "elastic": "flodl, elastic",
    "restart": "flodl, restart of all ranks from the checkpoint",
    "torchrun": "torchrun, restart of all ranks from flodl's checkpoint",
    "torchft": "torchft's LocalSGD",
}
_RESTARTS = ("restart", "torchrun")
"""Ways in which the launcher itself starts ranks again."""
BARS = {60.0: Bar(0.90, least=True), 10.0: Bar(0.80, least=True)}
"""Seconds between two events -> the goodput that elastic ranks have to reach."""


# --- One rank ------------------------------------------------------------------------------------


class Life(Callback):
    """Writes down when this rank begins and how many batches it has trained."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._batches = folder, 0
        self._due = 0.0

    def begin(self) -> None:
        """Say that this rank trains now."""
        here = {"slot": _slot(), "pid": os.getpid(), "at": time.monotonic()}
        _appear(self._folder / f"life-{os.getpid()}", json.dumps(here))
        self._due = time.monotonic()

    def pad(self) -> None:
        """Sleep until the batch has taken the time of this rank."""
        self._due = max(self._due + PACE_MS[_slot()] / 1000, time.monotonic())
        time.sleep(self._due - time.monotonic() if self._due > time.monotonic() else 0.0)

    def count(self) -> None:
        """Count a batch."""
        self._batches += 1
        _appear(self._folder / f"batches-{os.getpid()}", str(self._batches))

    def on_train_start(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Begin."""
        self.begin()

    def on_step_end(self, run: TrainingRun) -> None:  # noqa: ARG002
        """Count a batch."""
        self.count()

    def on_epoch_end(self, run: TrainingRun, _metrics: object) -> None:
        """End the training if that is asked for."""
        if (self._folder / "enough").exists():
            run.stop("the measurement is over")

    def on_train_end(self, _run: TrainingRun) -> None:
        """Say when it has ended."""
        _appear(self._folder / "ended", str(time.monotonic()))


def _slot() -> int:
    return int(os.environ.get("SLOT") or os.environ.get("RANK", "0"))


def _appear(path: Path, text: str) -> None:
    """Write a file that nobody can see half of."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    unfinished.write_text(text)
    unfinished.rename(path)


def _model(_device: object = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))


def _data() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(EPOCH * B, 4, generator=torch.Generator().manual_seed(0))
    return inputs, inputs.sum(1, keepdim=True)


def _optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def _loss(life: Life, model: nn.Module, batch: Batch | list[Tensor]) -> Tensor:
    life.pad()
    value: Tensor = (model(batch[0]) - batch[1]).square().mean()
    return value


def train(folder: Path, way: str) -> None:
    """Train with flodl, until the file ``enough`` exists."""
    life = Life(folder)
    trainer = (
        Trainer.builder(_model, _optimizer, partial(_loss, life))
        .dataset(TensorDataSet(*_data()))
        .batch_size(B)
        .num_epochs(100_000)
        .engine("eager")
        .checkpoint_steps(200)
        .callbacks(life)
        .ddp({"mode": "nccl-cadence", "max_anchor": MAX_ANCHOR, "max_restarts": 1000})
        .run_dir(RunDirectory.create(folder / "runs"))
    )
    if way != "torchrun":
        trainer = trainer.ranks(len(PACE_MS))
    if way == "elastic":
        trainer = trainer.elastic()
    trainer.run()


def train_torchft(folder: Path, lighthouse: str) -> None:
    """Train as one replica of torchft, as the example in its documentation."""
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import LocalSGD

    model, life = _model(), Life(folder)
    optimizer = _optimizer(model.parameters())

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(found: Mapping[str, Any]) -> None:
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), load_state_dict=load, state_dict=state,
        min_replica_size=1, use_async_quorum=False, rank=0, world_size=1, replica_id=f"{_slot()}",
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=lighthouse,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    inputs, targets = _data()
    life.begin()
    with LocalSGD(manager, model, optimizer, sync_every=SYNC_EVERY):
        while not (folder / "enough").exists():
            at = torch.randint(len(inputs), (B,))
            optimizer.zero_grad()
            _loss(life, model, [inputs[at], targets[at]]).backward()  # type: ignore[no-untyped-call]
            before = manager.batches_committed()
            optimizer.step()
            life.count()
            if (done := manager.batches_committed()) != before:
                _appear(folder / "committed", str(done * SYNC_EVERY))
    _appear(folder / "ended", str(time.monotonic()))
    os._exit(0)


# --- The ranks, as seen from outside -------------------------------------------------------------


def _runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Ranks:
    """The processes of one measurement."""

    def __init__(self, folder: Path, way: str) -> None:
        self.folder, self.way = folder, way
        self._programs: list[subprocess.Popen[bytes]] = []
        self._address = ""
        self.lives: list[list[float]] = [[] for _ in PACE_MS]
        """By slot: when it began and when it was killed, in turns."""
        self._seen: set[str] = set()
        self.killed: list[int] = []
        """Slots without a rank, if nobody starts one again."""

    def start(self) -> None:
        """Start all ranks, and wait until they train."""
        me = ["-m", "benchmarks.elastic", "--as-rank", str(self.folder), "--way", self.way]
        if self.way == "torchft":
            from torchft.coordination import LighthouseServer

            self._lighthouse = LighthouseServer(
                bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000,
                heartbeat_timeout_ms=1000,
            )  # fmt: skip
            port = self._lighthouse.address().rpartition(":")[2]
            self._address = f"http://127.0.0.1:{port}"
            for slot in range(len(PACE_MS)):
                self._run([*me, "--address", self._address], SLOT=str(slot))
        elif self.way == "torchrun":
            launcher = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=1000"]
            self._run([*launcher, f"--nproc-per-node={len(PACE_MS)}", *me])
        else:
            self._run(me)
        self._until(lambda: all(self.look()))
        if self.way == "elastic":
            text = (self.folder / "log").read_text()
            self._address = text.partition(f"{JOIN_VARIABLE}=")[2].split()[0]

    def _run(self, words: list[str], **environ: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self._programs.append(
                subprocess.Popen(
                    [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
                )
            )  # fmt: skip

    def _until(self, there: Any) -> None:
        until = time.monotonic() + PATIENCE
        while not there():
            if time.monotonic() > until or not self.alive:
                raise TimeoutError(f"nothing has happened for {PATIENCE:g} s")
            time.sleep(0.05)

    def look(self) -> list[bool]:
        """Learn which ranks have begun; return for each slot whether its rank lives."""
        for file in sorted(self.folder.glob("life-*")):
            if file.name not in self._seen:
                self._seen.add(file.name)
                told = json.loads(file.read_text())
                if len(self.lives[told["slot"]]) % 2 == 0:
                    self.lives[told["slot"]].append(told["at"])
        return [len(life) % 2 == 1 for life in self.lives]

    def kill(self, dice: random.Random) -> bool:
        """Kill a rank; False if none may die."""
        living = {}
        for file in self.folder.glob("life-*"):
            told = json.loads(file.read_text())
            if _runs(told["pid"]) and len(self.lives[told["slot"]]) % 2 == 1:
                living[told["slot"]] = told["pid"]
        if self.way == "elastic":
            # Only ranks that the program has started can write its files: one of them has to stay.
            started = [slot for slot, pid in living.items() if self._is_started(pid)]
            if len(started) == 1:
                del living[started[0]]
        if not living:
            return False
        slot = dice.choice(sorted(living))
        with suppress(ProcessLookupError):
            os.kill(living[slot], signal.SIGKILL)
        self.lives[slot].append(time.monotonic())
        self.killed.append(slot)
        return True

    def _is_started(self, pid: int) -> bool:
        return all(program.pid != pid for program in self._programs)

    def join(self) -> bool:
        """Start a rank in place of one that was killed; False if nobody or the launcher does."""
        if self.way in _RESTARTS or not self.killed:
            return False
        me = ["-m", "benchmarks.elastic", "--as-rank", str(self.folder), "--way", self.way]
        slot = str(self.killed.pop(0))
        if self.way == "elastic":
            self._run(me, SLOT=slot, **{JOIN_VARIABLE: self._address})
        else:
            self._run([*me, "--address", self._address], SLOT=slot)
        return True

    @property
    def alive(self) -> bool:
        """Whether the training continues."""
        running = [program.poll() is None for program in self._programs]
        return any(running) if self.way == "torchft" else running[0]

    def finish(self) -> float:
        """Ask for the end; return when it was there."""
        (self.folder / "enough").touch()
        self._until((self.folder / "ended").exists)
        self.look()
        for program in self._programs:
            with suppress(subprocess.TimeoutExpired):
                program.wait(60)
        return float((self.folder / "ended").read_text())

    def close(self) -> None:
        """Leave no process behind."""
        for program in self._programs:
            if program.poll() is None:
                for child in psutil.Process(program.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
                program.kill()
            program.wait()

    def could(self, end: float) -> float:
        """Return the batches that living ranks could have trained."""
        total = 0.0
        for life, pace in zip(self.lives, PACE_MS, strict=True):
            times = [min(moment, end) for moment in [*life, *([end] if len(life) % 2 else [])]]
            total += sum(b - a for a, b in zip(times[::2], times[1::2], strict=True)) * 1000 / pace
        return total


def measure(way: str, every: float, events: int, seed: int) -> Row:
    """Measure one row."""
    dice, kills, joins, began = random.Random(seed), 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        ranks = Ranks(Path(name), way)
        try:
            ranks.start()
            began = time.monotonic()
            for number in range(events):
                time.sleep(max(0.0, began + every * (number + dice.random()) - time.monotonic()))
                ranks.look()
                if not ranks.alive:
                    break
                if number % 2:
                    joins += ranks.join()
                else:
                    kills += ranks.kill(dice)
            time.sleep(max(0.0, began + every * events - time.monotonic()))
            ended = ranks.finish()
            row = {"kills": kills, "joins": joins, **_result(ranks, ended)}
        except (TimeoutError, OSError) as problem:
            row = {"kills": kills, "joins": joins, "problem": str(problem)}
            sys.stderr.write((Path(name) / "log").read_text(errors="replace")[-4000:])
        finally:
            ranks.close()
    load = statistics.mean(os.getloadavg())
    return row | {
        "every": every,
        "seconds": round(time.monotonic() - began),
        "load": round(load, 1),
    }


def _result(ranks: Ranks, ended: float) -> Row:
    """Return what a measurement has brought."""
    folder, could = ranks.folder, ranks.could(ended)
    trained = sum(int(file.read_text()) for file in folder.glob("batches-*"))
    if ranks.way == "torchft":
        committed = float((folder / "committed").read_text())
        return {"goodput": committed / could, "trained": trained, "committed": committed}
    run = next((folder / "runs").iterdir())
    record = json.loads((run / "run.json").read_text())
    try:
        proof = verify_run(run)
        proven, committed = proof.proven, proof.samples_once / B
    except FlodlError as error:
        sys.stderr.write(f"{error}\n")
        proven, committed = False, 0.0
    with (run / "metrics.csv").open() as rows:
        epochs = len(rows.readlines()) - 1
    return {
        "goodput": committed / could, "trained": trained, "committed": committed, "epochs": epochs,
        "proven": proven, "restarts": int(record.get("restarts") or 0),
        "state": record["state"],
    }  # fmt: skip


# --- The page ------------------------------------------------------------------------------------


def described(options: argparse.Namespace, rows: Mapping[str, Row]) -> str:
    """Describe what was found."""
    header = [
        "", "one event every", "kills", "joins", "minutes", "goodput", "bar", "restarts",
        "each sample once", "batches lost per kill", "load",
    ]  # fmt: skip
    shown = []
    for row in sorted(rows.values(), key=lambda one: (list(WAYS).index(one["way"]), one["every"])):
        bar = BARS.get(row["every"]) if row["way"] == "elastic" else None
        if "problem" in row:
            cells = ["", "", row["problem"], "", "", ""]
        else:
            lost = (row["trained"] - row["committed"]) / max(row["kills"], 1)
            proven = {True: "yes", False: "**no**", None: "not recorded"}[row.get("proven")]
            cells = [
                f"{row['goodput']:.2f}",
                bar.verdict(row["goodput"]) if bar is not None else "",
                str(row.get("restarts", 0)),
                proven,
                f"{lost:.1f}",
            ]
        started = f"{row['every']:g} s"
        minutes = f"{row['seconds'] / 60:.0f}"
        joins = "" if row["way"] in _RESTARTS else str(row["joins"])
        counts = [str(row["kills"]), joins, minutes]
        shown.append([WAYS[row["way"]], started, *counts, *cells, f"{row['load']:g}"])
    pace = ", ".join(f"{ms:g}" for ms in PACE_MS)
    return page(
        options,
        "Ranks that come and go: how much of what they could train is trained",
        f"Four ranks of {pace} ms per batch (simulated: each sleeps until its time is over). "
        f"{EPOCH} batches per epoch. Windows have at most {MAX_ANCHOR} batches of the slowest "
        "rank. "
        f"Kills and joins in turns, at random moments. Each row names the load of the machine.",
        table(header, shown),
        *_beside_other_work(rows.values()),
        "*Goodput* is the number of batches that are part of the trained model, divided by what "
        "the living ranks could have trained. A rank lives from its start until it is killed; "
        "ranks that a launcher ends and starts again count as living. So a restart costs goodput, "
        "and the start of a new process does not. A rank that joins takes the speed of one that "
        "was killed. The bars are for 50 kills and 50 joins (10 s), and for 30 events (60 s); a "
        "row with fewer is a short form.",
        "Of the elastic ranks, one that the program itself has started is never killed: if the "
        "last of them dies, all start again. *Batches lost per kill* are those that were trained "
        "and are not part of the model; a window has up to "
        f"{round(MAX_ANCHOR * max(PACE_MS) / min(PACE_MS))} of the fastest rank.",
        "torchft's LocalSGD draws its samples at random on each rank, averages plainly every "
        f"{SYNC_EVERY} steps, and keeps no record of samples.",
        packages=("torch", "torchft"),
    )


def _beside_other_work(rows: Iterable[Row]) -> list[str]:
    """Return a sentence if the machine could not keep the speeds of the ranks."""
    cores = os.cpu_count() or 1
    if all(row["load"] <= cores for row in rows):
        return []
    return [
        f"Rows with a load above {cores}, the processors of the machine, were measured beside "
        "other work. Their ranks could not keep their speeds, and they lose goodput by that."
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line("elastic", __doc__)
    parser.add_argument("--way", choices=WAYS, default="elastic")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two events")
    parser.add_argument("--events", type=int, default=100, help="kills and joins together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--as-rank", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = read_options(parser, argv, every=2.0, events=2)
    if options.as_rank is not None:
        if options.way == "torchft":
            train_torchft(options.as_rank, options.address)
        else:
            train(options.as_rank, options.way)
        return
    kept = Kept.beside(options.output)
    row = measure(options.way, options.every, options.events, options.seed)
    kept.rows[f"{options.way} {options.every:g}"] = {"way": options.way, **row}
    kept.write()
    publish(described(options, kept.rows), options.output)


if __name__ == "__main__":
    main()
