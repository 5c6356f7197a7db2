"""The values of ``ddp:``: how a manifest says that work is spread over devices."""

from __future__ import annotations

BACKENDS = ("nccl", "cpu")
_AVERAGING = ("sync", "cadence", "async")
POLICIES = (*_AVERAGING, "auto")
NAMED_MODES = (
    "auto",
    "sync",
    *(f"{backend}-{policy}" for backend in BACKENDS for policy in _AVERAGING),
)
_SOLO = "solo-"


def solo_device(mode: str) -> int | None:
    """The number N of the one device in ``solo-N``; None for every other mode."""
    device = mode.removeprefix(_SOLO)
    # `isdigit` alone accepts the digits of every script. No machine has a million devices.
    fits = device != mode and device.isascii() and device.isdigit() and len(device) <= 6
    return int(device) if fits else None


def node_range(text: str) -> tuple[int, int] | None:
    """The minimum and maximum in ``2`` or ``1:2``; None for other texts."""
    parts = text.split(":")
    # No job has a million machines, and long numbers are slow to convert.
    if len(parts) > 2 or not all(one.isascii() and one.isdigit() for one in parts):
        return None
    if any(len(one) > 6 or one.startswith("0") for one in parts):
        return None
    least, most = int(parts[0]), int(parts[-1])
    return (least, most) if least <= most else None


def is_endpoint(text: str) -> bool:
    """Whether a text is a host and a port from 1 to 65535."""
    host, _, port = text.rpartition(":")
    if not host or any(char.isspace() for char in host):
        return False
    # A longer number is not a port and would take long to convert.
    return port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
