"""The reader of fat binaries, on sections written byte by byte and on rubbish."""

from struct import pack

from hypothesis import example, given, strategies as st

from fdl.libtorch.prove.binary import MAGIC, Section, united
from fdl.libtorch.prove.facts import cuda_of
from tests.fdl.prove.cuda import EXACT, FAMILY, LTO, container, entry, ptx, sass


def read(section):
    return Section(section, 0, len(section))


def names(found):
    return sorted(image.name for image in found.images)


def test_an_empty_section_has_no_code_and_no_damage():
    found = read(b"")
    assert (found.containers, found.damage) == ({}, ())


def test_machine_code_and_ptx_are_told_apart():
    found = read(container(sass(80), sass(90), ptx(90, isa=(8, 7))))
    assert names(found) == ["compute_90", "sm_80", "sm_90"]
    assert [one.isa for one in found.images if one.form == "ptx"] == [(8, 7)]
    assert found.damage == ()


def test_architecture_specific_code_keeps_its_suffix():
    found = read(container(sass(90, flags=0x11 | EXACT), sass(120, flags=0x11 | FAMILY)))
    assert names(found) == ["sm_120f", "sm_90a"]


def test_longer_headers_of_entries_are_skipped():
    found = read(container(sass(100, extra=48), sass(120, extra=32), ptx(120)))
    assert names(found) == ["compute_120", "sm_100", "sm_120"]
    assert found.damage == ()


def test_containers_are_counted_by_what_they_hold_and_padding_between_them_is_skipped():
    section = container(sass(80)) + bytes(8) + container(sass(80)) + bytes(24)
    section += container(sass(80), sass(90)) + container()
    found = read(section)
    counts = {" ".join(sorted(i.name for i in unit)): n for unit, n in found.containers.items()}
    assert counts == {"sm_80": 2, "sm_80 sm_90": 1}
    assert found.damage == ()


def test_a_section_in_the_middle_of_a_file_ends_where_it_ends():
    section = container(sass(80))
    file = b"before.." + section + container(sass(90))
    found = Section(file, 8, 8 + len(section))
    assert names(found) == ["sm_80"]


def test_code_for_link_time_optimization_is_counted_and_not_judged():
    found = read(container(entry(LTO, 90), sass(80)))
    assert (names(found), found.unjudged) == (["sm_80"], 1)


def test_the_mark_of_the_compiler_is_read_from_plain_code_only():
    mark = b"\x7fELF....Cuda compilation tools, release 13.0, V13.0.88"
    assert read(container(entry(2, 80, mark))).toolkit == "13.0"
    assert read(container(entry(2, 80, mark, flags=0x8011))).toolkit == ""
    assert read(container(entry(2, 80, mark[:40]))).toolkit == ""


def test_a_section_longer_than_the_file_is_damage_and_what_is_there_is_read():
    section = container(sass(80))
    found = Section(section, 0, len(section) + 100)
    assert names(found) == ["sm_80"]
    assert found.damage == (
        f"at offset {len(section)}: the section goes on for 100 bytes behind the file",
    )


def test_a_container_cut_off_gives_what_is_whole_and_says_where_it_breaks():
    whole = container(sass(80), sass(90))
    found = read(whole[:-8])
    assert names(found) == ["sm_80"]
    assert "at offset 0: a fat binary is 8 bytes longer than its section" in found.damage
    assert f"at offset {16 + 64 + 24}: an entry of a fat binary is longer than the binary" in (
        found.damage
    )


def test_a_damaged_container_does_not_hide_those_behind_it():
    lost = bytearray(container(sass(75)))
    lost[0] ^= 0xFF
    found = read(bytes(lost) + container(sass(90)))
    assert names(found) == ["sm_90"]
    assert found.damage == (f"at offset 0: {len(lost)} bytes that are not a fat binary",)


def test_entries_that_claim_to_have_no_length_end_the_container():
    endless = pack("<HHIQ", 2, 0x0101, 0, 0) + bytes(48)
    found = read(container(endless) + container(sass(80)))
    assert names(found) == ["sm_80"]
    assert found.damage == ("at offset 16: an entry of a fat binary is longer than the binary",)


def test_an_unknown_architecture_and_an_unknown_format_are_damage():
    found = read(container(sass(7), sass(80)))
    assert names(found) == ["sm_80"]
    assert found.damage == ("at offset 16: code for the unknown architecture 7",)
    other = bytearray(container(sass(80)))
    other[4] = 9
    assert read(bytes(other)).damage == ("at offset 0: a fat binary of the unknown format 9",)


def test_of_much_damage_some_places_are_named_and_the_others_counted():
    found = read((MAGIC + bytes(12)) * 100)
    assert len(found.damage) == 9
    assert found.damage[0] == "at offset 0: a fat binary with a header of 0 bytes"
    assert found.damage[-1] == "and 92 more places"


def test_relocatable_code_counts_with_its_ptx_and_the_device_runtime_does_not_count():
    linked = read(container(sass(80)))
    ours = container(sass(80), ptx(80))
    runtime = container(sass(75), sass(90), ptx(121))
    found = united(linked, read(ours + runtime))
    assert sorted(sorted(i.name for i in unit) for unit in found) == [
        ["compute_80", "sm_80"],
        ["sm_80"],
    ]


def test_relocatable_ptx_is_of_use_only_when_every_unit_has_some():
    linked = read(container(sass(80)))
    found = united(linked, read(container(sass(80), ptx(80)) + container(sass(80))))
    assert [sorted(i.name for i in unit) for unit in found] == [["sm_80"]]


def test_the_version_of_ptx_tells_the_cuda_version():
    assert (cuda_of((7, 0)), cuda_of((8, 7)), cuda_of((9, 0))) == ("11.0", "12.8", "13.0")
    assert cuda_of((99, 0)) == ""


@given(st.binary(max_size=4096))
@example(MAGIC)
@example(MAGIC + bytes(12))
@example(MAGIC * 64)
@example(container(entry(2, 80, b"x" * 64))[:-1])
def test_random_bytes_never_crash_the_reader(content):
    found = read(content)
    assert len(found.damage) <= 9
    assert sum(found.containers.values()) <= len(content) // 16


SOUND = (
    container(sass(75), sass(80), ptx(80))
    + bytes(8)
    + container(sass(90, flags=0x11 | EXACT), sass(120, extra=32), ptx(120))
    + container(entry(LTO, 90))
)


@given(st.data())
def test_mutated_sections_never_crash_the_reader(data):
    section = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(section) - 1))
        section[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(section)))
    begin = data.draw(st.integers(-5, len(section) + 5))
    found = Section(bytes(section[:cut]), begin, len(section))
    assert all(10 <= 10 * i.architecture.major + i.architecture.minor < 1000 for i in found.images)
    assert len(found.damage) <= 9


@given(st.lists(st.integers(10, 130), min_size=1, max_size=8), st.integers(0, 64))
def test_every_architecture_written_is_read_whatever_the_padding(numbers, padding):
    section = b"".join(container(sass(one)) + bytes(padding) for one in numbers)
    found = read(section)
    assert names(found) == sorted({f"sm_{one}" for one in numbers})
    assert sum(found.containers.values()) == len(numbers)
    assert found.damage == ()
