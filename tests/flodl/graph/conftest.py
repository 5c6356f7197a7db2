"""Fixtures of the tests of graphs."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def fresh_compiler() -> None:
    """Forget what earlier tests compiled.

    All graphs share the code of ``Graph.forward``, and torch compiles one code for eight different
    modules, then refuses.
    """
    torch.compiler.reset()
