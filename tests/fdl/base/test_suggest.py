"""The nearest name."""

from hypothesis import given, strategies as st

from fdl.base.suggest import distance, nearest, similar


@given(st.text("ab.", max_size=12), st.text("ab.", max_size=12))
def test_the_banded_distance_is_the_whole_one_as_far_as_it_goes(left, right):
    def whole(a, b):
        last, row = [], list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            before, last, row = last, row, [i]
            for j, y in enumerate(b, 1):
                best = min(last[j] + 1, row[-1] + 1, last[j - 1] + (x != y))
                if i > 1 and j > 1 and (x, a[i - 2]) == (b[j - 2], y):
                    best = min(best, before[j - 2] + 1)
                row.append(best)
        return row[-1]

    exact = whole(left, right)
    assert distance(left, right) == (exact if exact <= 2 else None)
    assert distance(left, right, 99) == exact


def test_ties_go_to_the_first_and_a_wholly_other_name_is_not_suggested():
    assert nearest("tset", ["tes", "test", "tet"]) == "test"
    assert nearest("ab", ["abc", "abd"]) == "abc"
    assert nearest("x", ["go", "y"]) is None
    assert similar("ab", ["abc", "abcd", "abd"]) == ["abc", "abd"]
