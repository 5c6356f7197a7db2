"""A training on a terminal: what its screen shows at each moment, and how it leaves it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from textwrap import dedent

import pytest

from tests import fork_server
from tests.flodl.terminal_session import DRAWN_EACH_STEP, ROOT, Session, last

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")

# Four batches of three per epoch; every step waits at the gate.
TRAINING = DRAWN_EACH_STEP + dedent(
    """
    import logging, time
    from pathlib import Path
    import torch
    from flodl import Monitor, RunDirectory, Trainer, entry, record_scalar
    from flodl.train.observers import reporting
    from tests.flodl.train.programs import line, network, sgd, squared_error

    reporting._SERIES_PERIOD = 0.0

    def train_fn(model, batch):
        gate()
        record_scalar("half", 0.5)
        return squared_error(model, batch)

    def evaluate(model):
        gate()
        return {"score": 0.25}

    def training(train_fn=train_fn, epochs=2):
        builder = Trainer.builder(network, sgd, train_fn).dataset(line(12)).batch_size(3)
        return builder.num_epochs(epochs).device("cpu").engine("eager")
    """
)


def bar(row: str) -> str:
    """The characters of the bar in a row."""
    return "".join(char for char in row if char in "━╸╺")


@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(width, marks=pytest.mark.slow) for width in (60, 80, 120))]
)
def test_the_line_of_an_epoch_at_its_moments(columns: int) -> None:
    program = TRAINING + "training().eval_fn(evaluate).monitor(Monitor(2)).run()\n"
    with Session(program, columns) as session:
        rows = session.until(last("  reading data"))
        assert len(rows) == 1
        assert rows[0].startswith("epoch 1/2  ")
        assert "  0/4  reading data" in rows[0]
        session.step()
        (row,) = session.until(last("1/4"))
        assert "ETA " in row
        assert 4 <= len(bar(row)) <= 24
        assert ("loss=" in row) == (columns > 40)
        if columns != 60:  # there it fits if it is short
            assert ("samples/s" in row) == (columns > 60)
        assert ("half=0.5000" in row) == (columns > 60)
        for _ in range(3):
            session.step()
        (row,) = session.until(last("evaluating"))
        assert "  4/4  evaluating" in row
        session.step()
        rows = session.until(last("epoch 2/2"))
        assert rows[0].startswith("  epoch 1/2  loss=")
        assert "0/4  reading data" in rows[-1]
        for _ in range(5):
            session.step()
        assert session.end() == 0
        text = " ".join(session.screen())
        assert "━" not in text
        assert re.search(r"  epoch 2/2  loss=.*  2 epochs in \d", text)


def test_what_happens_before_the_first_step_is_told() -> None:
    program = TRAINING + dedent(
        """
        def slow_network(device):
            gate()
            return network(device)

        class SlowData(torch.utils.data.Dataset):
            def __len__(self):
                return 12

            def __getitem__(self, place):
                if place == 0:
                    gate()
                return {"x": torch.ones(1), "y": torch.ones(1)}

        builder = Trainer.builder(slow_network, sgd, squared_error).dataset(SlowData())
        builder = builder.batch_size(3).num_epochs(1).device("cpu").engine("eager")
        builder.loader_options(shuffle=False).run()
        """
    )
    with Session(program, 80) as session:
        assert session.until(last("building")) == ["building the model"]
        session.step()
        assert session.until(last("  reading data"))[0].startswith("epoch 1/1  ")
        session.step()
        assert session.end() == 0
        assert session.screen() == []


def test_compiling_is_told() -> None:
    program = TRAINING + dedent(
        """
        from flodl.train.step import tuned
        from flodl.train.step.halves import forward_function

        def slow_compilation(model, settings, **options):
            gate()
            return forward_function(model, settings)

        tuned.compiled_forward = slow_compilation
        training(squared_error, epochs=1).engine("compiled").run()
        """
    )
    with Session(program, 80) as session:
        rows = session.until(last("compiling"))
        assert "  0/4  compiling" in rows[0]
        session.step()
        assert session.end() == 0


def test_what_others_print_stands_above_the_line() -> None:
    program = TRAINING + dedent(
        """
        import warnings
        logging.basicConfig(format="%(message)s")

        def talking(model, batch):
            print("printed")
            logging.warning("logged")
            print("x" * 100)
            sys.stderr.write("on stderr\\n")
            loss = squared_error(model, batch)
            gate()
            return loss

        training(talking, epochs=1).run()
        handler = logging.root.handlers[0]
        assert handler.stream is sys.stderr is sys.__stderr__
        print("after")
        """
    )
    said = ["printed", "logged", "x" * 80, "x" * 20, "on stderr"]
    with Session(program, 80) as session:
        rows = session.until(lambda rows: rows[-2:-1] == ["on stderr"])
        assert rows[:5] == said
        assert rows[5].startswith("epoch 1/1  ")
        assert len(rows) == 6
        session.step()
        rows = session.until(lambda rows: len(rows) == 11)
        assert rows[:10] == said * 2
        assert "  1/4  " in rows[10]
        for _ in range(3):
            session.step()
        assert session.end() == 0
        assert session.screen() == [*said * 4, "after"]


def test_data_of_unknown_length_has_steps_and_speed_but_no_end() -> None:
    program = TRAINING + dedent(
        """
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                for _ in range(12):
                    yield {"x": torch.ones(1), "y": torch.ones(1)}

        builder = Trainer.builder(network, sgd, train_fn).dataset(Endless()).batch_size(3)
        builder.num_epochs(1).device("cpu").engine("eager").run()
        """
    )
    with Session(program, 80) as session:
        session.until(last("  reading data"))
        session.step()
        (row,) = session.until(last("1 steps"))
        assert row.startswith("epoch 1/1  1 steps  loss=")
        assert "samples/s" in row
        assert "ETA" not in row
        assert bar(row) == ""
        for _ in range(3):
            session.step()
        assert session.end() == 0


KEPT = TRAINING + dedent(
    """
    def main(root):
        config = {"resume": None}
        with RunDirectory.create(root, config=config) as run:
            training(epochs=1000).run_dir(run).run()

    sys.exit(entry(main, Path(os.environ["RUNS"])))
    """
)


@pytest.mark.parametrize(
    ("number", "how", "code"),
    [
        (signal.SIGINT, "interrupted", 130),
        pytest.param(signal.SIGTERM, "terminated", 143, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_training_ends_with_the_command_that_continues_it(
    number: signal.Signals, how: str, code: int, tmp_path: Path
) -> None:
    plan = '{"kind":"entry","command":["train","quick"],"argv":["main.py","--lr","0.1"],"typed":2}'
    env = {"RUNS": str(tmp_path), "FDL_PLAN": plan}
    with Session(KEPT, 120, env=env) as session:
        session.until(last("  reading data"))
        if number == signal.SIGINT:
            session.interrupt()
        else:
            session.send(number)
        session.step()
        assert session.end() == code
        rows = session.screen()
        assert rows[-1] == "continue with: fdl train quick --lr 0.1 --resume last"
        assert f"{how}: stopped after 0 complete epochs and 1 step" in "".join(rows)
        assert "━" not in "".join(rows)
        assert "\x1b[?25l" not in session.text  # the cursor is never hidden


def test_without_a_checkpoint_nothing_can_be_continued(tmp_path: Path) -> None:
    program = KEPT.replace("training(epochs=1000).run_dir(run)", "training(epochs=1000)")
    with Session(program, 80, env={"RUNS": str(tmp_path)}) as session:
        session.until(last("  reading data"))
        session.interrupt()
        session.step()
        assert session.end() == 130
        assert session.screen()[-1].endswith("and 1 step; nothing was saved")


def test_an_error_of_the_program_gives_the_terminal_back() -> None:
    program = TRAINING + dedent(
        """
        def broken(model, batch):
            gate()
            raise OSError("no disk")

        training(broken).run()
        """
    )
    with Session(program, 80) as session:
        session.until(last("  reading data"))
        session.step()
        assert session.end() == 1
        rows = session.screen()
        assert "Traceback" in session.text
        assert "OSError: no disk" in rows
        assert "━" not in "".join(rows)


def test_no_color_draws_without_colours() -> None:
    program = TRAINING + "training(squared_error, epochs=1).run()\n"
    with Session(program, 80, env={"NO_COLOR": "1"}) as session:
        assert session.end() == 0
        assert "━" in session.text
        assert not re.search(r"\x1b\[[0-9;]*(3|4|9|10)[0-9][0-9;]*m", session.text)


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"FLODL_COLOR": "never"}])
def test_a_terminal_that_cannot_erase_gets_lines(env: dict[str, str]) -> None:
    program = TRAINING + "training(squared_error).monitor(Monitor(2)).run()\n"
    with Session(program, 80, env=env) as session:
        assert session.end() == 0
        assert "\x1b" not in session.text
        assert "\r" not in session.text.replace("\r\n", "")
        starts = [row[:12] for row in session.text.splitlines()]
        assert [start for start in starts if "epoch " in start] == ["  epoch 1/2 ", "  epoch 2/2 "]


def test_a_pipe_gets_only_lines() -> None:
    program = TRAINING.replace("gate()", "pass") + "training().monitor(Monitor(2)).run()\n"
    env = {**os.environ, "FLODL_VERBOSITY": "normal"}
    words = ("-c", "import os, sys\n" + program)
    done = fork_server.python(*words, cwd=ROOT, env=env, torch=True, abrupt=True)
    assert (done.returncode, done.stderr) == (0, "")
    heads = [line[:14] for line in done.stdout.splitlines()]
    assert heads[:2] == ["  epoch 1/2  l", "  epoch 2/2  l"]
    assert heads[2].startswith("  2 epochs in ")
