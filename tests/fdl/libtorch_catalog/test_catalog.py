"""The official archives: the data, the choice among them, and what a new version takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, strategies as st

import fdl
from fdl.base.errors import LibtorchError, UsageError
from fdl.base.hardware import Gpu
from fdl.libtorch import catalog
from fdl.libtorch.catalog import PLATFORMS, Artifact, artifacts, choose, find
from tests.rows import each_row

LINUX = "linux-x86_64"
VERSIONS = catalog.versions()


def gpu(capability: str, index: int = 0) -> Gpu:
    major, minor = map(int, capability.split("."))
    return Gpu(index, f"NVIDIA {capability}", (major, minor))


def gpus(text: str) -> list[Gpu]:
    return [gpu(one, index) for index, one in enumerate(text.split())]


@pytest.mark.case("cli", 54)
@each_row(
    ("cards", "variant", "uncovered"),
    [
        ("", "cpu", []),
        ("7.5", "cu128", []),
        ("6.1", "cu126", []),
        ("6.1 12.0", "cu126", ["12.0"]),
        ("6.1 8.6", "cu126", []),
    ],
)
def test_the_newest_cuda_that_serves_every_card_is_chosen(cards, variant, uncovered):
    choice = choose(gpus(cards), artifacts("2.10.0", LINUX))
    assert choice.artifact.variant == variant
    assert [one.capability for one in choice.uncovered] == [
        gpu(one).capability for one in uncovered
    ]
    assert not choice.outdated


@each_row(
    ("driver", "variant", "outdated"),
    [
        ("", "cu132", False),
        ("580.65.06", "cu132", False),
        ("580.65.05", "cu126", True),
        ("570.86.10", "cu126", True),
        ("525.60.13", "cu126", True),
    ],
)
def test_the_driver_limits_the_choice(driver, variant, outdated):
    choice = choose(gpus("8.6"), artifacts("2.13.0", LINUX), driver)
    assert (choice.artifact.variant, choice.outdated) == (variant, outdated)


def test_a_driver_too_old_for_all_is_refused_with_what_is_left():
    with pytest.raises(LibtorchError, match=r"525\.60\.12 is too old for CUDA 12\.6") as refused:
        choose(gpus("8.6"), artifacts("2.13.0", LINUX), "525.60.12")
    assert "fdl libtorch install cpu" in refused.value.hint


def test_a_card_that_an_old_driver_keeps_from_its_cuda_is_uncovered():
    choice = choose(gpus("12.0"), artifacts("2.13.0", LINUX), "570.86.10")
    assert (choice.artifact.variant, choice.outdated) == ("cu126", True)
    assert [one.sm for one in choice.uncovered] == ["sm_120"]


def test_a_platform_without_cuda_gets_the_cpu_variant():
    assert choose(gpus("8.6"), artifacts("2.10.0", "macos-arm64")).artifact.variant == "cpu"


CAPABILITIES = "5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0 10.0 10.3 12.0 12.1 13.0"
machines = st.lists(st.sampled_from(CAPABILITIES.split()), max_size=4).map(
    lambda found: [gpu(one, index) for index, one in enumerate(found)]
)
drivers = st.sampled_from(["", "525.60.13", "528.33", "570.86.10", "580.65.06", "580.88", "999.1"])
offers = st.tuples(st.sampled_from(VERSIONS), st.sampled_from(sorted(PLATFORMS)))


def works(one: Artifact, driver: str) -> bool:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(".")]

    return one.cuda is not None and (
        not driver or not one.driver or numbers(driver) >= numbers(one.driver)
    )


@given(machines, drivers, offers)
def test_no_card_is_left_out_while_another_variant_would_cover_all(cards, driver, offer):
    available = artifacts(*offer)
    usable = [one for one in available if works(one, driver)]
    if cards and not usable and any(one.cuda for one in available):
        with pytest.raises(LibtorchError):
            choose(cards, available, driver)
        return
    choice = choose(cards, available, driver)
    assert choice.artifact in available
    if not cards or not usable:
        assert choice.artifact.cuda is None
        return
    assert choice.artifact in usable
    serving = [one for one in usable if all(one.serves(card) for card in cards)]
    assert bool(choice.uncovered) == (not serving)
    assert set(choice.uncovered) == {card for card in cards if not choice.artifact.serves(card)}
    newest = max(serving, key=lambda one: float(one.cuda or 0), default=choice.artifact)
    assert choice.artifact == newest


@given(machines, drivers, offers)
def test_a_choice_is_outdated_exactly_when_the_driver_cost_a_newer_one(cards, driver, offer):
    available = artifacts(*offer)
    try:
        choice = choose(cards, available, driver)
    except LibtorchError:
        return
    unlimited = choose(cards, available)
    assert choice.outdated == (
        choice.artifact != unlimited.artifact and not unlimited.uncovered and bool(cards)
    )


@given(machines, offers)
def test_the_order_of_the_cards_makes_no_difference(cards, offer):
    available = artifacts(*offer)
    one, other = choose(cards, available), choose(cards[::-1], available)
    assert (one.artifact, set(one.uncovered)) == (other.artifact, set(other.uncovered))


EVERY_ARTIFACT = [
    one for version in VERSIONS for platform in PLATFORMS for one in artifacts(version, platform)
]


@each_row("one", EVERY_ARTIFACT, ids=lambda one: f"{one.torch}-{one.variant}-{one.platform}")
def test_every_archive_of_the_catalog_is_well_formed(one):
    (address,) = one.urls({})
    parts = urlsplit(address)
    assert (parts.scheme, parts.query, parts.fragment) == ("https", "", "")
    file = unquote(parts.path).rpartition("/")[2]
    assert f"/{one.variant}/" in parts.path
    assert re.fullmatch(r"libtorch-[a-z0-9-]+-" + re.escape(one.torch) + r"(\+\w+)?\.zip", file)
    assert file.endswith(f"+{one.variant}.zip") or one.platform == "macos-arm64"
    assert ("win" in file, "macos" in file) == (
        one.platform.startswith("windows"),
        one.platform.startswith("macos"),
    )
    assert one.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", one.sha256)
    assert one.size is None or one.size > 50_000_000
    if one.variant == "cpu":
        assert (one.cuda, one.archs, one.driver, one.recorded_archs) == (None, (), None, "cpu")
    else:
        assert one.variant == "cu" + str(one.cuda).replace(".", "")
        assert one.archs == tuple(sorted(one.archs))
        assert one.archs
        assert re.fullmatch(r"\d+\.\d+(\.\d+)?", one.driver or "")


@each_row("version", VERSIONS)
@each_row("platform", sorted(PLATFORMS))
def test_every_version_has_a_cpu_variant_first_on_every_platform(version, platform):
    available = artifacts(version, platform)
    assert available[0].variant == "cpu"
    names = [one.variant for one in available]
    assert len(set(names)) == len(names)
    cuda = [float(one.cuda) for one in available[1:] if one.cuda]
    assert cuda == sorted(cuda)


def test_the_catalog_says_nothing_that_nobody_reads():
    document = tomllib.loads(Path(catalog.__file__).with_name("catalog.toml").read_text("utf-8"))
    assert set(document) == {"default", "base", "driver", "release"}
    for release in document["release"]:
        assert set(release) == {"version", "variant"}
        for variant in release["variant"].values():
            assert set(variant) <= {"cuda", "archs", *PLATFORMS}
            for platform in PLATFORMS:
                assert set(variant.get(platform, {})) <= {"url", "size", "sha256", "archs"}


def test_versions_ascend_and_the_usual_one_is_among_them():
    numbers = [tuple(map(int, one.split("."))) for one in VERSIONS]
    assert numbers == sorted(set(numbers))
    assert catalog.default_version() in VERSIONS


def test_no_two_archives_share_an_address_or_a_digest():
    addresses = [one.path for one in EVERY_ARTIFACT]
    digests = [one.sha256 for one in EVERY_ARTIFACT if one.sha256]
    assert len(set(addresses)) == len(addresses)
    assert len(set(digests)) == len(digests)


def test_the_usual_version_is_what_its_users_know():
    linux = {one.variant: one for one in artifacts("2.10.0", LINUX)}
    assert {name: (one.cuda, one.recorded_archs) for name, one in linux.items()} == {
        "cpu": (None, "cpu"),
        "cu126": ("12.6", "5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0"),
        "cu128": ("12.8", "7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0"),
    }
    assert unquote(linux["cu128"].path) == "cu128/libtorch-shared-with-deps-2.10.0+cu128.zip"
    assert linux["cu128"].id == "precompiled/cu128"


def test_mirrors_come_before_the_official_address():
    one = find("2.10.0", "cpu", LINUX)
    urls = one.urls({"FDL_LIBTORCH_MIRROR": "http://one.example/lt/  http://two.example"})
    assert urls == [
        f"http://one.example/lt/{one.path}",
        f"http://two.example/{one.path}",
        *one.urls({}),
    ]


def test_an_unknown_version_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no libtorch 1\.0\.0; it has 2\.10\.0"):
        artifacts("1.0.0", LINUX)


def test_an_unknown_variant_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="has no variant `cu999`; it has cpu, cu126, cu128"):
        find("2.10.0", "cu999", LINUX)


@each_row(
    ("system", "machine", "platform"),
    [
        ("linux", "x86_64", "linux-x86_64"),
        ("darwin", "arm64", "macos-arm64"),
        ("win32", "AMD64", "windows-x86_64"),
    ],
)
def test_platforms_are_recognised(system, machine, platform):
    assert catalog.this_platform(system, machine) == platform


@each_row(
    ("system", "machine", "hint"),
    [
        ("linux", "aarch64", "--source wheel"),
        ("darwin", "x86_64", "build"),
        ("aix", "ppc", "build"),
    ],
)
def test_other_platforms_are_refused_with_the_three_and_another_way(system, machine, hint):
    with pytest.raises(LibtorchError) as refused:
        catalog.this_platform(system, machine)
    assert all(name in refused.value.message for name in PLATFORMS.values())
    assert hint in refused.value.hint


def test_minor_versions_of_cuda_share_their_driver():
    assert catalog.driver_floor("12.8", LINUX) == catalog.driver_floor("12.0", "linux-aarch64")
    assert catalog.driver_floor("12.8", "windows-x86_64") == "528.33"
    assert catalog.driver_floor("99.0", LINUX) is None
    assert catalog.driver_floor("12.8", "macos-arm64") is None


@each_row(
    ("driver", "cuda", "platform", "expected"),
    [
        ("525.60.13", "12.8", LINUX, True),
        ("525.60.12", "12.8", LINUX, False),
        ("570.86.10", "13.0", LINUX, False),
        ("570.86.10", "99.0", LINUX, True),
        ("", "13.0", LINUX, True),
        ("528.33", "12.8", "windows-x86_64", True),
    ],
)
def test_a_driver_runs_the_cuda_it_is_new_enough_for(driver, cuda, platform, expected):
    assert catalog.runs_under(driver, cuda, platform) is expected


NEW_RELEASE = """
[[release]]
version = "9.9.0"

[release.variant.cpu]
linux-x86_64 = { url = "cpu/libtorch-shared-with-deps-9.9.0%2Bcpu.zip" }

[release.variant.cu200]
cuda = "20.0"
archs = "12.0 14.0+PTX"
linux-x86_64 = { url = "cu200/libtorch-shared-with-deps-9.9.0%2Bcu200.zip", size = 99000000 }

[driver.20]
linux = "700.10"
"""

QUESTION = """
import json
from fdl.base.hardware import Gpu
from fdl.libtorch import catalog
available = catalog.artifacts("9.9.0", "linux-x86_64")
card = Gpu(0, "new", (14, 2))
print(json.dumps({
    "default": catalog.default_version(),
    "versions": catalog.versions(),
    "chosen": catalog.choose([card], available).artifact.id,
    "native": [str(arch) for arch in available[1].archs if arch.is_native_on(card.capability)],
    "driver": available[1].driver,
    "size": available[1].size,
}))
"""


def test_a_new_version_is_a_change_of_data_alone(tmp_path):
    source = Path(fdl.__file__).parent
    shutil.copytree(source, tmp_path / "fdl", ignore=shutil.ignore_patterns("__pycache__"))
    data = tmp_path / "fdl/libtorch/catalog.toml"
    known = data.read_text(encoding="utf-8").replace('default = "2.10.0"', 'default = "9.9.0"')
    data.write_text(known + NEW_RELEASE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", QUESTION], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "default": "9.9.0",
        "versions": [*VERSIONS, "9.9.0"],
        "chosen": "precompiled/cu200",
        "native": ["14.0+PTX"],
        "driver": "700.10",
        "size": 99000000,
    }
