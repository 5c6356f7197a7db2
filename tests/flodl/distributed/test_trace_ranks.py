"""The trace of several ranks is that of rank 0."""

from __future__ import annotations

from pathlib import Path

from fdl.runs.trace import Coverage, first_difference
from fdl.runs.trace_file import read_trace
from flodl import RunDirectory
from flodl.ranks.group import Group
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import train


def traced(group: Group, root: str, policy: str) -> list[list[int]]:
    """Train; return the samples of each batch of this rank."""
    builder = {"run_dir": RunDirectory.create(root)} if group.leads else {}
    seen = train(
        group, n=43, batch_size=4, policy=policy, builder={"deterministic": True, **builder}
    )
    return [rows for _, rows in seen.batches]


def run(ranks: Ranks, count: int, root: Path, policy: str) -> tuple[Path, list[list[int]]]:
    """Train on some ranks; return the run directory and the samples of rank 0."""
    samples = ranks(count, traced, str(root), policy)[0]
    (folder,) = root.iterdir()
    return folder, samples


def test_it_has_the_batches_of_rank_0(ranks: Ranks, tmp_path: Path) -> None:
    for policy in ("sync", "cadence"):
        folder, samples = run(ranks, 2, tmp_path / policy, policy)
        trace = read_trace(folder)
        assert trace.world_size == 2
        assert [list(trace.samples(n) or ()) for n in range(len(trace.losses))] == samples
        assert trace.last in trace.weights


def test_two_ranks_against_two_and_three(ranks: Ranks, tmp_path: Path) -> None:
    one, other, third = (
        read_trace(run(ranks, count, tmp_path / str(place), "sync")[0])
        for place, count in enumerate((2, 2, 3))
    )
    assert first_difference(one, other) is None
    assert "rank 0 of 2" in Coverage(one, other).sentence()
    found = first_difference(one, third)
    assert found is not None
    assert (found.step, found.what, found.left, found.right) == (1, "data order", 2, 3)
