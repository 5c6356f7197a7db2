"""Commands in containers: the docker command line, what compose is told, failures of Docker."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests import fork_server
from tests.fdl.docker_engine import WORDS_DENIED, WORDS_DOWN, WORDS_NO_GPU, Engine
from tests.fdl.programs import COUNTER
from tests.fdl.terminal import PATIENCE, Terminal, outside_container

# fdl as it runs on a machine that is no container.
OUTSIDE = """
import os, sys
from fdl.cli.entry import main
from fdl.plan.planner import Host
sys.exit(main(sys.argv[1:], Host(os.environ, in_container=False, terminal=os.isatty(0))))
"""

COMPOSE = """
    services:
      dev:
        image: x
        volumes: [".:/app/", "data:/data"]
    """


@pytest.fixture
def mount(tmp_path, tmp_path_factory):
    """Where the compose files below put the project: the container's view of its folder."""
    link = tmp_path_factory.mktemp("container") / "app"
    link.symlink_to(tmp_path)
    return link


@pytest.fixture
def engine(tmp_path_factory, mount):
    """A running Docker with one service, ``dev``."""
    return Engine(tmp_path_factory.mktemp("docker") / "engine", workdir=str(mount))


def outside(folder, engine, *args, **variables):
    """Type ``fdl ARGS`` on a machine whose Docker is ``engine``."""
    return outside_container(*args, cwd=folder, env={"PATH": engine.path, **variables})


def launch(folder, *args, terminal=False):
    """What would be started outside a container, as tokens."""
    done = outside_container("--dry-run", "--json", *args, cwd=folder, terminal=terminal)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["launch"]


@pytest.mark.case("cli", 24)
def test_a_nested_entry_starts_in_its_folder_of_the_mount(project):
    files = {
        "fdl.yml": "commands: {sub: }",
        "sub/fdl.yml": "entry: python main.py\ndocker: dev\n",
    }
    folder = project({**files, "docker-compose.yml": COMPOSE})
    tokens = launch(folder, "sub", "it's $HOME")
    assert tokens[:5] == ["docker", "compose", "run", "--rm", "-T"]
    assert tokens[-4:-1] == ["dev", "bash", "-c"]
    assert tokens[-1] == "cd /app/sub && python main.py 'it'\"'\"'s $HOME'"
    assert "FDL_PROJECT_ROOT=/app" in tokens
    (folder / "docker-compose.yml").unlink()
    tokens = launch(folder, "sub")
    assert tokens[-1].startswith("cd /workspace/sub && ")
    assert "FDL_PROJECT_ROOT=/workspace" in tokens


def test_docker_is_started_without_a_shell_from_the_projects_root(project, engine, mount):
    folder = project(
        {
            "fdl.yml": "commands: {sub: }",
            "sub/fdl.yml": "entry: python main.py\ndocker: dev\ntraining: {epochs: 2}\n",
            "sub/main.py": "import os, sys; print(os.environ['PWD'], *sys.argv[1:]); sys.exit(5)",
            "compose.yml": f"services: {{dev: {{volumes: ['.:{mount}']}}}}",
        }
    )
    done = outside(folder, engine, "-v", "sub", "a b")
    assert (done.returncode, done.stderr) == (5, "")
    assert done.stdout == f"{mount}/sub --epochs 2 a b\n"
    [call] = engine.runs()
    (run,) = folder.glob("runs/sub/*")
    assert call["env"]["FDL_RUN_DIR"] == f"{mount}/runs/sub/{run.name}"
    assert call["argv"] == [
        *["compose", "run", "-e", "FDL_RUN_DIR", "--rm", "-T"],
        *["-e", f"FDL_PROJECT_ROOT={mount}", "-e", "FDL_PLAN"],
        *["-e", "FLODL_VERBOSITY", "-e", "FLODL_COLOR"],
        *["dev", "bash", "-c"],
        f"cd {mount}/sub && python main.py --epochs 2 'a b'",
    ]
    assert call["cwd"] == str(folder)
    assert call["env"]["FLODL_VERBOSITY"] == "2"
    assert json.loads(call["env"]["FDL_PLAN"])["service"] == "dev"


def test_a_run_command_in_docker_starts_in_the_services_own_folder(project):
    folder = project(
        {
            "fdl.yml": "commands:\n  t: {run: make test, docker: dev}\n  sub:\n",
            "sub/fdl.yml": "commands: {t: {run: make test, docker: dev}}",
            "docker-compose.yml": COMPOSE,
        }
    )
    wrapper = ["docker", "compose", "run", "--rm", "-e", "FLODL_VERBOSITY", "-e", "FLODL_COLOR"]
    tokens = launch(folder, "t", "--", "x y", terminal=True)
    assert tokens == [*wrapper, "dev", "bash", "-c", "make test 'x y'"]
    tokens = launch(folder, "sub", "t", terminal=True)
    assert tokens == [*wrapper, "dev", "bash", "-c", "cd /app/sub && make test"]


def test_scripts_in_docker_end_at_a_failure_and_may_name_an_interpreter(project, engine):
    folder = project(
        {
            "fdl.yml": """
                commands:
                  lint: {docker: dev, run: "false\\necho no\\n"}
                  report: {docker: dev, run: "#!/usr/bin/env python3\\nprint(6 * 7)\\n"}
            """,
            "docker-compose.yml": COMPOSE,
        }
    )
    done = outside(folder, engine, "lint")
    assert (done.returncode, done.stdout) == (1, "")
    assert outside(folder, engine, "report").stdout == "42\n"


def test_a_preset_in_docker_announces_service_and_inner_command(project, engine):
    folder = project({"fdl.yml": "entry: echo\ndocker: dev\ncommands: {p: {training: {seed: 1}}}"})
    done = outside(folder, engine, "p")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "--seed 1\n",
        "fdl: [dev] echo --seed 1\n",
    )
    assert outside(folder, engine, "-q", "p").stderr == ""


@pytest.mark.parametrize(
    ("name", "text", "root"),
    [
        ("docker-compose.yaml", "services: {dev: {volumes: ['./:/a']}}", "/a"),
        ("compose.yml", "services: {dev: {volumes: ['.:/b:ro']}}", "/b"),
        (
            "compose.yaml",
            "services: {dev: {volumes: [{type: bind, source: ., target: /c/}]}}",
            "/c",
        ),
        ("compose.yaml", "services: {dev: {volumes: !reset ['x:/y', '.:/d']}}", "/d"),
        ("compose.yaml", "services: {dev: {volumes: ['.:/']}}", ""),
        ("compose.yaml", "x: &v ['.:/e']\nservices: {dev: {volumes: *v}}", "/e"),
        ("compose.yaml", "services: {dev: {volumes: ['./sub:/f']}}", "/workspace"),
        ("compose.yaml", "services: {other: {volumes: ['.:/g']}}", "/workspace"),
        ("compose.yaml", "services: {dev: }", "/workspace"),
        ("compose.yaml", "services: [", "/workspace"),
        ("compose.yaml", "just text", "/workspace"),
    ],
)
def test_where_the_project_is_mounted(project, name, text, root):
    folder = project(
        {"fdl.yml": "commands: {s: }", "s/fdl.yml": "entry: main\ndocker: dev\n", name: text}
    )
    assert launch(folder, "s")[-1] == f"cd {root}/s && main"


def test_a_folder_outside_the_project_cannot_run_in_its_container(project):
    folder = project(
        {
            "in/fdl.yml": "commands: {out: {path: ../out}}",
            "out/fdl.yml": "entry: main\ndocker: dev\n",
        }
    )
    done = outside_container("out", cwd=folder / "in")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{folder / 'out'} lies outside the project {folder / 'in'}" in done.stderr


def test_inside_a_container_nothing_is_wrapped(project):
    folder = project({"fdl.yml": "commands: {t: {run: echo direct, docker: dev}}"})
    code = (
        "import os; from fdl.cli.entry import main; from fdl.plan.planner import Host; "
        "main(['t'], Host(os.environ, in_container=True, terminal=False))"
    )
    done = fork_server.python("-c", code, cwd=folder, abrupt=True)
    assert done.stdout == "direct\n"


def test_inside_a_container_the_dry_run_says_what_was_skipped(project):
    folder = project({"fdl.yml": "commands: {t: {run: echo t, docker: dev}}"})
    code = (
        "import os; from fdl.cli.entry import main; from fdl.plan.planner import Host; "
        "main(['-n', 't'], Host(os.environ, in_container=True, terminal=False))"
    )
    done = fork_server.python("-c", code, cwd=folder, abrupt=True)
    assert (
        "note      docker service `dev` (fdl.yml:1:37) was skipped: this machine is a container"
        in done.stdout
    )


SKIPPED = "warning: docker service `dev` (fdl.yml:1:42) was skipped: this machine is a container"
INSIDE = (
    "import os, sys; from fdl.cli.entry import main; from fdl.plan.planner import Host; "
    "sys.exit(main(sys.argv[1:], Host(os.environ, in_container=True, terminal=False)))"
)


@pytest.mark.parametrize(
    "words",
    [
        ("t",),
        ("-n", "t"),
        ("-n", "--json", "t"),
        ("after",),
        ("-n", "after"),
        ("--jobs", "2", "t", "after"),
        ("--each", "x=1,2", "e"),
    ],
)
def test_inside_a_container_a_line_says_once_that_a_service_is_not_used(project, words):
    folder = project(
        {
            "fdl.yml": "commands: {t: {run: echo direct, docker: dev}, "
            "after: {run: echo after, needs: t}, e: }",
            "e/fdl.yml": "entry: echo\ndocker: dev\n",
        }
    )
    done = fork_server.python("-c", INSIDE, *words, cwd=folder, abrupt=True)
    assert done.returncode == 0, done.stderr
    said = SKIPPED.replace("fdl.yml:1:42", "e/fdl.yml:2:9") if "e" in words else SKIPPED
    assert [line for line in done.stderr.splitlines() if "skipped" in line] == [said]
    assert "warning" not in done.stdout


def test_the_visible_gpus_are_those_of_the_shell_in_a_container_too(project, engine):
    folder = project({"fdl.yml": "commands: {t: {run: echo, docker: dev}}", "compose.yaml": ""})
    plan = json.loads(outside(folder, engine, "-n", "--json", "t").stdout)
    assert "CUDA_VISIBLE_DEVICES" not in plan["launch"]
    told = outside(folder, engine, "-n", "--json", "t", CUDA_VISIBLE_DEVICES="1")
    launch = json.loads(told.stdout)["launch"]
    assert launch[launch.index("CUDA_VISIBLE_DEVICES") - 1] == "-e"


def test_without_docker_the_error_says_so(project):
    folder = project({"fdl.yml": "commands: {t: {run: echo, docker: dev}}", "bin/x": ""})
    done = outside_container("t", cwd=folder, env={"PATH": str(folder / "bin")})
    assert done.returncode == 1
    assert "cannot start `docker`" in done.stderr
    assert "install Docker" in done.stderr


def test_streams_and_variables_reach_the_container(project, engine):
    folder = project(
        {
            "fdl.yml": """
            env: {SEEN: "from the manifest"}
            commands:
              t: {run: cat; echo $SEEN $HIDDEN; test -t 0 && echo terminal; echo oops >&2; exit 3,
                  docker: dev}
            """,
        }
    )
    env = {**os.environ, "PATH": engine.path, "HIDDEN": "x"}
    done = fork_server.python("-c", OUTSIDE, "t", cwd=folder, env=env, stdin="typed\n", abrupt=True)
    assert done.returncode == 3
    assert (done.stdout, done.stderr) == ("typed\nfrom the manifest\n", "oops\n")


# What compose files refer to ----------------------------------------------------------------

INPUTS = ("LIBTORCH_CPU_PATH", "LIBTORCH_HOST_PATH", "CUDA_VERSION", "CUDA_TAG")


def variant(folder, arch, id="precompiled/cu128"):
    """Make a libtorch variant the one in use."""
    (folder / "libtorch" / id).mkdir(parents=True, exist_ok=True)
    (folder / "libtorch/.active").write_text(f"{id}\n")
    (folder / "libtorch" / id / ".arch").write_text(arch)
    return folder


def inputs(folder, engine, **variables):
    """The compose inputs of one run."""
    assert outside(folder, engine, "t", **variables).returncode == 0
    env = engine.runs()[-1]["env"]
    return {name: env[name] for name in INPUTS if name in env}


@pytest.fixture
def contained(project):
    return project({"fdl.yml": "commands: {t: {run: 'true', docker: dev}}"})


@pytest.mark.case("cli", 25)
@pytest.mark.parametrize(
    ("cuda", "version", "tag"),
    [("12.8", "12.8.0", "12.8"), ("12.6.3", "12.6.3", "12.6"), ("13", "13.0.0", "13.0")],
)
def test_compose_learns_the_cuda_version_of_the_active_variant(
    contained, engine, cuda, version, tag
):
    variant(contained, f"torch=2.10.0\ncuda={cuda}\narchs=7.0 8.0\n")
    assert inputs(contained, engine) == {
        "LIBTORCH_CPU_PATH": "./libtorch/precompiled/cpu",
        "LIBTORCH_HOST_PATH": "./libtorch/precompiled/cu128",
        "CUDA_VERSION": version,
        "CUDA_TAG": tag,
    }


@pytest.mark.case("cli", 25)
@pytest.mark.parametrize("arch", ["cuda=none\n", "torch=2.10.0\n", "cuda=\n"])
def test_compose_learns_no_cuda_version_of_a_cpu_variant(contained, engine, arch):
    variant(contained, arch, "builds/own-1")
    assert inputs(contained, engine) == {
        "LIBTORCH_CPU_PATH": "./libtorch/precompiled/cpu",
        "LIBTORCH_HOST_PATH": "./libtorch/builds/own-1",
    }


def test_compose_learns_the_torch_version_of_the_active_variant(contained, engine):
    variant(contained, "torch=2.13.0\ncuda=13.2\n", "precompiled/cu132")
    inputs(contained, engine)
    assert engine.runs()[-1]["env"]["TORCH_VERSION"] == "2.13.0"


def test_folders_that_compose_mounts_are_made_by_fdl_so_that_they_are_the_users(project, engine):
    folder = project(
        {
            "fdl.yml": "commands: {t: {run: 'true', docker: dev}}",
            "compose.yml": """
                services:
                  dev: {volumes: ['.:/workspace', '${LIBTORCH_CPU_PATH}:/usr/local/libtorch:ro']}
                """,
        }
    )
    assert outside(folder, engine, "--dry-run", "t").returncode == 0
    assert not (folder / "libtorch").exists()
    assert outside(folder, engine, "t").returncode == 0
    assert (folder / "libtorch/precompiled/cpu").is_dir()


def test_a_compose_file_without_libtorch_gets_no_such_folder(contained, engine):
    (contained / "compose.yml").write_text("services: {dev: {volumes: ['.:/workspace']}}")
    assert outside(contained, engine, "t").returncode == 0
    assert not (contained / "libtorch").exists()


@pytest.mark.parametrize("active", [None, "", "\n", "../../etc", "precompiled/..", "other/cpu"])
def test_without_an_active_variant_compose_learns_the_cpu_path_alone(contained, engine, active):
    if active is not None:
        variant(contained, "cuda=12.8\n")
        (contained / "libtorch/.active").write_text(active)
    assert inputs(contained, engine) == {"LIBTORCH_CPU_PATH": "./libtorch/precompiled/cpu"}


def test_what_the_user_has_set_for_compose_wins(project, engine):
    folder = project(
        {
            "fdl.yml": "env: {CUDA_TAG: '11.8'}\ncommands: {t: {run: 'true', docker: dev}}",
            ".env": "# read by compose itself\nLIBTORCH_HOST_PATH=/opt/libtorch\nbroken line\n",
        }
    )
    variant(folder, "cuda=12.8\n")
    assert inputs(folder, engine, CUDA_VERSION="11.8.1") == {
        "LIBTORCH_CPU_PATH": "./libtorch/precompiled/cpu",
        "CUDA_VERSION": "11.8.1",
        "CUDA_TAG": "11.8",
    }


def test_compose_learns_the_users_ids_unless_they_are_set(contained, engine):
    assert outside(contained, engine, "t").returncode == 0
    env = engine.runs()[-1]["env"]
    assert (env["UID"], env["GID"]) == (str(os.getuid()), str(os.getgid()))
    assert outside(contained, engine, "t", UID="7", GID="8").returncode == 0
    env = engine.runs()[-1]["env"]
    assert (env["UID"], env["GID"]) == ("7", "8")


def test_programs_on_this_machine_find_the_active_variant(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'env | grep -E \"^(LIBT|LD_|CUDA_)\"'}}"})
    clean = {"LIBTORCH": None, "LIBTORCH_PATH": None, "LD_LIBRARY_PATH": None, "CUDA_VERSION": None}
    assert not [name for name in clean if name in os.environ]
    assert fdl("t").exit == 1
    variant(folder, "cuda=12.8\n")
    path = f"{folder}/libtorch/precompiled/cu128"
    found = f"LIBTORCH={path}\nLIBTORCH_PATH={path}\n"
    assert sorted(fdl("t").out.splitlines()) == sorted(found.splitlines())
    assert fdl("t", env={"LIBTORCH": "/mine"}).out == "LIBTORCH=/mine\n"


# The terminal, signals, exit codes ----------------------------------------------------------


def test_on_a_terminal_the_container_gets_it_whole(project, engine):
    folder = project(
        {"fdl.yml": "commands: {t: {run: 'test -t 0 && test -t 1 && test -t 2 && echo whole',"
                    " docker: dev}}"}
    )  # fmt: skip
    env = {"PATH": engine.path}
    with Terminal("t", cwd=folder, env=env, program=OUTSIDE) as terminal:
        assert terminal.finish() == 0
    assert terminal.text == "whole\r\n"
    [call] = engine.runs()
    assert call["terminal"]
    assert "-T" not in call["argv"]


def test_an_exit_code_comes_through_every_layer(project, engine):
    folder = project(
        {
            "fdl.yml": """
            commands:
              outer: {run: python -m fdl inner, docker: dev}
              inner: {run: python -m fdl core}
              core: {run: exit 42}
              die: {run: kill -TERM $$, docker: dev}
            """
        }
    )
    assert outside(folder, engine, "outer").returncode == 42
    assert outside(folder, engine, "die").returncode == 143


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_reaches_the_command_in_the_container_once(project, engine, name):
    folder = project({"fdl.yml": "commands: {t: {run: exec python count.py, docker: dev}}",
                      "count.py": COUNTER})  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", OUTSIDE, "t"],
        cwd=folder,
        env={**os.environ, "PATH": engine.path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (7, f"{name}\n")


def test_after_a_second_ctrl_c_the_container_is_mentioned(project, engine):
    waits = 'trap "" INT; echo ready; while [ ! -e over ]; do sleep 0.1; done'
    folder = project({"fdl.yml": f"commands: {{t: {{run: '{waits}', docker: dev}}}}"})
    env = {"PATH": engine.path}
    with Terminal("t", cwd=folder, env=env, program=OUTSIDE) as terminal:
        terminal.read_until("ready")
        assert terminal.press_until_it_ends("\x03") == 130
    (folder / "over").touch()
    assert "docker compose ps" in terminal.text


# Failures of Docker's own -------------------------------------------------------------------

GPU = {"deploy": {"resources": {"reservations": {"devices": [{"capabilities": ["gpu"]}]}}}}


def test_a_daemon_that_does_not_run(contained, engine):
    engine.set(daemon="down")
    done = outside(contained, engine, "t")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{WORDS_DOWN}\nhint: Docker is not running: ")


def test_a_socket_that_is_not_for_us(contained, engine):
    engine.set(daemon="denied")
    done = outside(contained, engine, "t")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{WORDS_DENIED}\nhint: your user may not talk to Docker: ")


def test_a_docker_without_compose(contained, engine):
    engine.set(plugin=False)
    done = outside(contained, engine, "t")
    assert done.returncode == 125
    assert done.stderr.startswith("unknown flag: --rm\nhint: install the compose plugin")


def test_a_service_that_does_not_exist(project, engine):
    folder = project(
        {
            "fdl.yml": "commands: {t: {run: 'true', docker: dve}}",
            "compose.yml": "services: {dev: {}, cuda: {}}",
        }
    )
    done = outside(folder, engine, "t")
    assert (done.returncode, done.stderr) == (
        1,
        "no such service: dve\nhint: did you mean `docker: dev`? the compose file has `dev`, "
        "`cuda` (fdl.yml:1:21)\n",
    )


@pytest.mark.parametrize("wish", [{"runtime": "nvidia"}, {"gpus": [{"count": -1}]}, GPU])
def test_a_gpu_without_the_nvidia_runtime(contained, engine, wish):
    engine.set(services={"dev": wish})
    done = outside(contained, engine, "t")
    assert done.returncode == 1
    assert WORDS_NO_GPU in done.stderr
    assert "hint: service `dev` asks for an NVIDIA GPU" in done.stderr
    assert "NVIDIA Container Toolkit" in done.stderr


def test_a_command_that_fails_by_itself_gets_no_advice(project, engine):
    folder = project(
        {"fdl.yml": "commands: {t: {run: 'echo no >&2; exit 1', docker: dev},"
                    " u: {run: exit 3, docker: dev}, v: {run: 'true', docker: dev}}"}
    )  # fmt: skip
    engine.set(services={"dev": GPU}, runtimes=["nvidia"])
    assert outside(folder, engine, "v").returncode == 0
    assert outside(folder, engine, "u").returncode == 3
    assert engine.questions() == []
    done = outside(folder, engine, "t")
    assert (done.returncode, done.stderr) == (1, "no\n")
    assert engine.questions() == ["events"]


def test_cwd_and_arguments_reach_the_container(project):
    folder = project(
        {
            "fdl.yml": """
                commands:
                  t: {run: 'echo "$n" "$@"', docker: dev, cwd: src,
                      args: {n: 1, word: {positional: true}}}
                """,
            "src/x": "",
            "compose.yaml": COMPOSE,
        }
    )
    *wrapper, inner = launch(folder, "t", "two words")
    assert inner == 'cd /app/src && set -- \'two words\'\necho "$n" "$@"'
    assert [wrapper[place + 1] for place, one in enumerate(wrapper) if one == "-e"][:2] == [
        "word",
        "n",
    ]
