"""One requirement on flodl: what it says, and one more extra in it."""

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fdl.scaffold.add_requirement import parse
from tests.rows import each_row

EDITS = [
    ("flodl", "flodl[hf]"),
    ("flodl==0.1.0", "flodl[hf]==0.1.0"),
    ("flodl == 0.1.0", "flodl[hf] == 0.1.0"),
    ("flodl>=0.1,<0.3", "flodl[hf]>=0.1,<0.3"),
    ("flodl[train]==1.2", "flodl[train,hf]==1.2"),
    ("flodl [ train , hf-verify ] ~= 1.2", "flodl [ train , hf-verify, hf ] ~= 1.2"),
    ("flodl[]==1", "flodl[hf]==1"),
    ("flodl (>=1)", "flodl[hf] (>=1)"),
    ("Flodl==1 ; python_version < '3.14'", "Flodl[hf]==1 ; python_version < '3.14'"),
    ("flodl; extra == 'x'", "flodl[hf]; extra == 'x'"),
    ("flodl @ git+https://h.test/flodl", "flodl[hf] @ git+https://h.test/flodl"),
]


@each_row(("text", "changed"), EDITS)
def test_an_extra_is_added_and_everything_else_kept(text, changed):
    found = parse(text)
    assert found is not None
    assert not found.has("hf")
    assert found.with_extra("hf") == changed
    before, after = Requirement(text), Requirement(changed)
    assert after.extras == before.extras | {"hf"}
    assert (after.specifier, after.marker, after.url) == (
        before.specifier,
        before.marker,
        before.url,
    )
    again = parse(changed)
    assert again is not None
    assert again.has("hf")


@each_row(
    "text", ["flodl-hf==1", "flodl.hf", "flodl2", "xflodl", "torch", "", "flodl[train", "flodl x"]
)
def test_what_is_no_requirement_on_flodl_is_left_to_others(text):
    assert parse(text) is None


def test_a_larger_extra_includes_the_smaller_ones():
    full, vision, none = (parse(text) for text in ("flodl[HF]", "flodl[hf_vision]", "flodl[train]"))
    assert [full.has(one) for one in ("hf", "hf-vision", "hf-offline")] == [True, True, True]
    assert [vision.has(one) for one in ("hf", "hf-vision", "hf-offline")] == [False, True, True]
    assert not none.has("hf-offline")


@each_row(
    ("text", "pin", "url"),
    [
        ("flodl==0.3.1", "0.3.1", ""),
        ("flodl[train] === 0.3.1+x ; os_name == 'nt'", "0.3.1+x", ""),
        ("flodl (==2)", "2", ""),
        ("flodl==0.3.*", None, ""),
        ("flodl==1,!=2", None, ""),
        ("flodl>=1", None, ""),
        ("flodl @ file:///x ; os_name == 'nt'", None, "file:///x"),
        ("flodl@git+ssh://h.test/a;b", None, "git+ssh://h.test/a;b"),
    ],
)
def test_a_pin_a_range_and_a_place_are_told_apart(text, pin, url):
    found = parse(text)
    assert (found.pin, found.url) == (pin, url)


@each_row("version", ["0.1.0", "0.2", "0.2.5", "1.0.0", "1.2.3", "2.0"])
@each_row(
    "ranges",
    [">=0.2", ">0.2,<1.2.3", "<=1.0", "~=0.2.3", "~=1.0", "==0.2.*", "!=1.*", "==1", "!=0.2", ""],
)
def test_a_range_allows_what_pip_would_take(ranges, version):
    assert parse(f"flodl{ranges}").allows(version) == SpecifierSet(ranges).contains(version)
