"""The sample numbers of an epoch, computed as torch does, or read from the trace."""

from __future__ import annotations

import hashlib
import random
import sys
from array import array

_DIGEST_BYTES = 16
_WORD = 0xFFFFFFFF
_STATE_WORDS = 624
_LARGEST = _WORD // 20
"""From this number of samples on, torch draws 64 bits for each of them."""


def permutation(samples: int, seed: int) -> array[int]:
    """Return ``torch.randperm(samples)`` of a CPU generator with this seed.

    torch draws from a Mersenne Twister, as Python does; only the seeding differs.

    Raises:
        ValueError: There are so many samples that torch draws in another way.
    """
    if samples >= _LARGEST:
        raise ValueError(f"the order of {samples} samples is not computed")
    word = seed & _WORD
    state = [word]
    for index in range(1, _STATE_WORDS):
        word = (1812433253 * (word ^ (word >> 30)) + index) & _WORD
        state.append(word)
    twister = random.Random()  # noqa: S311 - repeats torch, keeps no secret
    twister.setstate((3, (*state, _STATE_WORDS), None))
    draw, order = twister.getrandbits, array("q", range(samples))
    for index in range(samples - 1):
        other = index + draw(32) % (samples - index)
        order[index], order[other] = order[other], order[index]
    return order


def order_digest(order: array[int]) -> bytes:
    """Return the digest of an order, as the trace holds it."""
    words = array("q", order)
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.sha256(words).digest()[:_DIGEST_BYTES]
