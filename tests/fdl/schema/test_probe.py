"""Asking programs: what is found, what is started, within which limits, and what is left behind."""

import json
import os
import sys
from pathlib import Path

import pytest

from fdl.base.errors import SchemaError
from fdl.manifest.discover import find_in
from fdl.manifest.load import load
from fdl.manifest.select.level import Level
from fdl.plan.planner import Host
from fdl.plan.probe import agree, invites, learn, may_ask, question as probe
from fdl.programs.schema import cache, known
from fdl.programs.schema.program import script, sources
from tests.fdl.docker_engine import Engine
from tests.fdl.terminal import outside_container
from tests.rows import each_row
from tests.waiting import at_some_pace, wait_for

ANSWER = """print('{"options": {"epochs": {"type": "int"}}}')\n"""
HOST = Host(os.environ, in_container=False, terminal=True)


def level_of(folder: Path) -> Level:
    """The level of a folder's manifest, as the dispatcher would reach it."""
    found = find_in(str(folder))
    assert found is not None
    manifest = load(found, write_cache=False)
    return Level(manifest, ("t",), str(folder), None)


@pytest.fixture
def level(project):
    """A level whose entry and files are given."""

    def make(entry: str, files: dict[str, str] | None = None, more: str = "") -> Level:
        folder = project({"fdl.yml": f"entry: {entry}\n{more}", **(files or {})})
        return level_of(folder)

    return make


FOUND = [
    ("python main.py", "main.py"),
    ("python3.12 -u -X dev main.py --x", "main.py"),
    ("/usr/bin/python main.py", "main.py"),
    ("python -m pkg", "pkg/__main__.py"),
    ("python -u -m pkg.deep.tool --x", "pkg/deep/tool.py"),
    ("python -m lib.tool", "src/lib/tool.py"),
    ("bash main.py", "main.py"),
    ("./run main.py", "run"),
    ("python -c 'import main' main.py", None),
    ("python -m", None),
    ("python -m absent", None),
    ("python absent.py", None),
    ("run main.py", None),
    ("uv run main.py", None),
    ("'unclosed", None),
    ("''", None),
]


@each_row(("entry", "file"), FOUND)
def test_the_script_of_an_entry_is_found_without_running_it(level, entry, file):
    names = ("main.py", "pkg/__main__.py", "pkg/deep/tool.py", "src/lib/tool.py", "run", "dev/x")
    made = level(f'"{entry}"', dict.fromkeys(names, ""))
    assert script(made) == (f"{made.root}/{file}" if file else None)


@pytest.mark.parametrize(
    ("entry", "text", "more", "may", "can"),
    [
        ("python main.py", "class Args(FdlArgs): ...", "", True, True),
        ("python main.py", "if '--fdl-schema' in sys.argv: ...", "", True, True),
        ("python main.py", "from fdl.programs.args import FdlArgs", "", True, True),
        ("python main.py", "import fdl", "", False, False),
        ("python main.py", "", "compile: true", False, True),
        ("python main.py", "", "compile: false", False, False),
        ("uv run main.py", "FdlArgs", "", False, True),
        ("torchrun --nproc-per-node 2 main.py", "FdlArgs", "", False, True),
        ("cargo run", "", "compile: true", False, True),
        ("tool main.py", "FdlArgs", "", False, True),
    ],
)
def test_programs_are_asked_only_with_consent(level, monkeypatch, entry, text, more, may, can):
    made = level(entry, {"main.py": text}, more)
    assert (may_ask(made), invites(made)) == (may, can)
    monkeypatch.setenv("FDL_SCHEMA_PROBE", "1")
    assert not may_ask(made)


def test_a_foreign_program_is_asked_after_consent_once_per_project(level):
    made = level("cargo run", {}, "compile: true")
    assert not may_ask(made)
    agree(made)
    assert may_ask(made)
    assert not may_ask(level("cargo run", {}))


def test_an_edit_of_an_imported_project_module_counts(level):
    files = {
        "main.py": "import torch\nfrom shared import args\nfrom lib.deep import x\n# FdlArgs\n",
        "shared/__init__.py": "from . import args",
        "shared/args.py": "import main",
        "src/lib/deep.py": "def broken(",
        "other.py": "",
    }
    made = level("python main.py", files)
    names = sorted(os.path.relpath(file, made.root) for file in sources(made))
    assert names == ["main.py", "shared/__init__.py", "shared/args.py", "src/lib/deep.py"]


def test_the_answer_is_kept_and_nothing_is_started_to_know_it(level):
    made = level("python main.py", {"main.py": f"# FdlArgs\nopen('n','a').write('x')\n{ANSWER}"})
    assert known(made) is None
    assert not Path(made.root, "n").exists()
    schema = learn(made)
    assert schema is not None
    again = known(level_of(Path(made.root)))
    assert again is not None
    assert list(again.options) == list(schema.options) == ["epochs"]
    assert Path(made.root, "n").read_text() == "x"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{}", b'{"key": 1}', b"[" * 9999,
        b'{"key":null,"files":[],"problem":"","schema":{}}',
    ],
)  # fmt: skip
def test_a_broken_or_foreign_record_counts_as_none(level, content):
    made = level("python main.py", {"main.py": f"# FdlArgs\n{ANSWER}"})
    assert learn(made) is not None
    file = Path(cache.location(made))
    file.write_bytes(content)
    assert known(made) is None
    assert learn(made) is not None
    half = file.read_bytes()[:-20]
    file.write_bytes(half)
    assert known(made) is None
    text = learn(made) and file.read_text()
    file.write_text(text.replace('"type":"int"', '"type":"flot"'))
    assert known(made) is None


def test_what_the_record_depends_on_makes_it_stale(level, monkeypatch):
    files = {"main.py": f"import part\n# FdlArgs\n{ANSWER}", "part.py": ""}

    def fresh() -> Level:
        made = level_of(folder)
        assert known(made) is None
        assert learn(made) is not None
        return made

    folder = Path(level("python main.py", files).root)
    fresh()
    for name in ("main.py", "part.py", "fdl.yml"):
        file = folder / name
        stamp = file.stat().st_mtime_ns + 1_000_000_000
        os.utime(file, ns=(stamp, stamp))
        fresh()
    (folder / "fdl.ci.yml").write_text("training: {epochs: 1}")
    fresh()
    (folder / "fdl.ci.yml").unlink()
    fresh()
    (folder / "part.py").unlink()
    assert known(level_of(folder)) is None
    (folder / "part.py").write_text("")
    made = fresh()
    monkeypatch.setattr(cache, "__version__", "0.0.0")
    assert known(made) is None


def test_nested_and_renamed_commands_share_the_folders_record(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {tools: , fit: {path: tools/train}, own: "
            "{path: tools/train, entry: python other.py}}",
            "tools/fdl.yml": "commands: {train: }",
            "tools/train/fdl.yml": "entry: python main.py",
            "tools/train/main.py": f"# FdlArgs\nopen('n','a').write('x')\n{ANSWER}",
            "tools/train/other.py": "# FdlArgs\nopen('n','a').write('y')\nprint('{}')",
        }
    )
    assert fdl("tools", "train", "--refresh-schema").exit == 0
    assert "--epochs INT" in fdl("fit", "--help").out
    assert "--epochs INT" in fdl("tools", "train", "--help").out
    assert (folder / "tools/train/n").read_text() == "x"
    # Another program in the same folder must not drive the first one's answer out.
    assert "--epochs" not in fdl("own", "--help").out
    assert "--epochs INT" in fdl("fit", "--help").out
    assert (folder / "tools/train/n").read_text() == "xy"
    names = sorted(path.name for path in (folder / "tools/train/.fdl/schema-cache").iterdir())
    assert names[1] == "train.json"
    assert names[0].startswith("train-")
    assert len(names) == 2


def refused(made: Level) -> str:
    with pytest.raises(SchemaError) as caught:
        probe.refresh(made, HOST)
    return caught.value.message


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(4)", "ended with exit code 4"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("print('hello')", "printed no JSON"),
        ("print('{')", "printed broken JSON: "),
        ("print('{\"a\": ' * 99999)", "printed broken JSON: "),
        (
            'print(\'{"options": {"help": {"type": "bool"}}}\')',
            "printed JSON in which `options.help` cannot be declared",
        ),
        ("while True: print('x' * 9999)", "printed more than 1 MiB"),
        ("import sys; sys.stdout.buffer.write(b'\\xff' * 99)", "printed no JSON"),
    ],
)
def test_programs_that_do_not_answer_are_refused_in_words(level, monkeypatch, program, message):
    monkeypatch.setenv("FDL_SCHEMA_SECONDS", "20")
    made = level("python main.py", {"main.py": program})
    assert message in refused(made)
    record = cache.fetch(made)
    assert record is not None
    assert record.schema is None
    assert message in record.problem


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_refused_and_costs_nothing(level, monkeypatch, text):
    monkeypatch.setenv("FDL_SCHEMA_SECONDS", text)
    made = level("python main.py", {"main.py": ANSWER})
    assert refused(made) == f"FDL_SCHEMA_SECONDS={text} is not a number of seconds"
    assert cache.fetch(made) is None


def test_a_program_that_is_not_there_is_refused(level):
    assert "fdl.yml:1:8: `./gone --fdl-schema` cannot be started: No such" in refused(
        level("./gone")
    )


def test_a_passing_failure_does_not_cost_what_is_known(level):
    program = "import os\n# FdlArgs\nif os.path.exists('down'): raise SystemExit(1)\n" + ANSWER
    made = level("python main.py", {"main.py": program})
    assert learn(made) is not None
    Path(made.root, "down").write_text("")
    assert "exit code 1" in refused(made)
    assert known(made) is not None


def test_the_program_is_asked_without_settings_input_or_terminal(level):
    program = """
        import json, os, sys
        told = {"argv": sys.argv[1:], "input": sys.stdin.read(), "cwd": os.getcwd()}
        names = ("FDL_SCHEMA_PROBE", "FDL_PROJECT_ROOT", "PART", "PATH")
        told |= {name: os.environ.get(name) for name in names}
        told["session"] = os.getsid(0) == os.getpid()
        open("told", "w").write(json.dumps(told))
        print("{}")
        """
    more = "training: {epochs: 3}\nenv: {PART: one}\n"
    # Not the bare name: some `python` on the PATH are scripts that put their own in front.
    entry = f"{sys.executable} main.py"
    made = level(entry, {"main.py": program, ".venv/bin/x": ""}, more)
    probe.refresh(made, HOST)
    told = json.loads(Path(made.root, "told").read_text())
    assert told.pop("PATH").startswith(f"{made.root}/.venv/bin:")
    assert told == {
        "argv": ["--fdl-schema"],
        "input": "",
        "cwd": made.root,
        "FDL_SCHEMA_PROBE": "1",
        "FDL_PROJECT_ROOT": made.root,
        "PART": "one",
        "session": True,
    }


def alive(pid: int) -> bool:
    """Whether a process still runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("ending", ["time.sleep(600)", "print('{}')"])
def test_nothing_the_program_has_started_stays_behind(level, monkeypatch, ending):
    if not Path("/proc/self/stat").exists():
        pytest.skip("looks for processes in /proc")
    monkeypatch.setattr(probe, "GRACE_SECONDS", 0.2)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    program = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", {stubborn!r}])
        open("pid", "w").write(str(child.pid))
        {ending}
        """
    made = level("python main.py", {"main.py": program})
    told = Path(made.root, "pid")

    def is_asked(factor: float) -> bool:
        monkeypatch.setenv("FDL_SCHEMA_SECONDS", str(0.5 * factor))
        assert "did not answer" in refused(made)
        return told.exists()

    if "sleep" in ending:
        at_some_pace(is_asked)
    else:
        assert probe.refresh(made, HOST).parameters == ()
    pid = int(told.read_text())
    wait_for(lambda: not alive(pid))


def test_a_program_that_is_too_slow_is_asked_again(level, monkeypatch):
    monkeypatch.setenv("FDL_SCHEMA_SECONDS", "0.5")
    made = level(
        "python main.py", {"main.py": "import time; print('{}', flush=True); time.sleep(600)"}
    )
    assert "did not answer within 0.5 s" in refused(made)
    assert cache.fetch(made) is None


def test_secrets_are_kept_out_of_the_reason(level, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "planted-in-shell")
    program = "import os, sys\nsys.exit('login failed: ' + os.environ['HUB_TOKEN'])"
    made = level("python main.py --api-key planted-in-entry", {"main.py": program})
    message = refused(made)
    assert "login failed: <secret>" in message
    assert "planted" not in message + Path(cache.location(made)).read_text()


@pytest.mark.parametrize("compose", ["compose.yaml", "jobs/docker-compose.yml"])
def test_a_container_is_asked_from_the_nearest_compose_file(project, tmp_path, compose):
    mount = str(tmp_path / "mount")
    folder = project(
        {
            "p/fdl.yml": "commands: {t: {path: jobs/t}}",
            "p/jobs/t/fdl.yml": "{entry: python main.py, docker: dev}",
            "p/jobs/t/main.py": "# FdlArgs\nimport os\n"
            "assert os.environ['FDL_SCHEMA_PROBE'] == '1'\n"
            + ANSWER,
            f"p/{compose}": f"services: {{dev: {{volumes: ['.:{mount}']}}}}",
        }
    ) / "p"  # fmt: skip
    engine = Engine(tmp_path / "engine", {"dev": {}})
    where = (folder / compose).parent
    Path(mount).symlink_to(where)
    page = outside_container("t", "--help", cwd=folder, env={"PATH": engine.path})
    assert (page.returncode, page.stderr) == (0, "")
    assert "--epochs INT" in page.stdout
    (run,) = engine.runs()
    assert run["cwd"] == str(where)
    assert run["argv"][-4:-1] == ["dev", "bash", "-c"]
    inside = (folder / "jobs/t").relative_to(where)
    assert run["argv"][-1] == f"cd {mount}/{inside} && python main.py --fdl-schema"
    assert run["argv"].count("-T") == 1


def test_a_container_without_a_compose_file_is_refused(level):
    made = level("python main.py", {"main.py": ""}, "docker: dev\n")
    assert "fdl.yml:2:9: the entry runs in docker service `dev`, and no compose file" in refused(
        made
    )
