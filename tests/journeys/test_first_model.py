"""Somebody creates a project, changes its network, trains twice, watches, and compares."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.chromium import Browser
from tests.browser.test_report import drawn, texts
from tests.journeys.conftest import Figure
from tests.journeys.person import Person

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

LAST_LAYER = "nn.Linear(32 * 4 * 4, 10)"
TWO_LAYERS = "nn.Linear(32 * 4 * 4, 48), nn.GELU(), nn.Linear(48, 10)"

EPOCHS = "document.querySelectorAll('#epochs tbody tr').length"


def test_a_project_is_made_changed_trained_watched_and_compared(person, browser, figure):
    made = person.type("fdl init demo", limit=60)
    following = made.text.partition("Next:\n")[2].splitlines()
    change, quick, train, _ = [line.partition("  #")[0].strip() for line in following]
    assert (change, quick, train) == ("cd demo", "fdl train quick", "fdl train")
    assert "then change train/main.py" in made.text
    person.type(change)
    change_the_network(person.folder / "train/main.py")

    tried = person.type(quick)
    figure("seconds of `fdl train quick`", tried.seconds)
    assert "epoch 3/3" in tried.text
    assert accuracy(tried.text) > 90

    read_the_settings(person)
    watch(person, browser, f"{train} --live", figure)
    compare(person)


def change_the_network(program: Path) -> None:
    """Put a hidden layer before the last one, in an editor."""
    text = program.read_text(encoding="utf-8")
    assert text.count(LAST_LAYER) == 1
    program.write_text(text.replace(LAST_LAYER, TWO_LAYERS), encoding="utf-8")


def accuracy(text: str) -> float:
    """What a training tells at its end, in percent."""
    found = re.search(r"^accuracy ([\d.]+)% on held-out digits$", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


def read_the_settings(person: Person) -> None:
    """Every value is in the line of the file that is shown behind it."""
    for command, epochs in (("train", 10), ("train quick", 3)):
        shown = " ".join(person.type(f"fdl config show {command}").text.split())
        expected = {"epochs": epochs, "batch_size": 32, "lr": 0.003, "seed": 42}
        for name, value in expected.items():
            found = re.search(rf" {name}: {value} # (train/fdl\.yml):(\d+)\b", shown)
            assert found is not None, f"{name} in {shown}"
            line = (person.folder / found[1]).read_text().splitlines()[int(found[2]) - 1]
            assert line.strip() == f"{name}: {value}"
    assert re.search(r"epochs: 3 # \S+, preset quick \(overrides train/fdl\.yml:\d+", shown)


def watch(person: Person, browser: Browser, train: str, figure: Figure) -> None:
    """Train for more epochs and look at the live page meanwhile."""
    with person.start(train) as training:
        training.wait_for("live page: ")
        training.wait_for("\n")
        (address,) = re.findall(r"live page: (http://\S+)", training.raw)
        browser.open(address)
        assert texts(browser, "h1, #status") == ["Digits", "Running"]
        browser.wait_for(
            f"{EPOCHS} >= 2 && page.charts.some(one => one.scales && one.lines.length)"
        )
        seen = int(browser.evaluate(EPOCHS))
        assert seen < 10, "the page came after the end of the training"
        assert browser.evaluate("page.focus.axis.kind") == "step"
        assert {"loss", "lr"} <= {one["name"] for one in drawn(browser)}
        # The graph of the model, with the layer that was put in.
        drawing = "fetch(document.querySelector('#model img').src).then(one => one.text())"
        assert "gelu" in str(browser.evaluate(drawing)).lower()
        browser.evaluate("page.choices.set({axis: 'epoch'})")
        browser.settle()
        assert {"loss", "val_loss", "accuracy"} <= {one["name"] for one in drawn(browser)}
        browser.wait_for(f"{EPOCHS} > {seen}")
        trained = training.finish()
        assert trained.exit == 0, trained.text
    figure("seconds of `fdl train`", trained.seconds)
    assert accuracy(trained.text) > 95
    # The server is gone, and what the page has stays.
    assert browser.evaluate(EPOCHS) >= seen
    assert [line for line in browser.console if "net::ERR_" not in line] == []


def compare(person: Person) -> None:
    """See that the runs differ in the epochs, where each value is set, and which is better."""
    listed = person.type("fdl runs list").text
    assert listed.count("complete") == 2
    text = person.type("fdl runs compare runs/quick runs/train").text
    assert "Configuration that differs:" in text
    differing = text.partition("Configuration that differs:\n")[2]
    row = next(line for line in differing.splitlines() if line.startswith("epochs "))
    assert row.split() == ["epochs", "3", "train/fdl.yml:23:15", "10", "train/fdl.yml:8:11"]
    assert "batch_size" not in differing
    best = next(line for line in text.splitlines() if line.startswith("loss "))
    assert best.split()[-1].endswith("*"), "the longer training has the lower loss"
