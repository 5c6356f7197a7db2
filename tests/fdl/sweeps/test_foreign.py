"""Sweeps of programs that were not written for fdl, which may use the name `output` for a file."""

import json


def test_an_output_file_of_a_foreign_program_is_left_alone(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {train: }\n",
            "train/fdl.yml": "entry: python train.py\ncommands: {p: {options: {output: a.txt}}}\n",
            "train/train.py": """
                import argparse
                parser = argparse.ArgumentParser()
                parser.add_argument("-output")
                parser.add_argument("-iter", type=int)
                args = parser.parse_args()
                open(args.output, "w").write(str(args.iter))
                """,
        }
    )
    done = fdl("train", "p", "--each", "iter=1,2")
    assert done.exit == 0, done.err
    assert (folder / "train/a.txt").read_text() == "2"
    assert "did you mean `-iter`?" in fdl("train", "p", "-iterr", "3").err


def test_a_manifest_puts_the_output_file_into_the_directory_of_the_run(project, fdl):
    folder = project(
        {
            "fdl.yml": """
                entry: python train.py
                commands: {p: {options: {output: "${FDL_RUN_DIR:-.}/a.txt", iter: 0}}}
                """,
            "train.py": """
                import argparse
                parser = argparse.ArgumentParser()
                parser.add_argument("-output")
                parser.add_argument("-iter", type=int)
                args = parser.parse_args()
                open(args.output, "w").write(str(args.iter))
                """,
        }
    )
    done = fdl("p", "--each", "iter=1,2")
    assert done.exit == 0, done.err
    for number in (1, 2):
        (file,) = folder.glob(f"runs/p/*/iter={number}/a.txt")
        assert file.read_text() == str(number)
    # Without a sweep, the manifest is read before the directory of the run is made.
    assert fdl("p").exit == 0
    assert (folder / "a.txt").read_text() == "0"


def test_swept_values_have_the_types_of_typed_ones(project, fdl):
    folder = project(
        {
            "fdl.yml": "entry: python train.py\ncommands: {train: {path: .}}\n",
            "train.py": """
                import argparse
                parser = argparse.ArgumentParser()
                parser.add_argument("--lr", type=float, default=1.0)
                parser.add_argument("--betas", type=float, nargs=2, default=[0.9, 0.99])
                parser.add_argument("--batch-size", type=int, default=8)
                parser.add_argument("--amp", action="store_true")
                print(parser.parse_args())
                """,
        }
    )
    swept = ("--each", "lr=0.1", "--each", "amp=false", "--each", "batch-size=4")
    assert fdl(*swept, "train").exit == 0
    typed = ("--lr", "0.1", "--batch-size", "4", "--betas", "0.9", "0.99")
    assert fdl("--name", "typed", "train", *typed).exit == 0
    (record,) = folder.glob("runs/train/*/lr=*/config.json")
    assert json.loads(record.read_text())["lr"] == {"value": 0.1, "origin": "--each"}
    compared = fdl("runs", "compare", str(record.parent), "typed")
    assert "Configuration that differs" not in compared.out, compared.out


def test_a_flag_takes_true_and_false_only(project, fdl):
    project(
        {
            "fdl.yml": "entry: python train.py\ncommands: {train: {path: .}}\n",
            "train.py": """
                import argparse
                parser = argparse.ArgumentParser()
                parser.add_argument("data", nargs="?")
                parser.add_argument("--amp", action="store_true")
                parser.parse_args()
                """,
        }
    )
    # As a word behind the flag, it would be `data`.
    refused = fdl("train", "--each", "amp=0,1")
    assert (refused.exit, refused.out) == (1, "")
    assert "`--each amp=0`: `--amp` is a flag" in refused.err
    assert "hint: write `true` or `false`" in refused.err
