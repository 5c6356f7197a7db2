"""``fdl libtorch install`` and ``download`` from archives."""

import json
import os
import stat
from hashlib import sha256

import pytest

from tests.fdl.hardware.fake_nvml import card, nvidia, without_nvidia
from tests.fdl.libtorch.archives import SIZE, archive, is_whole, listed, torch_wheel, tree
from tests.fdl.libtorch.conftest import CUDA, TORCH, ids, offer


def everything(folder):
    """All names below a folder, with the bytes of the files."""
    return {
        str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None
        for one in folder.rglob("*")
    }


@pytest.mark.case("cli", 55)
def test_a_dry_run_prints_the_exact_url_and_touches_nothing(libtorch, tmp_path, home, mirror):
    before = everything(tmp_path)
    shown = libtorch("download", "--cpu", "--dry-run", env={"FDL_LIBTORCH_MIRROR": ""})
    name = listed("2.10.0", "cpu").path
    assert shown.exit == 0
    assert f"URL:     https://download.pytorch.org/libtorch/{name}\n" in shown.out
    assert "Version: 2.10.0 cpu\n" in shown.out
    assert f"Path:    {home}/libtorch/precompiled/cpu\n" in shown.out
    assert everything(tmp_path) == before
    assert mirror.requests == []


def test_a_dry_run_names_the_folder_of_path_and_takes_no_flag_for_it(libtorch, tmp_path, mirror):
    before = everything(tmp_path)
    shown = libtorch("download", "--cpu", "--torch", TORCH, "--path", "lib", "--dry-run")
    assert shown.exit == 0, shown.err
    assert "/lib\n" in shown.out
    refused = libtorch("download", "--cpu", "--path", "--dry-run")
    assert (refused.exit, refused.out) == (2, "")
    assert "error: `--path` requires a value\n" in refused.err
    assert everything(tmp_path) == before
    assert mirror.requests == []


@pytest.mark.case("cli", 55)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_path_on_a_foreign_folder_exits_1_and_leaves_its_contents(libtorch, tmp_path, mirror, more):
    foreign = tmp_path / "lib"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    done = libtorch("download", "--cpu", "--torch", TORCH, "--path", str(foreign), *more)
    assert done.exit == 1
    assert f"{foreign} is not empty and holds no libtorch" in done.err
    assert everything(foreign) == {"thesis.txt": b"years of work"}
    assert mirror.requests == []


def test_install_puts_a_whole_variant_into_use(libtorch, store):
    done = libtorch("install", "cpu", "--torch", TORCH)
    assert done.exit == 0, done.err
    folder = store / "precompiled" / "cpu"
    assert is_whole(folder, TORCH, "cpu")
    assert (store / ".active").read_text() == "precompiled/cpu\n"
    *facts, files = (folder / ".arch").read_text().splitlines()
    assert facts == [
        "cuda=none",
        f"torch={TORCH}",
        "archs=cpu",
        "source=precompiled",
        "variant=cpu",
    ]
    (digest,) = json.loads((store.parent / "libtorch.lock").read_text())["files"].values()
    assert files.endswith(f" {digest['sha256']}")
    assert not (folder / "bin" / "test_api").exists()
    assert (folder / "bin" / "torch_shm_manager").stat().st_mode & stat.S_IXUSR
    assert f"export LIBTORCH={folder}\n" in done.out
    assert f"export LD_LIBRARY_PATH={folder}/lib" in done.out
    assert all(line.startswith("export ") for line in done.out.splitlines())
    assert not list((store / ".staging").iterdir())
    assert not list((store / ".cache").rglob("*.part"))


def test_install_twice_fetches_once_and_still_activates(libtorch, store, mirror):
    libtorch("install", "cpu", "--torch", TORCH)
    (store / ".active").write_text("")
    mirror.settle()
    fetched = len(mirror.requests)
    again = libtorch("install", "cpu", "--torch", TORCH)
    assert again.exit == 0
    assert "already installed" in again.err
    assert len(mirror.requests) == fetched
    assert (store / ".active").read_text() == "precompiled/cpu\n"


def test_another_version_replaces_the_first(libtorch, store, mirror):
    for torch in ("2.10.0", "2.13.0"):
        offer(mirror, torch, "cu126")
    libtorch("install", "cu126", "--torch", "2.10.0")
    (store / "precompiled" / "cu126" / "left-over").write_text("of the first")
    assert libtorch("install", "cu126", "--torch", "2.13.0").exit == 0
    folder = store / "precompiled" / "cu126"
    assert is_whole(folder, "2.13.0", "cu126")
    assert not (folder / "left-over").exists()
    assert "torch=2.13.0\n" in (folder / ".arch").read_text()
    assert "archs=5.0 6.0 7.0 7.5 8.0 8.6 9.0\n" in (folder / ".arch").read_text()


def test_no_activate_leaves_what_is_in_use(libtorch):
    libtorch("install", "cpu", "--torch", TORCH)
    done = libtorch("download", "--cuda", "12.8", "--torch", TORCH, "--no-activate")
    assert (done.exit, done.out) == (0, "")
    assert ids(libtorch("list")) == ["precompiled/cpu (active)", f"precompiled/{CUDA}"]


def test_download_into_the_users_store_ends_with_the_lines_to_type(libtorch, project, store):
    assert f"export LIBTORCH={store}" in libtorch("download", "--cpu", "--torch", TORCH).out
    project({"app/fdl.yml": "commands: {}\n"})
    done = libtorch("download", "--cpu", "--torch", TORCH, cwd="app")
    assert done.out == ""
    assert "fdl libtorch env --format cmake" in done.err
    assert ids(libtorch("list", cwd="app")) == ["precompiled/cpu (active)"]


def test_cpu_and_cuda_contradict_each_other(libtorch, store):
    done = libtorch("download", "--cpu", "--cuda", "12.6")
    assert done.exit == 2
    assert "--cpu and --cuda contradict each other" in done.err
    assert libtorch("download", "--cuda", "twelve").exit == 2
    unknown = libtorch("download", "--cuda", "11.8")
    assert unknown.exit == 2
    assert "it has cpu, cu126, cu128" in unknown.err
    assert not store.exists()


def test_auto_follows_the_cards_and_points_to_a_build(libtorch, tmp_path):
    env = nvidia(tmp_path / "nvidia", [card("6.1", bus=1), card("12.0", bus=2)])
    shown = libtorch("install", "--dry-run", env=env)
    assert shown.exit == 0
    assert "Version: 2.10.0 cu126\n" in shown.out
    assert 'hint: fdl libtorch build --archs "6.1;12.0"\n' in shown.err
    hidden = libtorch("install", "--dry-run", env={**env, "CUDA_VISIBLE_DEVICES": "1"})
    assert "Version: 2.10.0 cu128\n" in hidden.out
    assert "CUDA_VISIBLE_DEVICES=1 hides 1 more" in hidden.err


def test_auto_without_a_card_takes_the_cpu_variant(libtorch, tmp_path):
    shown = libtorch("install", "--dry-run", env=without_nvidia(tmp_path / "nvidia"))
    assert "Version: 2.10.0 cpu\n" in shown.out


def test_a_broken_driver_is_told_and_the_rest_goes_on(libtorch, tmp_path):
    env = nvidia(tmp_path / "nvidia", [card("8.6")], fail={"nvmlInitWithFlags": 9})
    shown = libtorch("install", "--dry-run", env=env)
    assert shown.exit == 0
    assert "warning: " in shown.err
    assert "Version: 2.10.0 cpu\n" in shown.out


def test_a_second_mirror_serves_when_the_first_does_not(libtorch, mirror, store):
    mirrors = f"{mirror.url('/nothing-here')} {mirror.url('')}"
    done = libtorch("install", "cpu", "--torch", TORCH, env={"FDL_LIBTORCH_MIRROR": mirrors})
    assert done.exit == 0, done.err
    assert is_whole(store / "precompiled" / "cpu", TORCH, "cpu")
    mirror.settle()
    assert mirror.requests[0].status == 404


def test_the_first_digest_is_recorded_and_another_one_refused(libtorch, store, home, mirror):
    libtorch("install", "cpu", "--torch", TORCH)
    lock = json.loads((home / "libtorch.lock").read_text())
    name = listed(TORCH, "cpu").path
    assert list(lock["files"]) == [name]
    libtorch("remove", "precompiled/cpu")

    offer(mirror, TORCH, "cpu", content=archive(TORCH, "cpu", seed=1))
    done = libtorch("install", "cpu", "--torch", TORCH)
    assert done.exit == 1
    assert lock["files"][name]["sha256"] in done.err
    assert "delete the entry" in done.err
    assert libtorch("list").out == ""
    assert json.loads((home / "libtorch.lock").read_text()) == lock
    assert not list((store / ".staging").iterdir())

    (home / "libtorch.lock").unlink()
    assert libtorch("install", "cpu", "--torch", TORCH).exit == 0


@pytest.mark.usefixtures("mirror")
def test_a_sha256_that_somebody_wrote_down_counts(libtorch, home):
    libtorch("install", "cpu", "--torch", TORCH)
    libtorch("remove", "precompiled/cpu")
    lock = json.loads((home / "libtorch.lock").read_text())
    name = listed(TORCH, "cpu").path
    right = sha256(archive(TORCH, "cpu")).hexdigest()
    for digest, code in (("0" * 64, 1), (right.upper(), 0)):
        lock["files"][name] = {"sha256": digest}
        (home / "libtorch.lock").write_text(json.dumps(lock))
        done = libtorch("install", "cpu", "--torch", TORCH)
        assert done.exit == code, done.err
        assert code == 0 or f"SHA-256 is {right}" in done.err
    assert json.loads((home / "libtorch.lock").read_text()) == lock


def test_a_digest_of_the_catalog_counts_more_than_one_that_was_seen(libtorch, home, mirror):
    pinned = listed("2.10.0", "cpu")
    mirror.put(f"/{pinned.path}", archive("2.10.0", "cpu"))
    done = libtorch("install", "cpu")
    assert done.exit == 1
    assert pinned.sha256 in done.err
    assert libtorch("list").out == ""
    assert not (home / "libtorch.lock").exists()


def test_an_altered_byte_is_refused_and_nothing_is_installed(libtorch, store, mirror):
    good = archive(TORCH, "cpu")
    offer(mirror, TORCH, "cpu", content=good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    done = libtorch("install", "cpu", "--torch", TORCH)
    assert done.exit == 1
    assert "error: " in done.err
    assert libtorch("list").out == ""
    assert not (store / ".active").exists()


def test_a_damaged_lock_file_stops_everything_with_a_remedy(libtorch, home):
    home.mkdir()
    (home / "libtorch.lock").write_text("<<<<<<< ours\n")
    done = libtorch("install", "cpu", "--torch", TORCH)
    assert done.exit == 1
    assert "libtorch.lock is not a list of digests" in done.err
    assert "restore it from version control" in done.err
    assert libtorch("list").out == ""


def test_a_mirror_with_the_wrong_version_under_the_right_name(libtorch, mirror):
    offer(mirror, TORCH, CUDA, content=archive("2.9.0", CUDA))
    done = libtorch("install", CUDA, "--torch", TORCH)
    assert done.exit == 1
    assert f"is libtorch 2.9.0 {CUDA}, and not {TORCH} {CUDA}" in done.err
    assert libtorch("list").out == ""


def test_an_archive_that_is_no_libtorch(libtorch, tmp_path):
    from tests.fdl.libtorch.archives import zipped

    (tmp_path / "photos.zip").write_bytes(zipped({"libtorch/build-version": b"2.11.0+cpu"}))
    done = libtorch("install", "--source", str(tmp_path / "photos.zip"))
    assert done.exit == 1
    assert "not a libtorch" in done.err


def test_path_makes_a_folder_and_leaves_the_store_alone(libtorch, tmp_path, home):
    target = tmp_path / "opt" / "torch"
    done = libtorch("download", "--cpu", "--torch", TORCH, "--path", str(target))
    assert done.exit == 0, done.err
    assert is_whole(target, TORCH, "cpu")
    assert f"export LIBTORCH={target}\n" in done.out
    assert not home.exists()
    assert [one.name for one in target.parent.iterdir()] == ["torch"]

    again = libtorch("download", "--cpu", "--torch", TORCH, "--path", str(target))
    assert "holds already precompiled/cpu" in again.err
    other = libtorch("download", "--cuda", "12.8", "--torch", TORCH, "--path", str(target))
    assert other.exit == 0
    assert is_whole(target, TORCH, CUDA)


def test_path_takes_an_empty_folder_and_no_file(libtorch, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    args = ("download", "--cpu", "--torch", TORCH, "--path")
    assert libtorch(*args, "../empty").exit == 0
    assert is_whole(tmp_path / "empty", TORCH, "cpu")
    refused = libtorch(*args, "../file")
    assert refused.exit == 1
    assert "is not a folder" in refused.err


def test_a_failed_download_into_a_path_leaves_what_was_there(libtorch, tmp_path, mirror):
    target = tmp_path / "torch"
    args = ("--torch", TORCH, "--path", str(target))
    libtorch("download", "--cpu", *args)
    offer(mirror, TORCH, CUDA, content=b"no archive at all" * 100)
    assert libtorch("download", "--cuda", "12.8", *args).exit == 1
    assert is_whole(target, TORCH, "cpu")
    assert not any(one.name.startswith(".torch") for one in tmp_path.iterdir())


def test_a_local_archive_says_itself_what_it_is(libtorch, store, tmp_path):
    file = tmp_path / "torch.zip"
    file.write_bytes(archive("2.9.1", "cu128"))
    assert libtorch("install", "--source", "../torch.zip").exit == 0
    assert is_whole(store / "precompiled" / "cu128", "2.9.1", "cu128")
    assert "already installed" in libtorch("install", "--source", "../torch.zip").err
    wrong = libtorch("install", "cpu", "--source", "../torch.zip")
    assert wrong.exit == 1
    assert "torch.zip is libtorch 2.9.1 cu128, and not cpu" in wrong.err
    assert libtorch("install", "--torch", "2.10.0", "--source", "../torch.zip").exit == 1


def test_an_archive_at_any_address(libtorch, store, mirror, home):
    mirror.put("/mine/libtorch.zip", archive("2.9.1", "cpu"))
    done = libtorch("install", "--source", mirror.url("/mine/libtorch.zip"))
    assert done.exit == 0, done.err
    assert is_whole(store / "precompiled" / "cpu", "2.9.1", "cpu")
    recorded = json.loads((home / "libtorch.lock").read_text())["files"]
    assert list(recorded) == [f"127.0.0.1:{mirror.port}/mine/libtorch.zip"]


def test_a_password_in_an_address_is_not_repeated(libtorch, mirror, home):
    mirror.put("/mine.zip", archive("2.9.1", "cpu"))
    url = f"http://me:hunter2@127.0.0.1:{mirror.port}"
    shown = [
        libtorch("install", "--source", f"{url}/missing.zip"),
        libtorch("install", "--source", f"{url}/mine.zip"),
        libtorch("install", "cpu", "--torch", TORCH, "-n", env={"FDL_LIBTORCH_MIRROR": url}),
    ]
    assert [one.exit for one in shown] == [1, 0, 0]
    assert not any("hunter2" in one.out + one.err for one in shown)
    assert "hunter2" not in (home / "libtorch.lock").read_text()


def test_a_local_wheel_takes_the_layout_of_libtorch(libtorch, store, tmp_path):
    file = torch_wheel(tmp_path / "wheels", "2.13.0+cpu")
    assert libtorch("install", "--source", str(file)).exit == 0
    folder = store / "precompiled" / "cpu"
    assert (folder / "build-version").read_text() == "2.13.0+cpu\n"
    assert (folder / "build-hash").read_text() == "feedbeef\n"
    assert (folder / "lib" / "libtorch.so").read_bytes() == tree("2.13.0", "cpu")["lib/libtorch.so"]
    assert sorted(one.name for one in folder.iterdir()) == [
        ".arch", "bin", "build-hash", "build-version", "include", "lib", "share",
    ]  # fmt: skip
    assert [one.name for one in (folder / "bin").iterdir()] == ["torch_shm_manager"]


def test_a_folder_is_linked_and_never_changed(libtorch, store, tmp_path):
    source = tmp_path / "built"
    for name, data in tree("2.9.1", "cpu").items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "lib" / "libtorch.so.1").symlink_to("libtorch.so")
    (source / "include" / "outside.h").symlink_to(tmp_path / "outside.h")
    (tmp_path / "outside.h").write_text("from elsewhere")
    before = everything(source)
    assert libtorch("install", "--source", str(source)).exit == 0
    folder = store / "precompiled" / "cpu"
    assert is_whole(folder, "2.9.1", "cpu")
    assert (folder / "lib" / "libtorch.so.1").readlink().name == "libtorch.so"
    assert (folder / "lib" / "libtorch.so").samefile(source / "lib" / "libtorch.so")
    assert not (folder / "include" / "outside.h").is_symlink()
    assert everything(source) == before
    assert (source / "lib" / "libtorch.so").stat().st_size == SIZE


def test_an_installed_torch_package_is_a_source_too(libtorch, store, tmp_path):
    from zipfile import ZipFile

    site = tmp_path / "site-packages"
    ZipFile(torch_wheel(tmp_path, "2.13.0", cuda="13.0")).extractall(site)
    (site / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    (site / "nvidia" / "cu13" / "lib" / "libcudart.so.13").write_bytes(b"the runtime")
    (site / "torch.libs").mkdir(exist_ok=True)
    (site / "torch.libs" / "libarm_compute.so").write_bytes(b"what auditwheel brought")
    assert libtorch("install", "--source", str(site / "torch")).exit == 0
    folder = store / "precompiled" / "cu130"
    assert (folder / "lib" / "libcudart.so.13").read_bytes() == b"the runtime"
    assert (folder / "lib" / "libarm_compute.so").read_bytes() == b"what auditwheel brought"
    assert "cuda=13.0\n" in (folder / ".arch").read_text()
    assert (site / "torch" / "version.py").is_file()


@pytest.mark.skipif(os.name != "posix", reason="needs links")
@pytest.mark.parametrize(
    "place",
    [
        "downloads",
        "downloads/archive-cpu",
        "downloads/archive-cpu/archive",
        "downloads/archive-cpu/archive/archive.part",
        "downloads/archive-cpu/archive/archive.part.json",
    ],
)
def test_a_link_among_the_parts_of_downloads_leads_nowhere(libtorch, store, tmp_path, place):
    """A clone may have put it there. Old folders in `downloads` are removed otherwise."""
    outside = tmp_path / "outside"
    (outside / "photos").mkdir(parents=True)
    (outside / "photos" / "old.jpg").write_text("years ago")
    os.utime(outside / "photos" / "old.jpg", (0, 0))
    before = everything(outside)
    link = store / ".cache" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "photos" / "old.jpg" if "part" in link.name else outside)
    done = libtorch("install", "cpu", "--torch", TORCH)
    assert (done.exit, "it is a link to" in done.err) == (1, True), done.err
    assert everything(outside) == before
    assert not (store / "precompiled").exists()


def test_a_source_that_is_not_there(libtorch):
    done = libtorch("install", "--source", "./nowhere.zip")
    assert done.exit == 2
    assert "--source ./nowhere.zip: there is no such file or folder" in done.err
