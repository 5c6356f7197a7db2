"""Hosts of a manifest, before anything connects to them."""

from __future__ import annotations

from typing import Any

import pytest

MANIFEST = """
hosts:
  box: {address: -oProxyCommand=touch ran}
commands:
  hi: {run: echo hi}
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "--on", "box", "hi"), "fdl.yml:2:18: address '-oProxyCommand=touch ran'"),
        (("--on", "box", "-n", "hi"), "fdl.yml:2:18: address '-oProxyCommand=touch ran'"),
        (("plan", "--on", "box2,-oX", "hi"), "-oX is an option of ssh, and not a host"),
    ],
)
def test_no_address_reaches_ssh_as_an_option(
    light_fdl: Any, project: Any, words: tuple[str, ...], said: str
) -> None:
    root = project({"fdl.yml": MANIFEST})
    done = light_fdl(*words, cwd=root)
    assert done.exit != 0
    assert said in done.err
    assert not (root / "ran").exists()
