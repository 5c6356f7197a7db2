"""steps.trace: what it holds, what two of them prove, and that it changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fdl.base.step_trace import MAGIC, TRACE, Batches, TraceFile, whole_length
from fdl.runs.trace import Coverage, first_difference
from fdl.runs.trace_file import TraceError, order_digest as digest_by_fdl, permutation, read_trace
from flodl import Callback, RunDirectory, Sampler, Trainer
from flodl.data import Batch
from flodl.nn.clip import limited_norm
from flodl.train.observers.digests import (
    FIRST_STEPS,
    SHARE,
    DigestTimes,
    HostCopies,
    order_digest,
    tensor_hash,
)
from tests.rows import each_row

N, BATCH = 43, 4
STEPS = 11
"""Steps of an epoch: ten batches of four samples, and one of three."""


class Seen:
    """What the training function sees."""

    def __init__(self) -> None:
        self.samples: list[list[int]] = []
        self.losses: list[float] = []
        self.params: list[Tensor] = []
        self.path = Path()

    @property
    def trace(self) -> Path:
        return self.path / TRACE


def samples(changed: int | None = None) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(N, 4, generator=draw)
    y = x.sum(1, keepdim=True)
    if changed is not None:
        x[changed, 2] += 1e-3
    return {"x": x, "y": y, "number": torch.arange(N)}


def network(_: torch.device) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))


def train(
    root: Path,
    *,
    epochs: int = 2,
    lr: float = 0.05,
    data: Any = None,
    before: Callable[[int], object] = lambda _: None,
    resume: Path | None = None,
    **settings: Any,
) -> Seen:
    """Train on the CPU in a run directory; return what was seen.

    Args:
        root: Folder of the runs.
        epochs: Number of epochs.
        lr: Learning rate.
        data: The data set; None for :func:`samples`.
        before: Called with the number of batches that were trained, before each.
        resume: A run to continue.
        settings: Further calls of the builder.
    """
    seen = Seen()

    def step(model: nn.Module, batch: Batch) -> Tensor:
        before(len(seen.losses))
        seen.samples.append(batch["number"].tolist())
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        seen.losses.append(loss.item())
        return loss

    builder = (
        Trainer.builder(network, lambda params: torch.optim.SGD(params, lr=lr), step)
        .dataset(samples() if data is None else data)
        .num_epochs(epochs)
        .device("cpu")
        .progress(False)
    )
    if data is None or isinstance(data, dict):
        builder.batch_size(BATCH)
    for name, value in settings.items():
        setting = getattr(builder, name)
        builder = setting(**value) if isinstance(value, dict) else setting(value)
    run = RunDirectory.create(root, resume=resume)
    seen.path = run.path
    with run:
        handle = builder.run_dir(run).run()
    seen.params = handle.join().params
    return seen


@pytest.fixture
def plain(tmp_path: Path) -> Seen:
    return train(tmp_path)


# --- What it holds -------------------------------------------------------------------------------


def test_it_names_the_samples_and_the_loss_of_every_step(plain: Seen) -> None:
    trace = read_trace(plain.path)
    assert trace.state == "complete"
    assert (trace.first, trace.last) == (1, 2 * STEPS)
    assert trace.losses.tolist() == plain.losses
    assert [list(trace.samples(number) or ()) for number in range(len(plain.losses))] == (
        plain.samples
    )
    assert [trace.batch(number).epoch for number in (0, STEPS - 1, STEPS)] == [0, 0, 1]
    assert list(trace.batches_of(STEPS)) == [STEPS - 1]
    assert list(trace.batches_of(2 * STEPS + 1)) == []
    assert {0, 2 * STEPS} <= set(trace.weights)
    assert set(trace.contents) == {step + 1 for step in trace.weights} - {2 * STEPS + 1}
    assert trace.names[0] == "0.weight"
    assert "1.running_mean" in trace.names


def test_the_norms_are_those_of_clipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    clip = limited_norm

    def kept(*args: Any, **rest: Any) -> Tensor:
        norm = clip(*args, **rest)
        norms.append(norm.item())
        return norm

    monkeypatch.setattr("flodl.train.step.halves.limited_norm", kept)
    seen = train(tmp_path, max_grad_norm=0.5)
    assert read_trace(seen.path).norms.tolist() == norms
    assert len(norms) == 2 * STEPS


def test_without_clipping_there_are_no_norms(plain: Seen) -> None:
    assert len(read_trace(plain.path).norms) == 0


class Backwards(Sampler):
    """From last to first, with two neighbours swapped in one epoch."""

    def __init__(self, swapped: int | None = None) -> None:
        self._swapped = swapped

    def indices(self, epoch: int) -> Sequence[int]:
        order = list(range(N))[::-1]
        if epoch == self._swapped:
            order[20], order[21] = order[21], order[20]
        return order


def test_the_order_of_a_sampler_is_listed_once(tmp_path: Path) -> None:
    seen = train(tmp_path, epochs=5, loader_options={"sampler": Backwards()})
    trace = read_trace(seen.path)
    assert list(trace.samples(4 * STEPS) or ()) == [42, 41, 40, 39]
    assert seen.samples[4 * STEPS] == [42, 41, 40, 39]
    assert seen.trace.read_bytes().count(bytes(range(42, 30, -1))) == 1


def test_without_shuffling_the_order_is_not_listed(tmp_path: Path) -> None:
    trace = read_trace(train(tmp_path, loader_options={"shuffle": False}).path)
    assert list(trace.samples(1) or ()) == [4, 5, 6, 7]


def test_the_batches_of_a_step_with_accumulation(tmp_path: Path) -> None:
    seen = train(tmp_path, accumulate=3)
    trace = read_trace(seen.path)
    assert trace.last == 8
    assert [list(trace.batches_of(step)) for step in (1, 4, 5)] == [
        [0, 1, 2], [9, 10], [11, 12, 13],
    ]  # fmt: skip
    assert list(trace.samples(11) or ()) == seen.samples[11]


def test_data_without_numbers_has_positions(tmp_path: Path) -> None:
    def batches() -> Iterator[dict[str, Tensor]]:
        data = samples()
        return iter([{name: each[at] for name, each in data.items()} for at in range(N)])

    def run() -> Seen:
        return train(tmp_path, data=batches, batch_size=BATCH)

    one, other = read_trace(run().path), read_trace(run().path)
    assert one.last == 2 * STEPS
    assert one.samples(0) is None
    assert not one.batch(STEPS).numbered
    assert first_difference(one, other) is None
    assert "same samples" not in Coverage(one, other).sentence()


def test_it_is_off_when_it_is_switched_off(tmp_path: Path) -> None:
    seen = train(tmp_path, trace=False)
    assert not seen.trace.exists()
    with pytest.raises(TraceError, match=r"has no steps\.trace"):
        read_trace(seen.path)


# --- Two runs ------------------------------------------------------------------------------------


def test_equal_runs_are_proved_equal(tmp_path: Path, plain: Seen) -> None:
    one, other = read_trace(plain.path), read_trace(train(tmp_path).path)
    assert first_difference(one, other) is None
    proof = Coverage(one, other)
    assert (proof.first, proof.last, proof.weights[0], proof.weights[-1]) == (1, 22, 0, 22)
    assert proof.sentence().startswith(
        "In steps 1 to 22 both have the same samples in the same order, and the same loss"
    )


def test_a_longer_run_agrees_as_far_as_both_reach(tmp_path: Path, plain: Seen) -> None:
    one, other = read_trace(plain.path), read_trace(train(tmp_path, epochs=3).path)
    assert first_difference(one, other) is None
    assert Coverage(one, other).last == 2 * STEPS


def draws_at(step: int) -> Callable[[int], object]:
    return lambda done: torch.rand(1) if done == step else None


PLANTED: dict[str, tuple[dict[str, Any], str, int]] = {
    "seed": ({"seed": 43}, "initial weights", 0),
    "learning rate": ({"lr": 0.06}, "loss", 2),
    "accumulation": ({"accumulate": 2}, "data order", 1),
    "dropout": ({"before": draws_at(7)}, "loss", 8),
    "a sample": ({"loader_options": {"sampler": Backwards(1)}}, "data order", STEPS + 6),
    "clipping": ({"max_grad_norm": 1e-3}, "loss", 2),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_difference_is_found_at_its_first_step(tmp_path: Path, cause: str) -> None:
    settings, what, step = PLANTED[cause]
    base = {"loader_options": {"sampler": Backwards()}} if cause == "a sample" else {}
    one, other = train(tmp_path, **base), train(tmp_path, **settings)
    found = first_difference(read_trace(one.path), read_trace(other.path))
    assert found is not None
    assert (found.what, found.step) == (what, step)
    assert found.certain_from <= step <= found.certain_to
    assert found.agreed_steps == max(0, step - 1)


def test_a_swapped_sample_is_named(tmp_path: Path) -> None:
    one = train(tmp_path, loader_options={"sampler": Backwards()})
    other = train(tmp_path, loader_options={"sampler": Backwards(1)})
    found = first_difference(read_trace(one.path), read_trace(other.path))
    assert found is not None
    assert found.detail == "sample 22 instead of 21 at position 0 of the batch"
    assert (found.epoch, found.place, found.left) == (1, 0, [22, 21, 20, 19])


def test_a_changed_value_in_the_first_batch_is_content(tmp_path: Path, plain: Seen) -> None:
    other = train(tmp_path, data=samples(changed=plain.samples[0][1]))
    found = first_difference(read_trace(plain.path), read_trace(other.path))
    assert found is not None
    assert (found.what, found.step, found.epoch) == ("data content", 1, 0)


def test_a_changed_value_later_is_a_loss_at_its_step(tmp_path: Path) -> None:
    streamed = {"loader_options": {"streaming": True}}  # so there are no digests of all samples
    plain = train(tmp_path, **streamed)
    other = train(tmp_path, data=samples(changed=plain.samples[5][1]), **streamed)
    found = first_difference(read_trace(plain.path), read_trace(other.path))
    assert found is not None
    assert (found.what, found.step) == ("loss", 6)
    assert found.left == plain.losses[5]
    assert found.right == other.losses[5]


def test_weights_that_change_after_the_last_step_are_found(tmp_path: Path, plain: Seen) -> None:
    class Nudge(Callback):
        def on_epoch_end(self, run: Any, metrics: Any) -> None:
            if metrics.epoch == 1:
                with torch.no_grad():
                    run.model[3].bias.add_(1.0)

    found = first_difference(
        read_trace(plain.path), read_trace(train(tmp_path, callbacks=Nudge()).path)
    )
    assert found is not None
    assert (found.what, found.step, found.certain_to) == ("weights", 22, 22)
    assert found.certain_from <= 22


class StopAfter(Callback):
    """Presses Ctrl-C after some steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, run: Any) -> None:
        if run.global_step == self._step:
            raise KeyboardInterrupt


def test_what_was_trained_before_an_interruption_is_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=StopAfter(5))
    (folder,) = tmp_path.iterdir()
    trace = read_trace(folder)
    assert (trace.last, trace.state) == (5, "")


def test_a_resumed_run_continues_the_trace_and_names_the_run(tmp_path: Path, plain: Seen) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", checkpoint_steps=5, callbacks=StopAfter(8))
    (folder,) = (tmp_path / "cut").iterdir()
    other = train(tmp_path, resume=folder)
    one, two = read_trace(plain.path), read_trace(other.path)
    assert (two.first, two.last, two.continues) == (6, 2 * STEPS, folder.name)
    assert [list(two.samples(n) or ()) for n in range(17)] == plain.samples[5:]
    assert first_difference(one, two) is None
    assert Coverage(one, two).first == 6
    # The beginning of the run that was cut agrees, too.
    assert first_difference(one, read_trace(folder)) is None


def test_runs_without_a_common_step_cannot_be_compared(tmp_path: Path, plain: Seen) -> None:
    short = train(tmp_path, epochs=1)
    longer = train(tmp_path, resume=plain.path, epochs=3)
    with pytest.raises(TraceError, match="no step is in both"):
        first_difference(read_trace(short.path), read_trace(longer.path))


# --- It changes nothing --------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_the_weights_are_equal_with_and_without(tmp_path: Path, engine: str) -> None:
    one = train(tmp_path, engine=engine)
    after = torch.get_rng_state()
    other = train(tmp_path, engine=engine, trace=False)
    assert torch.get_rng_state().equal(after)
    assert one.losses == other.losses
    assert one.samples == other.samples
    for mine, theirs in zip(one.params, other.params, strict=True):
        assert mine.equal(theirs)


def test_a_sampler_is_asked_once_per_epoch(tmp_path: Path) -> None:
    asked: list[int] = []

    class Asked(Backwards):
        def indices(self, epoch: int) -> Sequence[int]:
            asked.append(epoch)
            return super().indices(epoch)

    train(tmp_path, loader_options={"sampler": Asked()})
    assert asked == [0, 1]


def test_a_full_disk_ends_the_trace_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TraceFile, "losses", full)
    seen = train(tmp_path)
    assert len(seen.losses) == 2 * STEPS
    said = capsys.readouterr().err
    assert said.count("steps.trace ends here: OSError: [Errno 28] No space left on device") == 1
    assert read_trace(seen.path).last == 0


# --- A killed process and a damaged file ---------------------------------------------------------


@pytest.mark.slow
def test_every_beginning_of_a_trace_can_be_read_and_continued(tmp_path: Path, plain: Seen) -> None:
    whole, losses = plain.trace.read_bytes(), plain.losses
    folder = tmp_path / "cut"
    folder.mkdir()
    seen = set()
    for length in range(len(whole) + 1):
        (folder / TRACE).write_bytes(whole[:length])
        try:
            trace = read_trace(folder)
        except TraceError:
            assert whole_length(whole[:length]) <= len(MAGIC)
            continue
        assert trace.damage == ""
        assert trace.losses.tolist() == losses[: len(trace.losses)]
        assert trace.torn == length - whole_length(whole[:length])
        seen.add(len(trace.losses))
        if trace.losses and trace.weights:
            assert first_difference(read_trace(plain.path), trace) is None
        file = TraceFile(folder / TRACE)
        file.session({"after": 0, "data": {}})
        file.close()
        assert read_trace(folder).torn == 0
    # Losses also arrive in smaller blocks: the page gets the first step at once.
    assert seen >= {0, STEPS, 2 * STEPS}


def test_a_changed_byte_never_goes_unnoticed(tmp_path: Path, plain: Seen) -> None:
    whole = plain.trace.read_bytes()
    folder = tmp_path / "damaged"
    folder.mkdir()
    sound = read_trace(plain.path)
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        (folder / TRACE).write_bytes(changed)
        try:
            trace = read_trace(folder)
        except TraceError:
            continue
        assert trace.damage or trace.torn, place
        assert trace.losses.tolist() == sound.losses.tolist()[: len(trace.losses)]


def test_a_damaged_trace_cannot_tell(tmp_path: Path, plain: Seen) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(plain.path, folder)
    changed = bytearray(plain.trace.read_bytes())
    changed[-3] ^= 1
    (folder / TRACE).write_bytes(changed)
    with pytest.raises(TraceError, match="damaged; up to there, the runs agree for 22 steps"):
        first_difference(read_trace(plain.path), read_trace(folder))


def test_a_later_session_replaces_what_was_rolled_back(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / TRACE)
    for after, values in ((0, [1.0, 2.0, 3.0, 4.0]), (2, [30.0, 40.0, 50.0])):
        file.session({"after": after, "data": {}})
        file.batches(Batches(0, 0, after + 1, after, 1, stride=1))
        file.losses(0, values)
        file.digest(0, after, bytes([after]) * 16)
    file.close()
    trace = read_trace(tmp_path)
    assert trace.losses.tolist() == [1.0, 2.0, 30.0, 40.0, 50.0]
    assert (trace.first, trace.last) == (1, 5)
    assert [trace.batch(number).start for number in range(5)] == [0, 1, 2, 3, 4]
    assert sorted(trace.weights) == [0, 2]


def test_another_version_of_the_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / TRACE).write_bytes(b"flodl steps 2\nrest")
    with pytest.raises(TraceError, match="has version 2 of its format"):
        read_trace(tmp_path)


@each_row("values", [[0.1], [1e300, 2.0], [float("inf"), -0.0], [2.0**-149]])
def test_a_loss_keeps_every_bit(tmp_path: Path, values: list[float]) -> None:
    file = TraceFile(tmp_path / TRACE)
    file.session({"after": 0, "data": {}})
    file.batches(Batches(0, 0, 1, 0, 1, stride=1))
    file.losses(0, values)
    file.close()
    found = read_trace(tmp_path).losses
    assert found.tobytes() == torch.tensor(values, dtype=torch.float64).numpy().tobytes()


# --- Orders and digests --------------------------------------------------------------------------


@each_row(("n", "seed"), [(1, 3), (2, 9), (1000, 42), (70_000, 2**40 + 1)])
def test_fdl_draws_the_order_of_torch(n: int, seed: int) -> None:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert permutation(n, seed).tolist() == order.tolist()
    assert digest_by_fdl(permutation(n, seed)) == order_digest(order)


def test_a_hash_depends_on_values_and_not_on_layout_or_threads() -> None:
    images = torch.randn(2, 3, 5, 4)
    laid_out = images.to(memory_format=torch.channels_last)
    assert tensor_hash(images) == tensor_hash(laid_out)
    assert tensor_hash(images.transpose(0, 1)) == tensor_hash(images.transpose(0, 1).contiguous())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert tensor_hash(images) == tensor_hash(laid_out)
    finally:
        torch.set_num_threads(before)
    other = images.clone()
    other.view(torch.int32)[1, 2, 4, 3] ^= 1
    assert tensor_hash(other) != tensor_hash(images)
    assert tensor_hash(images.reshape(6, 20)) != tensor_hash(images)
    assert tensor_hash(images.view(torch.int32)) != tensor_hash(images)


@each_row("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64])
def test_every_dtype_has_a_hash(dtype: torch.dtype) -> None:
    value = torch.tensor([0, 1, 0], dtype=dtype)
    assert tensor_hash(value) != tensor_hash(torch.tensor([1, 0, 0], dtype=dtype))
    assert tensor_hash(value[0]) == tensor_hash(value[2])
    assert tensor_hash(value[:0]) != tensor_hash(value[:0].reshape(0, 2))


class Copied(HostCopies):
    """Copies from a GPU, as far as the trace sees."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__([tensor.clone() for tensor in tensors])
        self.copied = sum(tensor.nbytes for tensor in tensors)


def test_digests_of_copies_are_written_by_a_thread(
    tmp_path: Path, plain: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flodl.train.observers.step_trace.HostCopies", Copied)
    one, other = read_trace(plain.path), read_trace(train(tmp_path).path)
    assert first_difference(one, other) is None
    assert {0, 22} <= set(other.weights)


class Clock:
    """Stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("cost", [0.0, 1e-4, 0.03, 2.0])
def test_digests_keep_to_their_share_and_to_common_steps(cost: float) -> None:
    clock = Clock()
    times = DigestTimes(0, clock)
    step_seconds, spent, taken = 0.01, 0.0, []
    times.run(0)
    for step in range(400_000):
        if step >= times.next_step and times.is_due(step):
            taken.append(step)
            clock.now += cost
            times.taken(step, cost)
            spent += cost if step else 0.0
        clock.now += step_seconds
    every = taken[-1] - taken[-2]
    assert every & (every - 1) == 0
    assert all(step % every == 0 for step in taken[-3:])
    assert spent <= SHARE * 400_000 * step_seconds
    assert taken[0] == 0
    assert taken[1] >= FIRST_STEPS
