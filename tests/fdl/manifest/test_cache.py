"""A warm start reads one JSON file; a cache that cannot be trusted is as good as none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import fdl
from fdl.base.errors import ManifestError
from fdl.manifest.discover import find_in
from fdl.manifest.load import Manifest, load
from tests.waiting import pass_a_tick

TEXT = """\
# comment
commands:
  t: {run: "echo \\u00e9"}
  p: {options: {a: 1e-3, b: [1, true], c: .inf, d: .nan, e: ~, f: []}}
training:
  seed: 123456789012345678901234567890
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, TEXT)
    return tmp_path


def write(folder: Path, text: str) -> None:
    """A manifest written long enough ago to be told from its next version."""
    (folder / "fdl.yml").write_text(text)
    before = time.time_ns() - 1_000_000_000
    os.utime(folder / "fdl.yml", ns=(before, before))
    pass_a_tick()


def cached(folder: Path) -> Path:
    return folder / ".fdl" / "manifest.json"


def load_in(folder: Path, *, write_cache: bool = True, env: str | None = None) -> Manifest:
    found = find_in(str(folder))
    assert found is not None
    return load(found, env, write_cache=write_cache)


def everything(manifest: Manifest) -> list[tuple[object, ...]]:
    return [
        (
            path,
            repr(leaf.plain()),
            leaf.file,
            leaf.line,
            leaf.column,
            leaf.key_line,
            leaf.key_column,
        )
        for path, leaf in manifest.node.leaves()
    ]


def poison(folder: Path) -> None:
    """Change a value inside a valid cache: whoever sees it has used the cache."""
    text = cached(folder).read_text()
    assert "echo \\u00e9" in text
    cached(folder).write_text(text.replace("echo \\u00e9", "from the cache"))


def from_cache(manifest: Manifest) -> bool:
    return "from the cache" in repr(manifest.node.plain())


def test_a_hit_gives_the_same_tree(root: Path) -> None:
    cold = load_in(root)
    assert cached(root).is_file()
    warm = load_in(root)
    assert everything(warm) == everything(cold)
    assert (warm.directory, warm.warnings) == (cold.directory, ())
    poison(root)
    assert from_cache(load_in(root))


def test_nothing_is_written_when_nothing_may_be(root: Path) -> None:
    load_in(root, write_cache=False)
    assert [path.name for path in root.iterdir()] == ["fdl.yml"]


def test_no_temporary_file_stays(root: Path) -> None:
    load_in(root)
    left = {path.name for path in (root / ".fdl").iterdir()}
    assert left == {".gitignore", "manifest.json"}


def test_an_edit_of_the_same_length_rebuilds(root: Path) -> None:
    load_in(root)
    poison(root)
    (root / "fdl.yml").write_text(TEXT.replace("echo", "ECHO"))
    assert "ECHO" in repr(load_in(root).node.plain())


def test_an_edit_that_keeps_size_and_modification_time_rebuilds(root: Path) -> None:
    load_in(root)
    status = (root / "fdl.yml").stat()
    (root / "fdl.yml").write_text(TEXT.replace("echo", "ECHO"))
    os.utime(root / "fdl.yml", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "ECHO" in repr(load_in(root).node.plain())


def test_what_was_changed_this_very_moment_is_not_cached(root: Path) -> None:
    (root / "fdl.yml").write_text(TEXT)
    soon = time.time_ns() + 60_000_000_000
    os.utime(root / "fdl.yml", ns=(soon, soon))
    load_in(root)
    assert not cached(root).exists()


@pytest.mark.parametrize(("age_ms", "kept"), [(1, False), (9, False), (11, True), (1000, True)])
def test_a_file_younger_than_a_tick_of_the_clock_is_not_cached(
    root: Path, monkeypatch: pytest.MonkeyPatch, age_ms: int, kept: bool
) -> None:
    # A second change within the tick of 10 ms would keep the stamp.
    changed = max((root / "fdl.yml").stat().st_ctime_ns, (root / "fdl.yml").stat().st_mtime_ns)
    monkeypatch.setattr("fdl.manifest.cache.time.time_ns", lambda: changed + age_ms * 1_000_000)
    load_in(root)
    assert cached(root).exists() is kept


def test_a_manifest_broken_since_is_told(root: Path) -> None:
    load_in(root)
    write(root, "comands: {}\n")
    with pytest.raises(ManifestError, match="comands"):
        load_in(root)


def test_every_environment_has_a_cache_of_its_own(root: Path) -> None:
    (root / "fdl.ci.yml").write_text("training: {seed: 2}\n")
    pass_a_tick()
    load_in(root)
    poison(root)
    assert not from_cache(load_in(root, env="ci"))
    assert load_in(root, env="ci").node.plain()["training"] == {"seed": 2}
    assert from_cache(load_in(root))
    (root / "fdl.ci.yml").unlink()
    assert from_cache(load_in(root, env="ci"))


def test_a_merged_tree_comes_back_with_everything_it_replaced(root: Path) -> None:
    options = "{b: !append [2], e: !secret 2}"
    overlay = f"training: {{seed: 2}}\ncommands: {{t: ~, p: {{options: {options}}}}}\n"
    (root / "fdl.ci.yml").write_text(overlay)
    pass_a_tick()
    cold, warm = load_in(root, env="ci"), load_in(root, env="ci")
    assert (root / ".fdl/manifest.ci.json").is_file()
    assert everything(warm) == everything(cold)
    assert warm.layers == cold.layers == (str(root / "fdl.yml"), str(root / "fdl.ci.yml"))
    (seed,) = [leaf for path, leaf in warm.node.leaves() if path == ("training", "seed")]
    assert (seed.value, seed.losers[0].line) == (2, 6)
    options = warm.node.mapping["commands"].mapping["p"].mapping["options"]
    assert options.mapping["b"].merge == "append"
    assert options.mapping["e"].secret
    (gone,) = warm.removed
    assert (gone.path, gone.by.line) == (("commands", "t"), 2)
    assert gone.by.losers[0].plain() == {"run": "echo \u00e9"}


@pytest.mark.parametrize("layer", ["fdl.yml", "base.yml", "fdl.ci.yml", "common/ci.yml"])
def test_editing_any_layer_rebuilds(root: Path, layer: str) -> None:
    (root / "common").mkdir()
    (root / "fdl.yml").write_text(f"inherit-from: base.yml\n{TEXT}")
    (root / "base.yml").write_text("docker: dev\n")
    (root / "fdl.ci.yml").write_text("inherit-from: common/ci.yml\noutput: {dir: ci}\n")
    (root / "common/ci.yml").write_text("output: {monitor: 1}\n")
    pass_a_tick()
    load_in(root, env="ci")
    text = (root / ".fdl/manifest.ci.json").read_text()
    (root / ".fdl/manifest.ci.json").write_text(text.replace('"dev"', '"POISON"'))
    assert load_in(root, env="ci").node.text("docker") == "POISON"
    with (root / layer).open("a") as stream:
        stream.write("compile: true\n")
    manifest = load_in(root, env="ci")
    assert manifest.node.text("docker") == "dev"
    assert manifest.node.mapping["compile"].value is True


def test_another_interpreter_rebuilds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_in(root)
    poison(root)
    monkeypatch.setattr("sys.hexversion", sys.hexversion + 1)
    assert not from_cache(load_in(root))


@pytest.mark.skipif(os.name == "nt", reason="no Unix permissions here")
def test_a_cache_is_as_private_as_its_manifest(root: Path) -> None:
    (root / "fdl.yml").chmod(0o600)
    pass_a_tick()
    load_in(root)
    assert cached(root).stat().st_mode & 0o777 == 0o600


RACER = """
import sys
from fdl.manifest.discover import find_in
from fdl.manifest.load import load
found = find_in(sys.argv[1])
for _ in range(150):
    load(found, write_cache=True)
    import os
    try:
        os.remove(os.path.join(sys.argv[1], ".fdl", "manifest.json"))
    except FileNotFoundError:
        pass
"""


@pytest.mark.slow
def test_processes_that_race_never_read_a_half_written_cache(root: Path) -> None:
    (root / "fdl.yml").write_text(
        "commands:\n" + "".join(f"  c{n}: {{run: x}}\n" for n in range(300))
    )
    pass_a_tick()
    expected = everything(load_in(root, write_cache=False))
    racers = [subprocess.Popen([sys.executable, "-c", RACER, str(root)]) for _ in range(2)]
    seen = 0
    while any(racer.poll() is None for racer in racers):
        try:
            document = json.loads(cached(root).read_text())
        except FileNotFoundError:
            continue
        seen += 1
        assert len(document["node"][0]["commands"][0]) == 300
        assert everything(load_in(root, write_cache=False)) == expected
    assert [racer.wait() for racer in racers] == [0, 0]
    assert seen > 0
    assert not list((root / ".fdl").glob("*.tmp"))


def test_another_version_rebuilds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_in(root)
    poison(root)
    monkeypatch.setattr("fdl.manifest.cache.__version__", f"{fdl.__version__}.next")
    assert not from_cache(load_in(root))


def test_a_moved_project_rebuilds(root: Path) -> None:
    load_in(root)
    poison(root)
    moved = root.rename(root.with_name("moved"))
    manifest = load_in(moved)
    assert not from_cache(manifest)
    assert manifest.node.file == str(moved / "fdl.yml")


def test_a_manifest_that_wins_now_is_read(root: Path) -> None:
    (root / "fdl.yml").rename(root / "fdl.yaml")
    pass_a_tick()
    load_in(root)
    poison(root)
    assert from_cache(load_in(root))
    write(root, TEXT)
    manifest = load_in(root)
    assert not from_cache(manifest)
    assert "fdl.yaml" in manifest.warnings[0]


@pytest.mark.parametrize(
    "foreign", ["", "[" * 100_000, '{"stamps"', "[]", "{}", "null", "\x00\x01"]
)
def test_a_foreign_file_is_rebuilt(root: Path, foreign: str) -> None:
    cold = everything(load_in(root))
    whole = cached(root).read_text()
    cached(root).write_text(foreign)
    assert everything(load_in(root)) == cold
    assert cached(root).read_text() == whole


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:10],
        lambda text: text[:-1],
        lambda text: f"{text}x",
        lambda text: text.replace('"node":[', '"node":[1,'),
        lambda text: json.dumps({**json.loads(text), "node": [{"a": 1}, 0, 1, 1, 1, 1]}),
        lambda text: json.dumps({**json.loads(text), "node": [{}, 7, 1, 1, 1, 1]}),
        lambda text: json.dumps({**json.loads(text), "stamps": []}),
        lambda text: json.dumps({**json.loads(text), "key": []}),
        lambda text: json.dumps({**json.loads(text), "layers": ["/other/fdl.yml"]}),
    ],
)
def test_a_damaged_cache_is_rebuilt(root: Path, change) -> None:
    cold = everything(load_in(root))
    whole = cached(root).read_text()
    cached(root).write_text(change(whole))
    assert everything(load_in(root)) == cold
    assert cached(root).read_text() == whole


def test_undecodable_bytes_are_rebuilt(root: Path) -> None:
    cold = everything(load_in(root))
    cached(root).write_bytes(b"\xff\xfe\xff")
    assert everything(load_in(root)) == cold


def test_a_directory_where_the_cache_belongs_is_left_alone(root: Path) -> None:
    cached(root).mkdir(parents=True)
    assert load_in(root).node.get("training") is not None
    assert [path.name for path in (root / ".fdl").iterdir()] == ["manifest.json"]


def test_a_file_where_the_cache_directory_belongs_is_left_alone(root: Path) -> None:
    (root / ".fdl").write_text("mine")
    assert load_in(root).node.get("training") is not None
    assert (root / ".fdl").read_text() == "mine"


# Root may write everywhere, so the child becomes nobody once its imports are done.
READ_ONLY = """
import contextlib, json, os, sys
import fdl.manifest.check, fdl.manifest.read_yaml, fdl.manifest.load
from fdl.manifest.discover import find_in
from fdl.manifest.load import load
if os.geteuid() == 0:
    os.setuid(65534)
print(load(find_in(sys.argv[1]), write_cache=True).node.plain())
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no Unix permissions here")
def test_a_read_only_project_works_without_a_cache() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, "training: {seed: 1}\n")
        folder.chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, name], capture_output=True, text=True, timeout=60
        )
        folder.chmod(0o755)
        assert [path.name for path in folder.iterdir()] == ["fdl.yml"]
    assert (done.stdout, done.stderr) == ("{'training': {'seed': 1}}\n", "")


# Prints which modules a load brings in on top of the bare package.
MODULES = """
import sys, fdl
before = set(sys.modules)
from fdl.manifest.discover import find
from fdl.manifest.load import load
from fdl.manifest.node import origin
found = find(sys.argv[1])
manifest = load(found, write_cache=True)
origin(manifest.node, manifest.directory)
print(*sorted(set(sys.modules) - before))
"""


def modules_of_a_load(root: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", MODULES, str(root)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())


def test_a_cold_load_imports_yaml_and_pydantic_and_a_warm_one_nothing(root: Path) -> None:
    cold = modules_of_a_load(root)
    assert {"yaml", "json", "pydantic", "fdl.manifest.check"} <= cold
    assert cold.isdisjoint({"typer", "rich", "httpx2", "jinja2"})
    rooms = ("", ".cache", ".discover", ".layers", ".load", ".slips")
    ours = {
        "fdl.base.light_json",
        "fdl.manifest.node",
        "fdl.version",
        *(f"fdl.manifest{room}" for room in rooms),
    }
    ours |= {f"fdl.base{one}" for one in ("", ".light_record", ".masking", ".secrets")}
    assert modules_of_a_load(root) <= ours | {"__future__", "_json"}


def test_git_does_not_see_the_cache(root: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    load_in(root)
    seen = subprocess.run(
        ["git", "status", "--short"], cwd=root, check=True, capture_output=True, text=True
    )
    assert seen.stdout == "?? fdl.yml\n"


def test_a_secret_in_clear_is_not_copied(root: Path) -> None:
    load_in(root)
    assert cached(root).exists()
    write(root, "env: {API_KEY: 's3cr3t-Value-0123456789'}\n")
    load_in(root)
    assert not cached(root).exists()
    write(root, "env: {API_KEY: '${KEY}'}\n")
    load_in(root)
    assert cached(root).exists()
    # From four characters on, a text is masked where it is a whole value.
    for value, copied in (("abc", True), ("abcd", False)):
        write(root, f"env: {{API_KEY: {value}}}\n")
        load_in(root)
        assert cached(root).exists() is copied, value
