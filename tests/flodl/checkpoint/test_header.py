"""The header of a safetensors file: the size of every type of number."""

import pytest
from safetensors.torch import _TYPES

from flodl.checkpoint.header import described
from tests.rows import each_row

SIZES = {name: dtype.itemsize for name, dtype in _TYPES.items() if name != "F4"}
SIZES["F8_E8M0"] = 1  # older versions of safetensors do not know it


@each_row("name", sorted(SIZES))
def test_a_tensor_has_the_bytes_that_torch_gives_it(name):
    value = {"dtype": name, "shape": [3], "data_offsets": [8, 8 + 3 * SIZES[name]]}
    assert described("a", value).end == 8 + 3 * SIZES[name]
    value["data_offsets"] = [8, 9 + 3 * SIZES[name]]
    with pytest.raises(ValueError, match="its byte range does not fit its shape"):
        described("a", value)


@each_row(("name", "eight"), [("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6)])
def test_small_numbers_share_bytes(name, eight):
    assert described("a", {"dtype": name, "shape": [8], "data_offsets": [0, eight]}).shape == (8,)
    with pytest.raises(ValueError, match="its byte range does not fit its shape"):
        described("a", {"dtype": name, "shape": [4], "data_offsets": [0, eight]})
