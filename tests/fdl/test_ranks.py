"""How often an entry starts: `ddp:` and the flags of the same names become a launch."""

import json
import os
import sys

import pytest

from fdl.plan import torchrun
from fdl.plan.torchrun import launcher
from tests import fork_server
from tests.conftest import typed_in
from tests.fdl.hardware.fake_nvml import card, nvidia
from tests.fdl.programs import executable
from tests.fdl.terminal import outside_container
from tests.rows import each_row

SAY = """
    import json, os, sys

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "FLODL_DDP")
    said = json.dumps([[os.environ.get(name) for name in names], sys.argv[1:]])
    print(said + "\\n", end="", flush=True)
"""
START = ["python", torchrun.LAUNCHER]
TASK = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
# Every field of the section but `policy` and `backend`, which `mode` says in one word.
EVERYTHING = {
    "mode": "cpu-cadence",
    "anchor": 7,
    "max_anchor": 50,
    "overhead_target": 0.2,
    "divergence_threshold": 0.1,
    "no_divergence_guard": True,
    "max_batch_diff": 0,
    "max_overshoot": 4,
    "max_grad_norm": 1.5,
    "snapshot_timeout": 6,
    "checkpoint_every": 2,
    "progressive": False,
    "speed_hint": {"slow_rank": 1, "ratio": 2.5},
    "partition_ratios": [0.7, 0.3],
    "lr_scale_ratio": 0.5,
    "timeline": True,
    "ranks": 2,
    "nodes": 1,
    "max_restarts": 1,
    "simulate_ms": [40.0, 100.0],
}


@pytest.fixture
def forking_fdl(tmp_path):
    """``fdl``, whose torchrun and ranks are forks that have imported torch."""
    return typed_in(tmp_path, fork_server.torch_on_path(os.environ))


@pytest.fixture
def planned(project, fdl):
    """Lay out a folder `train` and return the dry run of a command line, as JSON."""

    def plan(manifest, *words, env=None):
        project({"fdl.yml": "commands: {train: }", "train/fdl.yml": manifest})
        done = fdl("-n", "--json", "train", *words, env=env)
        assert done.exit == 0, done.err
        return json.loads(done.out)

    return plan


@pytest.fixture
def refused(project, fdl):
    """Lay out a folder `train` and return what a command line is refused with."""

    def refuse(manifest, *words, env=None):
        project({"fdl.yml": "commands: {train: }", "train/fdl.yml": manifest})
        done = fdl("-n", "train", *words, env=env)
        assert (done.exit, done.out) == (1, "")
        return done.err

    return refuse


def options(plan):
    """What torchrun is told, up to the program."""
    assert plan["argv"][:2] == START, plan["argv"]
    return plan["argv"][2 : plan["argv"].index("--")]


def settings_of(plan):
    return json.loads(plan["env"]["FLODL_DDP"])


def test_ranks_on_the_command_line_start_the_program_so_often(project, forking_fdl):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": "entry: python main.py\nddp: {policy: async, ranks: auto}\n",
            "train/main.py": SAY,
        }
    )
    words = ("train", "--ranks", "2", "--x", "--", "--ranks", "7")
    done = forking_fdl(*words, env={"OMP_NUM_THREADS": "1"})
    assert done.exit == 0, done.err
    said = sorted(json.loads(line) for line in done.out.splitlines())
    assert [variables[:3] for variables, _ in said] == [["0", "2", "0"], ["1", "2", "1"]]
    for variables, argv in said:
        assert argv == ["--policy", "async", "--x", "--ranks", "7"]
        assert json.loads(variables[4]) == {"policy": "async", "ranks": 2}


def test_a_rank_that_fails_fails_the_command(project, forking_fdl):
    project(
        {
            "fdl.yml": "entry: python main.py\ncommands: {two: {ddp: {ranks: 2, max_restarts: 0}}}",
            "main.py": "import os, sys\nsys.exit(3 * int(os.environ['RANK']))\n",
        }
    )
    done = forking_fdl("-q", "two")
    assert (done.exit, done.err) == (3, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epochs", "x"), "invalid value `x` for `--epochs` -- not an integer\n"),
        (("--epoch", "3"), "unknown option `--epoch`\n"),
    ],
)
def test_a_mistake_in_known_arguments_is_reported_once_and_starts_no_rank(
    project, fdl, words, said
):
    folder = project(
        {
            "fdl.yml": "entry: python main.py\ncommands: {two: {ddp: {ranks: 2}}}",
            "main.py": """
                from pathlib import Path
                from fdl import FdlArgs, option

                class Args(FdlArgs):
                    epochs: int = option(default=1)

                Args.parse_or_schema()
                Path("started").touch()
            """,
        }
    )
    assert fdl("self", "schema", "refresh").exit == 0
    done = fdl("two", *words)
    assert done.exit != 0
    assert done.err.count(f"error: `fdl two`: {said}") == 1
    assert "Traceback" not in done.err
    assert not (folder / "started").exists()


@pytest.mark.case("distributed", 59)
def test_every_field_reaches_a_program_that_declares_no_flag(planned):
    plan = planned(f"entry: python main.py\nddp: {json.dumps(EVERYTHING)}")
    assert settings_of(plan) == EVERYTHING


@pytest.mark.case("distributed", 59)
def test_every_field_reaches_a_program_that_declares_the_flags(project, forking_fdl):
    project(
        {
            "fdl.yml": f"entry: python main.py\nddp: {json.dumps(EVERYTHING)}\ncommands: {{p: "
            "{training: {epochs: 3}}}",
            "main.py": """
                import json
                from fdl import DdpArgs, option

                class Args(DdpArgs):
                    epochs: int = option(default=1)

                args = Args.parse_or_schema()
                record = {"settings": args.ddp_settings(), "resolved": args.resolved()}
                print(json.dumps(record) + "\\n", end="", flush=True)
            """,
        }
    )
    # The program has been asked: now fdl knows that it takes the launch's own flags as well.
    assert forking_fdl("self", "schema", "refresh").exit == 0
    assert "--simulate-ms" in forking_fdl("p", "--help").out
    done = forking_fdl("p")
    assert done.exit == 0, done.err
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert first == second
    # One machine is no setting that a program could act upon, but it is told.
    assert first["settings"] == {**EVERYTHING, "nodes": "1"}
    assert first["resolved"]["mode"]["origin"].startswith("fdl.yml:2:")
    assert first["resolved"]["simulate_ms"]["field"] == "ddp.simulate_ms"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), 3),
        (("two",), 2),
        (("two", "--ranks", "4"), 4),
        (("two", "--ranks=5", "--ranks", "6"), 6),
        (("one",), None),
        (("one", "--ranks", "2"), 2),
    ],
)
def test_typed_beats_preset_beats_manifest(planned, words, expected):
    manifest = """
        entry: python main.py
        ddp: {ranks: 3}
        commands: {two: {ddp: {ranks: 2}}, one: {ddp: {ranks: 1}}}
    """
    plan = planned(manifest, *words)
    assert (plan["ranks"] or {}).get("here") == expected
    assert settings_of(plan)["ranks"] == (expected or 1)


def test_the_launch_shows_where_each_option_of_it_comes_from(planned):
    manifest = "entry: python main.py\nddp: {ranks: 2, max_restarts: 5}\ntraining: {epochs: 3}\n"
    plan = planned(manifest, "--max-restarts", "1", "--x")
    assert options(plan)[:4] == [
        "--nproc-per-node=2",
        "--standalone",
        "--local-addr=127.0.0.1",
        "--max-restarts=1",
    ]
    shown = [
        (plan["argv"][one["index"] : one["index"] + one["count"]], one["field"], one["origin"])
        for one in plan["flags"]
    ]
    assert shown == [
        (["--nproc-per-node=2"], "ddp.ranks", "train/fdl.yml:2:14"),
        (["--max-restarts=1"], "ddp.max_restarts", "command line"),
        (["--epochs", "3"], "training.epochs", "train/fdl.yml:3:20"),
    ]
    assert plan["argv"][6:] == ["--", "main.py", "--epochs", "3", "--x"]
    # What fdl acts upon is no argument of the program any more.
    assert plan["typed"] == 1


def test_several_machines_meet_where_they_are_told(planned):
    plan = planned("entry: python main.py\nddp: {nodes: '1:2', rdzv: gpu1:29400}\n", "--ranks", "2")
    assert options(plan) == [
        "--nproc-per-node=2",
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=gpu1:29400",
        "--rdzv-id=train",
        "--max-restarts=3",
    ]
    assert plan["ranks"]["nodes"] == [1, 2]
    assert plan["env"]["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    typed = planned("entry: python main.py\n", "--nodes", "2", "--rdzv=gpu1:29400")
    assert options(typed)[:2] == ["--nproc-per-node=1", "--nnodes=2"]
    assert typed["argv"][-1] == "main.py"


LAUNCHES = {
    "ranks": ("--ranks", "1"),
    "nodes": ("--nodes", "2"),
    "rdzv": ("--rdzv", "127.0.0.1:29400"),
    "max_restarts": ("--max-restarts", "0"),
}
TAKES = {
    "nothing is known": "",
    "strict, none of them": "schema: {strict: true, options: {log: {type: string}, "
    "epochs: {type: int}}}\n",
    "all of them": "schema: {strict: true, options: {ranks: {type: string}, nodes: {type: string}, "
    "rdzv: {type: string}, max-restarts: {type: int}, log: {type: string}, epochs: {type: int}}}\n",
}


@pytest.mark.parametrize("known", TAKES)
@pytest.mark.parametrize(
    ("place", "spelling"),
    [
        pytest.param(place, spelling, marks=() if (place, spelling) in often else pytest.mark.slow)
        for often in [{("command", "two words"), ("root", "one word"), ("preset", "manifest")}]
        for place in ("command", "root", "preset")
        for spelling in ("two words", "one word", "manifest")
    ],
)
def test_every_setting_of_a_launch_reaches_torchrun_whatever_the_program_takes(
    project, fdl, known, place, spelling
):
    torch_run = pytest.importorskip("torch.distributed.run")
    entry = f"entry: python main.py\n{TAKES[known]}"
    typed = [word for pair in LAUNCHES.values() for word in pair]
    if spelling == "one word":
        typed = ["=".join(pair) for pair in LAUNCHES.values()]
    elif spelling == "manifest":
        values = ", ".join(f"{key}: '{pair[1]}'" if key == "rdzv" else f"{key}: {pair[1]}"
                           for key, pair in LAUNCHES.items())  # fmt: skip
        entry, typed = f"{entry}ddp: {{{values}}}\n", []
    preset = "commands: {p: {training: {epochs: 3}}}\n"
    if place == "root":
        project({"fdl.yml": entry + preset})
        words = ["p"]
    else:
        own = entry + preset if place == "preset" else entry
        project({"fdl.yml": "commands: {train: }", "train/fdl.yml": own})
        words = ["train", "p"] if place == "preset" else ["train"]
    done = fdl("-n", "--json", *words, *typed, "--log=x")
    assert done.exit == 0, done.err
    argv = json.loads(done.out)["argv"]
    told = torch_run.parse_args(argv[2:])
    assert (told.nproc_per_node, told.nnodes, told.max_restarts) == ("1", "2", 0)
    assert told.rdzv_endpoint == "127.0.0.1:29400"
    assert told.training_script == "main.py"
    assert told.training_script_args[-1] == "--log=x"
    # A program that declares them gets them, too; any other does not.
    kept = any(word.startswith("--rdzv") for word in told.training_script_args)
    assert kept is (known == "all of them")


@each_row(
    ("entry", "end"),
    [
        ("python main.py --fast", ["--", "main.py", "--fast"]),
        ("python3.11 -u main.py", ["--", "main.py"]),
        ("python -m pkg.main --fast", ["--module", "--", "pkg.main", "--fast"]),
        ("python -O -X utf8 m.py", ["--no-python", "--", "python", "-O", "-X", "utf8", "m.py"]),
        ("python -W error -m pkg", ["--no-python", "--", "python", "-W", "error", "-m", "pkg"]),
    ],
)
def test_a_python_program_is_started_with_its_flags_and_arguments(entry, end):
    program = torchrun.read(entry.split())
    assert program is not None
    assert program.started([]) == [entry.split()[0], *START[1:], *end]


@pytest.mark.parametrize(
    "entry",
    [
        "sh main.sh",
        "python -c pass",
        "python",
        "python -",
        "python -um main",
        "uv run python main.py",
        "python -m",
    ],
)
def test_what_is_no_python_program_is_not_started_in_ranks(refused, planned, entry):
    assert torchrun.read(entry.split()) is None
    said = refused(f"entry: {entry}\nddp: {{ranks: 2}}\n")
    assert said.startswith("error: train/fdl.yml:1:8: `ddp.ranks: 2` (train/fdl.yml:2:14) cannot")
    assert f"`{entry}`" in said
    # A flag of this name is that program's own.
    assert planned(f"entry: {entry}\n", "--ranks", "2")["argv"][-2:] == ["--ranks", "2"]


@pytest.mark.parametrize(
    ("ddp", "words", "said"),
    [
        ("{nodes: 2}", (), "error: train/fdl.yml:2:14: `ddp.nodes: 2` needs `rdzv`"),
        ("{rdzv: 'a:1'}", (), "error: train/fdl.yml:2:13: `ddp.rdzv: a:1` has no effect without"),
        ("{ranks: 2}", ("--nodes", "2"), "error: --nodes 2 needs `rdzv`"),
        (
            "{nodes: 2, rdzv: 'a:1', elastic: true}",
            (),
            "error: train/fdl.yml:2:14: `ddp.nodes: 2` contr",
        ),
        ("{ranks: 1, elastic: true}", ("--rdzv", "a:1"), "error: --rdzv a:1 contradicts `elastic`"),
        (
            "{ranks: 2}",
            ("--nodes", "two"),
            "error: --nodes takes a whole number from 1, or a range",
        ),
        ("{ranks: 2}", ("--nodes",), "error: --nodes takes a whole number from 1, or a range"),
        ("{ranks: 2}", ("--rdzv", "a"), "error: --rdzv takes a host and a port, not `a`"),
        ("{ranks: 2}", ("--max-restarts", "x"), "error: --max-restarts takes a whole number"),
        ("{}", ("--ranks", "0"), "error: --ranks takes `auto` or a whole number from 1, not `0`"),
        ("{}", ("--ranks",), "error: --ranks takes `auto` or a whole number from 1\n"),
        ("{mode: solo-1}", ("--ranks", "2"), "error: --ranks 2 contradicts `solo-1`"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(refused, ddp, words, said):
    assert refused(f"entry: python main.py\nddp: {ddp}\n", *words).startswith(said)


def test_a_flag_of_the_same_name_stays_a_program_s_own(project, fdl):
    project(
        {
            "fdl.yml": "commands: {report: }",
            "report/fdl.yml": "entry: python main.py\n",
            "report/main.py": SAY,
        }
    )
    done = fdl("report", "--nodes", "5", "--mode", "fast", "--max-restarts", "2")
    variables, argv = json.loads(done.out)
    assert argv == ["--nodes", "5", "--mode", "fast", "--max-restarts", "2"]
    assert variables[4] is None


def test_a_program_known_to_take_none_is_not_given_any(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: python main.py
                ddp: {policy: async, timeline: true}
                schema: {strict: true, options: {timeline: {type: bool}}}
            """,
            "train/main.py": SAY,
        }
    )
    done = fdl("-n", "--json", "train", "--ranks", "2", "--max-restarts", "0")
    assert done.exit == 0, done.err
    plan = json.loads(done.out)
    assert plan["argv"][-2:] == ["main.py", "--timeline"]
    assert "the program does not declare --policy: FLODL_DDP tells it" in plan["notes"]
    assert settings_of(plan)["policy"] == "async"
    assert "unknown option `--rank`" in fdl("train", "--rank", "2").err


@pytest.mark.parametrize(
    ("ddp", "words", "expected"),
    [
        ("{policy: async, backend: cpu}", "--mode nccl-sync", []),
        ("{mode: cpu-async}", "--policy sync", []),
        ("{policy: async, backend: cpu}", "--backend nccl", ["--policy", "async"]),
        ("{policy: async}", "--mode fast", ["--policy", "async"]),
    ],
)
def test_a_typed_mode_replaces_what_says_the_same(planned, ddp, words, expected):
    typed = words.split()
    plan = planned(f"entry: python main.py\nddp: {ddp}\n", *typed)
    left = [one for one in plan["argv"] if one != "--backend" or "nccl" in typed]
    if typed[0] == "--backend":
        left = [one for one in left if one not in ("--backend", "cpu")]
        typed = ["nccl"]
    assert left == ["python", "main.py", *expected, *typed]


@each_row(
    ("environ", "found"),
    [
        ({}, False),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, True),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "4294967291"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "4294967280"}, False),
        (TASK | {"SLURM_STEP_ID": "4294967279"}, True),
        (TASK | {"SLURM_STEP_ID": "4294967295"}, True),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, True),
        ({"JOB_COMPLETION_INDEX": "1"}, False),
    ],
)
def test_fdl_and_the_framework_agree_on_who_was_launched(environ, found):
    detect = pytest.importorskip("flodl.ranks.launch.launcher").detect
    assert (launcher(environ) != "") is found
    assert (detect({**environ, "SLURM_NODELIST": "gpu1"}) is not None) is found


def test_inside_of_a_launch_nothing_is_launched(planned):
    env = {"RANK": "1", "WORLD_SIZE": "2"}
    plan = planned("entry: python main.py\nddp: {ranks: 2}\n", env=env)
    assert (plan["argv"], plan["ranks"]) == (["python", "main.py"], None)
    assert plan["notes"] == ["RANK=1 is set: somebody else starts the ranks, so this starts once"]
    # How machines would meet is nobody's question then.
    assert planned("entry: python main.py\nddp: {nodes: 2}\n", env=env)["ranks"] is None
    # Also there, `--ranks` is not the program's.
    assert planned("entry: python main.py\n", "--ranks", "2", env=env)["argv"][1:] == ["main.py"]


def test_elastic_ranks_are_started_by_the_program(planned):
    plan = planned("entry: python main.py\nddp: {ranks: 2, elastic: true, min_ranks: 1}\n")
    assert (plan["argv"][:2], plan["ranks"]) == (["python", "main.py"], None)
    assert plan["notes"] == ["elastic: the program starts its ranks itself"]
    said = json.loads(plan["env"]["FLODL_DDP"])
    assert said == {"ranks": 2, "elastic": True, "min_ranks": 1}
    typed = planned("entry: python main.py\n", "--elastic", "--ranks", "3", "--x")
    assert (typed["argv"][1:], typed["ranks"]) == (["main.py", "--x"], None)
    assert json.loads(typed["env"]["FLODL_DDP"]) == {"ranks": 3, "elastic": True}


@pytest.mark.parametrize(
    ("ddp", "env", "expected"),
    [
        ("{ranks: 2}", {"OMP_NUM_THREADS": "7"}, None),
        ("{ranks: 2, simulate_ms: [4, 10]}", {}, "1"),
        ("{ranks: 1000}", {}, "1"),
    ],
)
def test_threads_are_shared_unless_somebody_has_said_how_many(planned, ddp, env, expected):
    plan = planned(f"entry: python main.py\nddp: {ddp}\n", env={"OMP_NUM_THREADS": "", **env})
    assert plan["env"].get("OMP_NUM_THREADS") == expected
    assert any("OMP_NUM_THREADS" in note for note in plan["notes"]) is (expected is not None)


def test_the_manifest_can_say_how_many_threads(planned, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plan = planned("entry: python main.py\nddp: {ranks: 2}\nenv: {OMP_NUM_THREADS: 3}\n")
    assert plan["env"]["OMP_NUM_THREADS"] == "3"


def test_auto_is_one_rank_for_each_of_several_gpus(planned, tmp_path):
    manifest = "entry: python main.py\nddp: {ranks: auto}\n"
    two = nvidia(tmp_path / "two", [card("6.1", bus=1), card("12.0", bus=2)])
    plan = planned(manifest, env=two)
    assert options(plan)[0] == "--nproc-per-node=2"
    assert len(plan["ranks"]["gpus"]) == 2
    hidden = planned(manifest, env={**two, "CUDA_VISIBLE_DEVICES": "1"})
    assert (hidden["ranks"], hidden["argv"]) == (None, ["python", "main.py"])
    assert hidden["notes"] == ["ranks auto: there is one GPU here, so this starts once"]
    shared = planned("entry: python main.py\nddp: {ranks: 3}\n", env=two)
    assert "there are 3 ranks and 2 GPUs: each rank needs one of its own" in shared["notes"]


def test_solo_leaves_one_gpu_and_forgets_the_ranks(planned, refused, tmp_path):
    manifest = """
        entry: python main.py
        ddp: {ranks: 2, simulate_ms: [4, 10]}
        commands: {alone: {ddp: {mode: solo-1}}, none: {ddp: {mode: solo-2}}}
    """
    two = nvidia(tmp_path / "two", [card("6.1", bus=1), card("12.0", bus=2)])
    plan = planned(manifest, "alone", env=two)
    assert plan["argv"] == ["python", "main.py", "--mode", "solo-1"]
    assert plan["env"]["CUDA_VISIBLE_DEVICES"] == "1"
    assert settings_of(plan) == {"mode": "solo-1", "ranks": 1}
    typed = planned("entry: python main.py\n", "--mode", "solo-0", env=two)
    assert typed["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    narrowed = {**two, "CUDA_VISIBLE_DEVICES": "1,0"}
    assert planned(manifest, "alone", env=narrowed)["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    said = refused(manifest, "none", env=two)
    assert "train/fdl.yml:3:61: `ddp.mode: solo-2` names a device that is not there" in said


def test_a_container_gets_the_launch_inside(project, tmp_path):
    project({"fdl.yml": "entry: python main.py\ndocker: dev\ncommands:\n  p: {ddp: {ranks: 2}}\n"
             "  a: {ddp: {ranks: auto}}\n"})  # fmt: skip
    done = outside_container("-n", "--json", "p", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    launch = json.loads(done.stdout)["launch"]
    assert launch[:4] == ["docker", "compose", "run", "--rm"]
    inner = "python -m torch.distributed.run --nproc-per-node=2 --standalone"
    assert inner in launch[-1]
    assert launch[-1].endswith(" main.py")
    assert {"FLODL_DDP", "OMP_NUM_THREADS"} <= set(launch)
    # What GPUs there are inside of a container cannot be seen from outside.
    two = nvidia(tmp_path / "two", [card("6.1", bus=1), card("12.0", bus=2)])
    done = outside_container("-n", "--json", "a", cwd=tmp_path, env=two)
    assert json.loads(done.stdout)["launch"][-1].endswith("python main.py")


def test_secrets_of_the_section_stay_secret(project, fdl):
    settings = "{nodes: 2, ranks: 2, rdzv: !secret 'inner-host:29400'}"
    project({"fdl.yml": f"entry: python main.py\ncommands: {{p: {{ddp: {settings}}}}}\n"})
    for words in (("-n", "p"), ("-n", "--json", "p"), ("plan", "p"), ("plan", "p", "--json")):
        done = fdl(*words)
        assert done.exit == 0, done.err
        assert "inner-host" not in done.out
    project(
        {"fdl.yml": "entry: python main.py\ncommands: {p: {ddp: {rdzv: !secret 'inner-host:1'}}}"}
    )
    assert "inner-host" not in fdl("p").err


@each_row(
    ("settings", "secret"),
    [
        ("{ranks: 2}", False),
        ("{ranks: 2, policy: !secret sync}", True),
        ("{ranks: 2, partition_ratios: [1, !secret 2]}", True),
    ],
)
def test_the_variable_of_the_settings_is_as_secret_as_they_are(project, fdl, settings, secret):
    project({"fdl.yml": f"entry: python main.py\ncommands: {{p: {{ddp: {settings}}}}}\n"})
    plan = json.loads(fdl("-n", "--json", "p").out)
    (one,) = (one for one in plan["variables"] if one["name"] == "FLODL_DDP")
    assert one["secret"] is secret
    assert ("<secret>" in one["value"]) is secret


def test_the_program_s_own_python_is_the_one_of_torchrun(project, fdl, tmp_path):
    python = executable(
        tmp_path / ".venv/bin/python", f'#!/bin/sh\necho mine\nexec {sys.executable} "$@"\n'
    )
    project({"fdl.yml": "entry: python main.py\ncommands: {p: {ddp: {ranks: 2}}}", "main.py": SAY})
    done = fdl("p")
    assert done.exit == 0, done.err
    assert done.out.splitlines()[0] == "mine"
    assert python.exists()


@pytest.mark.slow
def test_a_new_project_trains_in_two_ranks_and_the_record_proves_it(fdl):
    assert fdl("init", "demo", "--native").exit == 0
    done = fdl("train", "quick", "--ranks", "2", "--epochs", "1", "--live", "0", cwd="demo")
    assert done.exit == 0, done.err
    assert done.out.count("on held-out digits") == 1
    proved = fdl("runs", "verify", "--json", cwd="demo")
    assert proved.exit == 0, proved.out + proved.err
