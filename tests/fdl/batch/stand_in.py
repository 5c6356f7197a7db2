"""A stand-in for a SLURM cluster: sbatch, srun, squeue, sacct, scancel and scontrol.

One program under six names. The queue is a folder, ``$STAND_IN``, and jobs are processes of this
machine. As with SLURM, batch files have ``#SBATCH`` lines, arrays become jobs with numbers, tasks
get a signal before the time limit and can be queued again, and a job that is canceled is told so.
Tests write files into the queue: jobs wait while ``hold`` is there, ``warn`` sends that signal now,
``preempt`` takes the node away, and ``cancel`` does so with ``PreemptMode=CANCEL``. A job is
suspended while ``suspend`` is there. With ``forget``, squeue does not know jobs that have ended;
with ``accounting``, sacct does. A minute of a time limit lasts ``$STAND_IN_MINUTE`` seconds.

What it does was compared with SLURM 22.05 by the tests that run against both.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

QUEUE = Path(os.environ.get("STAND_IN", "."))
ACTIVE = ("PENDING", "RUNNING", "SUSPENDED")
PROGRAMS = ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol")


def installed(folder: Path, minute: float = 60.0) -> dict[str, str]:
    """Put the programs into a folder; the variables with which they are found."""
    programs, queue = folder / "bin", folder / "queue"
    programs.mkdir(parents=True)
    queue.mkdir()
    for name in PROGRAMS:
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -I {__file__} {name} "$@"\n')
        file.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "STAND_IN": str(queue), "STAND_IN_MINUTE": str(minute)}


def read(id: str) -> dict:
    return json.loads((QUEUE / f"{id}.json").read_text())


def write(id: str, **changes: object) -> dict:
    file = QUEUE / f"{id}.json"
    with (QUEUE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes change a job
        job = {**(json.loads(file.read_text()) if file.exists() else {}), **changes}
        new = file.with_name(f"{id}.new")
        new.write_text(json.dumps(job))
        new.replace(file)
    return job


def jobs() -> list[str]:
    return sorted(path.stem for path in QUEUE.glob("*.json"))


def sbatch(file: str) -> int:
    text = Path(file).read_text()
    given = dict(re.findall(r"(?m)^#SBATCH --([\w-]+)(?:=(.*))?$", text))
    if given.get("partition", "cpu") not in ("cpu", "gpu"):
        print(f"sbatch: error: invalid partition specified: {given['partition']}", file=sys.stderr)
        print("sbatch: error: Batch job submission failed: Invalid partition", file=sys.stderr)
        return 1
    number = 1 + max((int(one.partition("_")[0]) for one in jobs()), default=100)
    last, limit = re.fullmatch(r"0-(\d+)%(\d+)", given.get("array", "0-0%1")).groups()
    ids = [f"{number}_{one}" for one in range(int(last) + 1)] if "array" in given else [f"{number}"]
    (QUEUE / f"{number}.sh").write_text(text)
    for id in ids:
        write(id, state="PENDING", options=given, limit=int(limit), restarts=0, tasks=[])
        subprocess.Popen(
            [sys.executable, "-I", __file__, "controller", id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(QUEUE / f"{id}.controller").open("w"),
            start_new_session=True,
        )
    print(f"Submitted batch job {number}")
    return 0


def controller(id: str) -> int:
    """Run one job, again and again as long as somebody queues it again."""
    number, _, place = id.partition("_")
    while True:
        while (QUEUE / "hold").exists() or not has_room(id):
            if read(id)["state"] not in ACTIVE:
                return 0
            time.sleep(0.05)
        job = write(id, state="RUNNING", tasks=None, again=False)
        options = job["options"]
        environ = {
            **os.environ,
            "SLURM_JOB_ID": number if not place else str(int(number) * 100 + int(place)),
            "SLURM_JOB_NUM_NODES": options.get("nodes", "1"),
            "SLURM_NTASKS": options.get("nodes", "1"),
            "SLURM_JOB_NODELIST": f"127.0.0.[1-{options.get('nodes', '1')}]",
            "SLURM_RESTART_COUNT": str(job["restarts"]),
            "STAND_IN_JOB": id,
        }
        if place:
            environ |= {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": place}
        if not job["restarts"]:
            del environ["SLURM_RESTART_COUNT"]
        script = subprocess.Popen(["bash", str(QUEUE / f"{number}.sh")], env=environ)
        code = attend(id, script, options)
        job = read(id)
        if job["state"] == "RUNNING" and job["again"]:
            write(id, state="PENDING", restarts=job["restarts"] + 1)
            continue
        if job["state"] == "RUNNING":
            write(id, state="COMPLETED" if code == 0 else "FAILED")
        return 0


def has_room(id: str) -> bool:
    job = read(id)
    others = [one for one in jobs() if one != id and one.startswith(f"{id.partition('_')[0]}_")]
    earlier = [one for one in others if read(one)["state"] == "RUNNING"]
    first = min([one for one in (*others, id) if read(one)["state"] == "PENDING"], default=id)
    return len(earlier) < job["limit"] and (first == id or "_" not in id)


def attend(id: str, script: subprocess.Popen, options: dict[str, str]) -> int:
    """Wait for a batch script; warn its tasks before the time limit and kill them at it."""
    minute = float(os.environ["STAND_IN_MINUTE"])
    limit = time.monotonic() + float(options.get("time", "60")) * minute
    name, _, notice = options["signal"].partition("@")
    warned = limit - int(notice) * minute / 60
    told = False
    while script.poll() is None:
        now = time.monotonic()
        if (now >= warned and not told) or taken("warn"):
            told = True
            send(id, getattr(signal, f"SIG{name}"))
        if taken("preempt"):
            write(id, again=True)
            send(id, signal.SIGTERM)
        if taken("cancel"):
            write(id, state="PREEMPTED")
            send(id, signal.SIGKILL)
        suspend(id)
        if now >= limit:
            write(id, state="TIMEOUT")
            send(id, signal.SIGKILL)
        time.sleep(0.02)
    return script.returncode


def suspend(id: str) -> None:
    """Stop or continue the tasks, which have no chance to notice."""
    states = {True: ("RUNNING", "SUSPENDED"), False: ("SUSPENDED", "RUNNING")}
    now, then = states[(QUEUE / "suspend").exists()]
    if read(id)["state"] == now:
        write(id, state=then)
        send(id, signal.SIGSTOP if then == "SUSPENDED" else signal.SIGCONT)


def taken(name: str) -> bool:
    """Whether a test asks for something to happen now, with a file of this name."""
    with suppress(FileNotFoundError):
        (QUEUE / name).unlink()
        return True
    return False


def send(id: str, number: int) -> None:
    """Signal the tasks of a job; of one that has just begun, once srun has started them."""
    while (tasks := read(id)["tasks"]) is None:
        time.sleep(0.02)
    for pid in tasks:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def srun(*words: str) -> int:
    names, rest = {}, list(words)
    kills = False
    while rest[0].startswith("--"):
        flag = rest.pop(0)
        kills = kills or flag == "--kill-on-bad-exit=1"
        if flag in ("--output", "--error"):
            names[flag] = rest.pop(0)
    id = os.environ["STAND_IN_JOB"]
    number, _, place = id.partition("_")
    started = []
    for rank in range(int(os.environ["SLURM_NTASKS"])):
        streams = []
        for flag in ("--output", "--error"):
            file = names[flag].replace("%j", number).replace("%A", number)
            file = file.replace("%a", place).replace("%t", str(rank))
            streams.append(Path(file).open("ab"))  # noqa: SIM115
        task = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank), "SLURM_LOCALID": "0"}
        started.append(
            subprocess.Popen(rest, env={**os.environ, **task}, stdout=streams[0], stderr=streams[1])
        )
    write(id, tasks=[one.pid for one in started])
    while kills and any(one.poll() is None for one in started):
        if any(one.poll() for one in started):
            send(id, signal.SIGTERM)
            break
        time.sleep(0.02)
    return max(one.wait() % 256 for one in started)


def squeue(*words: str) -> int:
    given = dict(word.partition("=")[::2] for word in words)
    known = [id for id in jobs() if read(id)["state"] in ACTIVE or not (QUEUE / "forget").exists()]
    if "--jobs" in given:
        known = [id for id in known if id.partition("_")[0] in given["--jobs"].split(",")]
        if not known:
            print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
            return 1
    for id in known:
        state = read(id)["state"].partition(" ")[0]
        if state in ACTIVE or given.get("--states") == "all":
            reason = {"PENDING": "Resources", "SUSPENDED": "None"}.get(state, "node1")
            if given["--format"].endswith("%R") and state == "PENDING":
                reason = f"({reason})"
            print(f"{id}|{state}|{reason}")
    return 0


def sacct(*words: str) -> int:
    if not (QUEUE / "accounting").exists():
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    wanted = [word for flag, word in pairwise(words) if flag == "-j"]
    for id in jobs():
        if id.partition("_")[0] in wanted:
            print(f"{id}|{read(id)['state']}")
    return 0


def scancel(*ids: str) -> int:
    for id in jobs():
        if {id, id.partition("_")[0]} & set(ids) and read(id)["state"] in ACTIVE:
            write(id, state="CANCELLED by 0")
            send(id, signal.SIGTERM)
            limit = time.monotonic() + 5
            while time.monotonic() < limit and any(map(alive, read(id)["tasks"])):
                time.sleep(0.05)
            send(id, signal.SIGKILL)
    return 0


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def scontrol(word: str, id: str) -> int:
    assert word == "requeue"
    write(id, again=True)
    return 0


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](*sys.argv[2:]))
