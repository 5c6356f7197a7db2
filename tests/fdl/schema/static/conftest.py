"""The schema that the source of a script declares."""

from __future__ import annotations

import pytest


@pytest.fixture
def schema(project):
    """Reads the schema of a script: ``schema(TEXT, other_py=TEXT)``."""

    def read(script: str, **more: str):
        from fdl.manifest.discover import find_in
        from fdl.manifest.select.level import enter
        from fdl.manifest.select.project import Project
        from fdl.programs.schema import known

        files = {f"t/{name.replace('__', '/')}": text for name, text in more.items()}
        folder = project(
            {
                "fdl.yml": "commands: {t: }\n",
                "t/fdl.yml": "entry: python train.py\n",
                "t/train.py": f"{script}\nopen('ran', 'w').close()\n",
                **{
                    name.replace("_py", ".py").replace("_yaml", ".yaml"): text
                    for name, text in files.items()
                },
            }
        )
        made = Project(find_in(str(folder)))
        found = known(enter(made.level(), "t", made.child))
        assert not (folder / "t/ran").exists()
        return found

    return read
