"""``fdl runs tell``: what is sent to a training, and what goes wrong on the way.

A thread stands for the training here; tests/flodl/train/test_acts.py tells real ones.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fdl.base.errors import FdlError, UsageError
from fdl.base.run_record import name_for
from fdl.runs.follow import Act, parse, tell
from fdl.runs.run import read
from tests.fdl.run_directory.trails import trail
from tests.rows import each_row

NAME = "2026-01-31T10-00-00"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")


class Training:
    """Listens like the training of the run below a folder of runs, and gives prepared answers."""

    def __init__(self, folder: Path, runs: Path) -> None:
        self.path = folder / name_for(runs / NAME)
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        held = []  # connections without an answer stay open
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                break
            with channel.makefile() as stream:
                self.asked.append(json.loads(stream.readline()))
            if self.answer is None:
                held.append(channel)
            else:
                channel.sendall(json.dumps(self.answer).encode() + b"\n")
                channel.close()
        for channel in held:
            channel.close()


@contextmanager
def folder_for_sockets():
    """A folder of the name that fdl expects; paths of sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="fdl-") as folder:
        own = Path(folder, "flodl")
        own.mkdir(0o700)
        yield own


@pytest.fixture
def private():
    with folder_for_sockets() as own:
        yield own


@pytest.fixture
def training(runs, private, monkeypatch):
    monkeypatch.chdir(runs.parent)
    stands = Training(private, runs)
    yield stands
    stands.close()


@pytest.fixture
def runs(project):
    return project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"


def running(runs: Path, **record: object) -> Path:
    own = {"pid": os.getpid(), "host": socket.gethostname()}
    return trail(runs / NAME, "running", **{**own, **record})


def test_an_act_is_sent_and_its_answer_printed(runs, fdl, training):
    running(runs, socket=str(training.path))
    training.answer = {"ok": True, "act": "lr", "step": 7, "value": 0.01, "old": 0.1} | {
        "text": "lr is 0.01 from step 8 on, before it was 0.1"
    }
    session = fdl("runs", "tell", "last", "lr=1e-2")
    assert (session.exit, session.err) == (0, "")
    assert session.out == f"out/{NAME}: lr is 0.01 from step 8 on, before it was 0.1\n"
    assert training.asked == [{"flodl": 1, "act": "lr", "key": "", "value": "1e-2"}]
    document = json.loads(fdl("runs", "tell", NAME, "set", "beta=2", "--json").out)
    assert (document["run"], document["step"], document["old"]) == (NAME, 7, 0.1)
    assert training.asked[-1] == {"flodl": 1, "act": "set", "key": "beta", "value": "2"}


def test_an_answer_may_be_waited_for_without_end(runs, fdl, training):
    running(runs, socket=str(training.path))
    training.answer = {"ok": True, "act": "pause", "step": 7, "text": "it waits"}
    session = fdl("runs", "tell", "last", "pause", "--timeout", "inf")
    assert (session.exit, session.err) == (0, "")
    for wrong in ("nan", "0", "-1"):
        session = fdl("runs", "tell", "last", "pause", f"--timeout={wrong}")
        assert session.exit != 0
        assert "--timeout takes more than 0 seconds" in session.err, wrong


def test_a_refusal_is_an_error_with_exit_code_1(runs, fdl, training):
    running(runs, socket=str(training.path))
    training.answer = {"ok": False, "error": "'x' is not a live setting of this program"}
    session = fdl("runs", "tell", "last", "set", "x=2")
    assert (session.exit, session.out) == (1, "")
    assert f"error: out/{NAME}: 'x' is not a live setting" in session.err


def test_an_answer_that_comes_before_the_request_is_read(runs, private, monkeypatch):
    path = private / name_for(runs / NAME)
    found = read(running(runs, socket=str(path)))
    assert found is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def refuse(_channel: socket.socket) -> None:
            """Between connecting and sending, the training answers and closes."""
            channel, _ = listener.accept()
            channel.sendall(b'{"ok": false, "error": "not for you"}\n')
            channel.close()

        monkeypatch.setattr("fdl.runs.follow.peer", refuse)
        with pytest.raises(FdlError, match="not for you"):
            tell(found, Act("stop"), 10)


def test_what_cannot_be_reached_is_said_with_the_next_command(runs, fdl, private, training):
    folder = running(runs, socket=str(training.path))

    def said(**record: object) -> str:
        content = json.loads((folder / "run.json").read_text()) | record
        (folder / "run.json").write_text(json.dumps(content))
        session = fdl("runs", "tell", "last", "stop", "--timeout", "0.2")
        assert (session.exit, session.out) == (1, "")
        return session.err

    assert "has ended no step within 0.2 s" in said()
    private.chmod(0o755)
    assert "belongs to another user" in said()
    private.chmod(0o700)
    gone = private.parent / "gone/flodl"
    assert "cannot be reached" in said(socket=str(gone / training.path.name))
    assert "takes no acts" in said(socket=None)
    elsewhere = said(host="node7", socket=str(training.path))
    assert "runs on the machine node7" in elsewhere
    assert "hint: ssh node7" in elsewhere
    over = said(host=socket.gethostname(), state="complete")
    assert f"out/{NAME} is complete, so it takes no acts" in over
    assert "hint: fdl runs list --state running" in over
    assert len(training.asked) == 1


def test_a_record_cannot_send_an_act_to_a_socket_of_another_program(runs, fdl, private):
    agent = Path(private, "agent.sock")
    other = Path(private, name_for(runs / "another run"))
    link = Path(private, name_for(runs / NAME))
    link.symlink_to(agent)
    folder = running(runs)
    record = json.loads((folder / "run.json").read_text())
    for path in (agent, other, link):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(agent if path is link else path))
            listener.listen()
            listener.setblocking(False)
            (folder / "run.json").write_text(json.dumps(record | {"socket": str(path)}))
            session = fdl("runs", "tell", "last", "stop")
            assert (session.exit, session.out) == (1, "")
            assert f"out/{NAME}/run.json names {path}, which is not the socket" in session.err
            assert f"hint: fdl runs show {NAME}" in session.err
            with pytest.raises(BlockingIOError):
                listener.accept()
        agent.unlink(missing_ok=True)


@each_row(
    ("words", "act"),
    [
        (["lr=1e-4"], Act("lr", value="1e-4")),
        (["set", "lr=1e-4"], Act("lr", value="1e-4")),
        (["set", "note=a=b"], Act("set", "note", "a=b")),
        (["checkpoint"], Act("checkpoint")),
        (["stop"], Act("stop")),
    ],
)
def test_words_are_read_as_acts(words, act):
    assert parse(words) == act


@each_row(
    ("words", "hint"),
    [
        ([], "fdl runs tell RUN lr=1e-4"),
        (["dance"], "fdl runs tell RUN lr=1e-4"),
        (["beta=2"], "fdl runs tell RUN set beta=2"),
        (["set", "beta"], "fdl runs tell RUN lr=1e-4"),
        (["pause", "stop"], "fdl runs tell RUN lr=1e-4"),
    ],
)
def test_other_words_are_refused_with_what_to_type(words, hint):
    with pytest.raises(UsageError) as refused:
        parse(words)
    assert refused.value.hint == hint


def test_acts_are_completed(runs, fdl):
    running(runs)
    offered = fdl("__complete", "fish", "--", "runs", "tell", NAME, "").out.splitlines()
    assert [line.partition("\t")[0] for line in offered[:4]] == [
        "lr=",
        "set",
        "checkpoint",
        "pause",
    ]


def test_acts_are_shown_with_step_user_and_old_value(runs, fdl):
    acts = [
        {"step": 1200, "time": "2026-01-31T10:01:00+00:00", "act": "lr", "value": 0.01}
        | {"old": 0.1, "by": "ada"},
        {"step": 1300, "act": "dance", "detail": "unknown acts are shown"},
    ]
    folder = trail(runs / NAME)
    text = "".join(json.dumps(act) + "\n" for act in acts) + '{"step":14'
    (folder / "acts.jsonl").write_text(text)
    lines = fdl("runs", "show").out.splitlines()
    start = lines.index("Acts while it trained:")
    words = ("after step 1,200", "lr 0.1 -> 0.01", "ada, 2026-01-31T10:01:00+00:00")
    assert lines[start + 1].split() == " ".join(words).split()
    assert "after step 1,300  dance" in lines[start + 2]
    assert json.loads(fdl("runs", "show", "--json").out)["acts"] == acts
