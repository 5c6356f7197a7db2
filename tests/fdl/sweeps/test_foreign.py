"""A program that was not written for fdl may use the name `output` for a file."""


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
