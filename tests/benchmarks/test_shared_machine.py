"""A training that was ended at the limit gives a bound, and a bound decides only on its side."""

from benchmarks.shared_machine import OF_BEST, OURS, Taken, compared
from tests.rows import each_row

LIMIT = 8.0


def rounds(*seconds):
    return [Taken(one, one + 3, ended=one < LIMIT) for one in seconds]


@each_row(
    ("ours", "other", "found"),
    [
        ((4, 4, 5), (4, 4, 4), ["1.00 (1.00 … 1.25)", "1.15 PASS"]),
        ((8, 8, 8), (8, 8, 8), ["both at the limit", "not decided"]),
        ((8, 8, 7), (5, 5, 5), [">1.60 (1.40 … 1.60)", "1.15 MISSED"]),
        ((8, 8, 8), (7.8, 7.8, 7.8), [">1.03 (1.03 … 1.03)", "not decided"]),
        ((4, 4, 4), (8, 8, 8), ["<0.50 (0.50 … 0.50)", "1.15 PASS"]),
    ],
)
def test_a_limit_decides_only_what_it_bounds(ours, other, found):
    ways = {OURS: rounds(*ours), "passive": rounds(*other)}
    assert compared(ways, "passive", OF_BEST) == found
