"""A table of secrets and outputs: no secret is in a file, page or stream of fdl or flodl."""

from __future__ import annotations

import base64
import html
import json
import re
import urllib.parse
import zlib

import pytest

SECRETS = {
    "option": "s3cr3t-Value-0123456789",
    "marked": 'Pass "phrase" & <tag>/é 77',
    "variable": "v4riable-of-the-manifest",
    "shell": "5hell-variable-abcdef",
    "file": "f1le-of-variables-abc",
    "overridden": "0verridden-by-the-preset",
    "short": "hunter2",
}
"""Kind -> secret. Those of `shell` and `file` are in no manifest."""

FILES = {
    "fdl.yml": """
        env_file: .env
        commands: {train: }
        """,
    ".env": f"DB_PLACE={SECRETS['file']}\n",
    "train/fdl.yml": f"""
        entry: python main.py
        env: {{HF_TOKEN: {SECRETS["variable"]}}}
        options: {{api_key: {SECRETS["overridden"]}, note: "https://h/v1?key={SECRETS["option"]}"}}
        commands:
          secret:
            options:
              api_key: {SECRETS["option"]}
              title: !secret '{SECRETS["marked"]}'
              password: {SECRETS["short"]}
        """,
    "train/main.py": """
        import json, os, sys, urllib.parse
        import torch
        from fdl import FdlArgs, option
        from flodl import RunDirectory, Trainer, entry
        from flodl.errors import FlodlError
        from flodl.monitor import Monitor
        from torch import nn
        from torch.utils.data import TensorDataset


        class Args(FdlArgs):
            epochs: int = option(default=1)
            api_key: str = option(default="")
            title: str = option(default="")
            note: str = option(default="")
            password: str = option(default="")
            fails: bool = option()
            output: str = option(default="runs")
            resume: str | None = option()


        def secrets():
            yield from (args.api_key, args.title, args.note, args.password)
            yield from (os.environ[name] for name in ("HF_TOKEN", "WANDB_API_KEY", "DB_PLACE"))


        def planted():
            for text in secrets():
                yield from (text, f"x{text}y", urllib.parse.quote(text, safe=""), json.dumps(text))


        def record(metrics):
            everything = " ".join(planted())
            monitor.text("said", everything)
            monitor.table("cells", [[everything]], columns=["of " + everything])


        def loss(model, batch):
            batches.append(batch)
            if args.fails and len(batches) > 6:
                raise FlodlError(" ".join(planted()))
            return (model(batch[0]) ** 2).mean()


        def main(args):
            everything = " ".join(planted())
            print(everything)
            print(everything, file=sys.stderr)
            monitor.set_identity(label=everything)
            trainer = (
                Trainer.builder(
                    lambda device: nn.Linear(4, 1).to(device),
                    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                    loss,
                )
                .dataset(TensorDataset(torch.randn(16, 4)))
                .batch_size(4)
                .num_epochs(args.epochs)
                .engine("eager")
                .monitor(monitor)
                .metrics_fn(record)
            )
            config = {**args.resolved(), "copy": everything, "list": list(planted())}
            with RunDirectory.create(args.output, config=config, resume=args.resume) as run:
                run.add_record({"said": everything})
                run.add_environment({everything: everything})
                trainer.run_dir(run).run()


        args = Args.parse_or_schema()
        monitor = Monitor(args.epochs)
        batches = []
        sys.exit(entry(main, args))
        """,
}

ENVIRONMENT = {"WANDB_API_KEY": SECRETS["shell"]}

NOT_OURS = {"fdl.yml", ".env", "main.py"}
"""Files that the user has written."""


def forms(secret):
    return {
        secret, html.escape(secret), urllib.parse.quote(secret, safe=""), json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1], secret.replace('"', '""'),
    }  # fmt: skip


def unpacked(data):
    """The bytes of a file, and what is compressed or written as base64 in them."""
    yield data
    for blob in re.findall(rb"[A-Za-z0-9+/]{40,}={0,2}", data):
        inside = base64.b64decode(blob + b"=" * (-len(blob) % 4))
        yield inside
    for start in re.finditer(rb"\x78[\x01\x9c\xda]|\x1f\x8b\x08", data):
        try:
            yield zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data[start.start() :])
        except zlib.error:
            continue


def leaks(what, data):
    return [
        (what, kind)
        for kind, secret in SECRETS.items()
        if any(form.encode() in part for form in forms(secret) for part in unpacked(data))
    ]


def leaks_below(folder):
    files = [one for one in folder.rglob("*") if one.is_file() and one.name not in NOT_OURS]
    assert files
    return [leak for one in files for leak in leaks(str(one.relative_to(folder)), one.read_bytes())]


def leaks_of(session, what):
    return leaks(f"{what}, stdout", session.out.encode()) + leaks(
        f"{what}, stderr", session.err.encode()
    )


@pytest.fixture
def trained(project, torch_fdl):
    """A project with a run, whose program has put its secrets everywhere."""
    folder = project(FILES)

    def train(*words, code=0):
        done = torch_fdl(*words, env=ENVIRONMENT)
        assert done.exit == code, done.err
        return done

    return folder, train


def test_a_run_and_what_shows_it_hold_no_secret(trained, torch_fdl):
    folder, train = trained
    train("train", "secret")
    failed = train("train", "secret", "--epochs", "2", "--fails", code=1)
    error = failed.err[failed.err.index("error: ") :]
    assert leaks("error", error.encode()) == []
    train("train", "secret", "--epochs", "2", "--resume", "last")
    assert leaks_below(folder) == []
    shown = (
        ["runs", "list"], ["runs", "list", "--json"], ["runs", "show", "last"], ["runs", "diff"],
        ["runs", "show", "last", "--json"], ["runs", "tail", "last"], ["runs", "compare"],
        ["config", "show", "train"], ["config", "show", "train", "secret", "--json"],
        ["--dry-run", "train", "secret"], ["--dry-run", "--json", "train", "secret"],
        ["why", "train", "secret", "note"], ["train", "secret", "--help"], ["list"],
        ["runs", "page", "--output", "all.html"],
    )  # fmt: skip
    # The variables of the shell are there no more: what shows a run reads only its record.
    found = [leak for words in shown for leak in leaks_of(torch_fdl(*words), " ".join(words))]
    assert found + leaks_below(folder) == []


def test_a_sweep_holds_no_secret_that_its_programs_print(trained):
    folder, train = trained
    done = train("train", "secret", "--each", "epochs=1,2")
    assert leaks_of(done, "sweep") == []
    (log,) = folder.rglob("epochs=2/*/output.log")
    assert "<secret>" in log.read_text()
    assert leaks_below(folder) == []
