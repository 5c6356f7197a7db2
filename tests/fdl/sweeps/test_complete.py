"""Completion of the keys of `--each` and of the names of sweeps."""

import pytest


@pytest.fixture
def offered(fdl):
    """The candidates behind words: ``offered("train", "--each", "l")``."""

    def run(*words):
        done = fdl("__complete", "fish", "--", *words)
        assert done.exit == 0, done.err
        return [line.split("\t")[0] for line in done.out.splitlines()]

    return run


@pytest.mark.usefixtures("strict")
def test_keys_are_the_options_of_the_program(offered):
    assert "lr=" in offered("train", "--each", "l")
    assert "--each=model=" in offered("train", "--each=m")


def test_without_a_known_program_keys_are_settings(offered, project):
    project({"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: ./train\n"})
    assert "training.lr=" in offered("train", "--each", "training.l")


@pytest.mark.usefixtures("scores")
def test_names_of_sweeps_are_completed(offered, fdl):
    assert "rates" in offered("sweep", "run", "")
    fdl("train", "--each", "lr=1")
    assert "last" in offered("sweep", "resume", "")
