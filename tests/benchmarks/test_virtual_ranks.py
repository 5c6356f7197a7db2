"""The map of unequal ranks: rows that survive a kill, ledgers that are complete, and the page."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import virtual_ranks_page as pages, virtual_ranks_ways as ways
from benchmarks.virtual_ranks import PLACES
from benchmarks.virtual_ranks_rows import Rows, cell_of
from benchmarks.virtual_ranks_tasks import NOISE, SEEDS, TASKS, Order, generated, prototypes
from benchmarks.virtual_ranks_ways import Cell, Place, grid, train


@pytest.fixture
def short(monkeypatch):
    task = TASKS["MLP"]
    held = task.samples()
    few = replace(held, train=(held.train[0][:512], held.train[1][:512]))
    small = replace(task, samples=lambda: few, epochs=2, rates=(3e-3,), seeds=(SEEDS[:2],))
    monkeypatch.setattr(ways, "TASKS", {"MLP": small})


def cell(way, **changes):
    settings = {"task": "MLP", "ranks": 2, "ratio": 4.0, "way": way, "lr": 3e-3, "seeds": SEEDS[:2]}
    return Cell(**{**settings, **changes})


@pytest.mark.usefixtures("short")
def test_a_place_is_described_when_every_way_was_trained_there():
    rows, place = Rows(None), Place(2, 4.0)
    for one in grid("MLP", place):
        rows.add(train(one))
    found = pages.found_at(rows, "MLP", place)
    assert set(found) == set(ways.WAYS)
    # The same gradients, cut in another way; a step costs as long as its slowest part.
    assert found["DDP, cut by speed"].accuracy == pytest.approx(found["DDP"].accuracy, abs=0.01)
    assert found["DDP"].ms == pytest.approx(32 * 40)
    assert found["DDP, cut by speed"].ms == pytest.approx(32 * 16)
    assert found["fast rank alone"].ms == pytest.approx(64 * 10)
    assert found["PostLocalSGD, every 4"].averages == 8
    text = "\n\n".join(pages.described(rows, "MLP", place))
    assert all(f"| {way} | 0." in text for way in ways.WAYS)
    assert "averages" in pages.behind_ddp(found)


def test_without_rows_the_page_says_that_nothing_was_measured():
    text = "\n".join(
        pages.sections(Rows(None), {"MLP": [Place(2, 4.0)], "ResNet-20": [], "GPT": []})
    )
    assert "simulated clock" in text.lower()
    assert "not measured yet" in text


def test_a_way_loses_beyond_one_standard_deviation_of_ddp():
    look = ((1.0, 1.0, 0.5, 0.9),)
    ddp = pages.Best("", (0.95, 0.97), 0.1, 1.0, 1.0, look)
    assert pages.loses(replace(ddp, accuracy=(0.94, 0.94)), ddp)
    assert not pages.loses(replace(ddp, accuracy=(0.95, 0.96)), ddp)


def test_the_time_to_a_target_lies_between_two_looks():
    best = pages.Best("", (0.9,), 0.1, 20.0, 1.0, ((10.0, 5, 0.5, 0.8), (20.0, 9, 0.3, 0.9)))
    assert best.reached(0.85) == pytest.approx(15)
    assert best.reached(0.95) is None
    assert best.loss_at(7, 1) == pytest.approx(0.4)


@pytest.mark.usefixtures("short")
def test_a_killed_program_goes_on_with_the_row_that_it_had_not_finished(tmp_path):
    path = tmp_path / "map.jsonl"
    Rows(path).add(train(cell("cadence")))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:100])  # it was killed while it wrote the second row
    rows = Rows(path)
    assert cell("cadence") in rows
    assert cell("async") not in rows
    rows.add(train(cell("async")))
    assert [cell_of(row).way for row in Rows(path).rows.values()] == ["cadence", "async"]


@pytest.mark.usefixtures("short")
def test_a_training_is_the_same_each_time():
    one, two = (train(cell("async", ranks=4)) for _ in range(2))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}


@pytest.mark.usefixtures("short")
def test_each_seed_is_trained_as_if_it_were_alone():
    both = train(cell("PostLocalSGD, every 4"))
    (second,) = train(cell("PostLocalSGD, every 4", seeds=SEEDS[1:2]))["loss"]
    assert both["loss"][1] == pytest.approx(second, rel=1e-3)


def test_shards_by_class_give_a_rank_few_classes():
    labels = torch.arange(10).repeat(32)
    order = Order(320, 8, (1000,), labels, 8)
    rows = torch.cat([order.rows(3, [0], slice(0, 8)) for _ in range(5)], 1)
    assert len(labels[rows].unique()) <= 4
    assert len(rows.unique()) == 40


def test_a_rank_that_comes_and_goes_is_slow_for_a_while():
    cluster = ways.cluster_of(cell("cadence", speeds="away"))
    paces = {cluster.pace(1, at) for at in range(0, 30000, 100)}
    assert paces == {40.0, 400.0}
    assert {cluster.pace(0, at) for at in range(0, 30000, 100)} == {10.0}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("way", ["DDP", "sync", "PostLocalSGD, every 4", "fast rank alone"])
@pytest.mark.parametrize("changes", [{"exchange": "dear"}, {"shards": "by class"}])
def test_a_training_on_another_clock_is_the_same_but_for_the_times(way, changes):
    rows = Rows(None)
    rows.add(train(cell("DDP" if way == "sync" else way, **changes, ratio=1.0)))
    other = cell(way, **changes, speeds="drifting")
    alike = rows.alike(other)
    assert alike is not None
    repeated = ways.repeat(other, alike)
    assert repeated.pop("repeats") == alike["commit"]
    assert {**repeated, "seconds": 0} == {**train(other), "seconds": 0}
    assert rows.alike(cell("cadence")) is None


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("way", ["DDP, cut by speed", "DyLU, up to 16"])
@pytest.mark.parametrize("changes", [{"exchange": "dear"}, {"speeds": "drifting"}])
def test_shares_by_speed_do_not_depend_on_later_times(way, changes):
    momentum = 0.5 if way.startswith("DyLU") else None
    rows = Rows(None)
    rows.add(train(cell(way, momentum=momentum)))
    other = cell(way, **changes, momentum=momentum)
    alike = rows.alike(other)
    assert alike is not None
    repeated = ways.repeat(other, alike)
    assert repeated.pop("repeats") == alike["commit"]
    assert {**repeated, "seconds": 0} == {**train(other), "seconds": 0}
    assert rows.alike(cell(way, momentum=momentum, ratio=2.0)) is None


def test_generated_images_are_as_hard_as_is_said():
    inputs, labels = generated().test
    assert inputs.shape == (1024, 3, 32, 32)
    apart = torch.cdist(inputs.flatten(1) * NOISE, prototypes().flatten(1))
    assert float((apart.argmin(1) == labels).double().mean()) == pytest.approx(0.95, abs=0.01)


def test_every_task_is_planned_with_the_bytes_of_its_network():
    assert set(PLACES) == set(TASKS)
    for name, task in TASKS.items():
        if name != "MLP":  # its exchange is that of a larger network
            network = task.network(task.seeds[0])
            assert 4 * sum(one.numel() for one in network.parameters()) == task.bytes, name
    large = list(grid("GPT of 10 M", PLACES["GPT of 10 M"][0]))
    assert len(large) == 12  # every way, with one rate and one momentum
