"""The facts that Linux gives about the processor."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from pathlib import Path

_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Names in ``/proc/cpuinfo`` of instructions that multiply in bfloat16; the last is ARM's."""


@functools.cache
def processor_facts() -> Mapping[str, str]:
    """Return the fields of the first processor in ``/proc/cpuinfo``; empty on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def processor_name() -> str:
    """Return the processor's model name, or its architecture if the system gives no name."""
    return processor_facts().get("model name") or platform.processor() or platform.machine()


def bfloat16_instructions(facts: Mapping[str, str] | None = None) -> str | None:
    """Return the name of the processor's instructions that multiply in bfloat16.

    Args:
        facts: The facts of a processor; None for those of this machine.

    Returns:
        The fastest of them; empty if there are none, None if the system does not tell.
    """
    facts = processor_facts() if facts is None else facts
    features = facts.get("flags") or facts.get("Features")
    if features is None:
        return None
    known = set(features.split())
    return next((name for name in _BFLOAT16 if name in known), "")
