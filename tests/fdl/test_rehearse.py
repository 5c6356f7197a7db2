"""`fdl plan --try`: what a training will need, before it is started in earnest."""

import json

import pytest

from tests.rows import each_row

PROGRAM = """
    import sys

    import torch
    from fdl import FdlArgs, option
    from flodl import RunDirectory, Trainer, entry
    from torch import nn
    from torch.utils.data import TensorDataset


    class Args(FdlArgs):
        '''Fit a line.'''

        lr: float = option(default=0.01, help="Learning rate")
        fail: bool = option(help="Fail in the evaluation")


    def main(args):
        x = torch.linspace(-1, 1, 64).unsqueeze(1)
        trainer = Trainer.builder(
            lambda device: nn.Linear(1, 1).to(device),
            lambda parameters: torch.optim.SGD(parameters, lr=args.lr),
            lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        )
        trainer.dataset(TensorDataset(x, 3 * x)).batch_size(16).num_epochs(2)
        trainer.eval_fn(lambda model: {"score": 1.0 / (0.0 if args.fail else 1.0)})
        with RunDirectory.create("runs/train", config=args.resolved()) as run:
            trainer.run_dir(run).run()
        print("this line comes after a whole training")


    if __name__ == "__main__":
        sys.exit(entry(main, Args.parse_or_schema()))
    """

MANIFEST = """
    commands:
      data:
        run: echo prepared
      hello:
        run: echo hello
      train:
        needs: data
    """


@pytest.fixture
def fdl(torch_fdl):
    """The program of these tests imports torch."""
    return torch_fdl


@pytest.fixture
def training(project):
    return project(
        {
            "fdl.yml": MANIFEST,
            "train/fdl.yml": """
                entry: python main.py
                training: {lr: 0.1}
                commands:
                  plain: {training: {lr: 0.2}}
                """,
            "train/main.py": PROGRAM,
        }
    )


def test_a_training_is_tried_and_leaves_nothing(training, fdl):
    done = fdl("plan", "--try", "train", "plain")
    assert done.exit == 0, done.err
    assert "prepared\n" in done.out
    for word in ("forward", "backward", "optimizer", "evaluation", "checkpoint"):
        assert f"  {word} " in done.out
    assert "epoch       4 batches" in done.out
    assert "2 epochs" in done.out
    assert "after a whole training" not in done.out
    assert not (training / "runs").exists()


@pytest.mark.usefixtures("training")
def test_the_document_has_what_the_page_shows(fdl):
    done = fdl("plan", "--try", "--json", "train", "--lr", "0.5")
    # The lines of the program are on stderr.
    found = json.loads(done.out)
    assert (found["schema_version"], found["version"], found["batches"]) == (1, 1, 4)
    assert {one["name"] for one in found["phases"]} >= {"data", "forward", "backward"}


def test_the_first_error_ends_it_with_its_phase(training, fdl):
    done = fdl("plan", "--try", "train", "--fail")
    assert done.exit == 1
    assert "Failed:\n  in the evaluation  ZeroDivisionError" in done.out
    assert "ZeroDivisionError" in done.err
    assert not (training / "runs").exists()


def test_what_would_run_in_earnest_is_refused(training, fdl):
    done = fdl("plan", "--try", "hello")
    assert (done.exit, done.out) == (2, "")
    assert "`fdl hello` would really run: its program does not use flodl" in done.err
    (training / "train/main.py").write_text("print('no training')  # flodl\n")
    silent = fdl("plan", "--try", "train")
    assert silent.exit == 1
    assert "`fdl train` ended without a training" in silent.err
    assert "no command is given" in fdl("plan", "--try").err


@pytest.mark.usefixtures("training")
def test_the_memory_on_a_gpu_that_is_not_here_is_predicted(fdl):
    session = fdl("plan", "--try", "--gpu", "rtx4090", "train")
    assert session.exit == 0, session.err
    assert "On rtx4090, predicted:" in session.out
    assert "of 25.8 GB: fits" in session.out
    assert "parameters 1.0 kB, gradients 8 bytes, optimizer 0 bytes" in session.out


@pytest.mark.usefixtures("training")
@each_row(
    ("words", "hint"),
    [
        (["--try", "--gpu", "RTX 4900", "train"], "RTX 4090"),
        (["--try", "--gpu", "24 apples", "train"], "type its memory"),
        (["--gpu", "24GB", "train"], "--gpu needs --try"),
    ],
)
def test_a_gpu_that_makes_no_sense_is_refused(fdl, words, hint):
    session = fdl("plan", *words)
    assert session.exit == 2
    assert hint in session.err
