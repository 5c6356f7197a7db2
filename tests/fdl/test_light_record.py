"""The data class of the light paths."""

import pytest

from fdl.base.light_record import Record


class Place(Record):
    file: str
    line: int = 1


class Exact(Place):
    column: int = 0


def test_arguments_defaults_and_inheritance_are_those_of_a_dataclass():
    one = Exact("fdl.yml", 3, column=7)
    assert (one.file, one.line, one.column) == ("fdl.yml", 3, 7)
    assert (Exact("fdl.yml").line, Exact("fdl.yml").column) == (1, 0)


@pytest.mark.parametrize(("values", "named"), [(("a", 1, 2), {}), (("a",), {"lien": 2})])
def test_an_argument_that_is_unknown_or_one_too_many_is_refused(values, named):
    with pytest.raises(TypeError, match="Place takes file, line"):
        Place(*values, **named)
