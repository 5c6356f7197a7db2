"""Hosts that ssh reaches through others, with a key that only an agent has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fdl.hosts.hosts import Hosts
from tests.fdl.hosts.test_hosts import TRAIN

pytestmark = pytest.mark.slow

Make = Callable[..., Path]


def test_ranks_run_behind_jump_hosts(gated: Hosts, project: Make) -> None:
    """Beta does not reach the address at which the gate reaches alpha."""
    folder = project(TRAIN)
    code, out, err = gated.fdl("train", "--on", "alpha,beta", cwd=folder)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["alpha | 0 | rank 0 of 2", "beta  | 1 | rank 1 of 2"]


def test_sync_copies_through_jump_hosts(gated: Hosts, project: Make) -> None:
    folder = project({"fdl.yml": "commands:\n  here: {run: pwd}\n"}, copied=False)
    code, out, err = gated.fdl("--sync", "--on", "beta", "here", cwd=folder)
    assert (code, out) == (0, f"beta | {folder.parent}/beta\n"), err


def test_an_address_for_the_ranks_that_a_host_does_not_reach_is_named(
    gated: Hosts, project: Make
) -> None:
    at_the_gate = gated.hosts["alpha"].address
    folder = project(TRAIN, alpha=f", meet: '{at_the_gate}:29400'")
    code, _, err = gated.fdl("train", "--on", "alpha,beta", cwd=folder)
    assert code == 1
    assert f"it has no route to alpha at {at_the_gate}" in err


def test_the_jump_host_that_takes_no_key_is_named(gated: Hosts, project: Make) -> None:
    folder, gate = project(TRAIN), f"root@{gated.hosts['gate'].address}"
    code, _, err = gated.fdl("train", "--on", "beta", cwd=folder, env={"SSH_AUTH_SOCK": ""})
    assert code == 1
    assert f"ssh: jump host {gate}: ssh may not log in without a password" in err
    assert f"hint: ssh-copy-id {gate}" in err


def test_the_jump_host_without_ssh_is_named(gated: Hosts, project: Make) -> None:
    folder, gate = project(TRAIN), gated.hosts["gate"].address
    gated.kill("alpha")
    said = gated.fdl("train", "--on", "beta", cwd=folder)[2]
    assert "its jump host does not reach the next one: Connection refused" in said
    assert "hint: ssh -v beta true" in said
    gated.kill("gate")
    said = gated.fdl("train", "--on", "beta", cwd=folder)[2]
    assert f"jump host {gate}: {gate} answers, but no ssh server runs there" in said
    for name in ("gate", "alpha"):
        gated.start(name)
