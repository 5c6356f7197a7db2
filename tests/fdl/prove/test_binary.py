"""Libraries of the host: C++ ABI, symbol versions, run paths, and files that are none."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fdl.base.errors import LibtorchError
from fdl.libtorch.prove import facts_of
from fdl.libtorch.prove.binary import read
from fdl.libtorch.prove.report import Links, Missing
from tests.fdl.hardware.fake_nvml import without_nvidia
from tests.fdl.prove.cuda import compile_library, container, embed, ptx, sass
from tests.rows import each_row

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the ELF libraries of a Linux")

GREETING = """
#include <string>
namespace c10 { __attribute__((noinline)) std::string greet(std::string name) { return name; } }
extern "C" const char* hello() { static auto kept = c10::greet("hello"); return kept.c_str(); }
"""


def written(folder, name, text):
    file = folder / name
    file.write_text(text)
    return file


@linux
@pytest.mark.parametrize(("flag", "abi"), [("1", "cxx11"), ("0", "pre-cxx11")])
def test_the_cxx_abi_is_read_from_the_names_of_symbols(tmp_path, flag, abi):
    source = written(tmp_path, "greet.cpp", GREETING)
    file = compile_library(tmp_path / "libgreet.so", f"-D_GLIBCXX_USE_CXX11_ABI={flag}", source)
    found = read(file)
    assert (found.abi, found.problem, found.soname) == (abi, "", "libgreet.so")


@linux
def test_a_c_library_shows_no_cxx_abi(tmp_path):
    file = compile_library(tmp_path / "libc.so", written(tmp_path, "c.c", "int one() {return 1;}"))
    assert read(file).abi == ""


@linux
def test_no_code_of_a_library_or_of_its_audit_library_runs(tmp_path):
    """The loader itself would run the latter, even if it only lists what a library needs."""
    ran = tmp_path / "ran"
    text = f'#include <stdio.h>\nstatic void run() {{ fclose(fopen("{ran}", "w")); }}\n'
    audited = 'extern "C" unsigned la_version(unsigned version) { run(); return version; }\n'
    begun = "__attribute__((constructor)) static void begin() { run(); }\n"
    audit = compile_library(
        tmp_path / "libaudit.so", written(tmp_path, "audit.cpp", text + audited)
    )
    source = written(tmp_path, "begun.cpp", text + begun)
    file = compile_library(tmp_path / "libbegun.so", f"-Wl,--audit={audit}", source)
    assert Links([read(file)], {}).missing == ()
    assert not ran.exists()


@linux
def test_torchs_own_names_decide_where_both_abis_show(tmp_path):
    old = written(
        tmp_path,
        "old.cpp",
        "#include <string>\nstd::string old(int n) { std::string s(n, 'x'); s += s; return s; }",
    )
    object_file = tmp_path / "old.o"
    subprocess.run(
        ["g++", "-c", "-fPIC", "-D_GLIBCXX_USE_CXX11_ABI=0", old, "-o", object_file], check=True
    )
    new = written(tmp_path, "new.cpp", GREETING)
    file = compile_library(tmp_path / "libboth.so", new, object_file)
    content = file.read_bytes()
    assert b"\0_ZNSs" in content
    assert b"__cxx11" in content
    assert read(file).abi == "cxx11"


@linux
def test_libraries_of_both_abis_cannot_work_together(tmp_path, fdl):
    source = written(tmp_path, "greet.cpp", GREETING)
    for name, flag in (("libc10.so", "1"), ("libtorch_cpu.so", "0")):
        compile_library(tmp_path / name, f"-D_GLIBCXX_USE_CXX11_ABI={flag}", source)
    assert facts_of(tmp_path).abi == "mixed"
    session = fdl("libtorch", "check", str(tmp_path))
    assert session.exit == 1
    assert "the libraries mix the two C++ ABIs, cxx11 and pre-cxx11" in session.out


@linux
def test_run_paths_and_needs_are_read_as_they_are_written(tmp_path):
    source = written(tmp_path, "c.c", "int one() { return 1; }")
    base = compile_library(tmp_path / "libbase.so", source)
    new = compile_library(
        tmp_path / "libnew.so",
        "-Wl,--no-as-needed",
        base,
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN:/opt/there",
    )
    old = compile_library(
        tmp_path / "libold.so", "-Wl,--no-as-needed", base, "-Wl,--disable-new-dtags,-rpath,$ORIGIN"
    )
    assert read(new).runpath == ("$ORIGIN", "/opt/there")
    assert read(new).rpath == ()
    assert read(old).rpath == ("$ORIGIN",)
    assert "libbase.so" in read(new).needed


@linux
def test_symbol_versions_that_are_defined_are_offered(tmp_path):
    source = written(tmp_path, "c.c", "int one() { return 1; }")
    script = written(tmp_path, "versions", "KIT_1.0 { global: one; local: *; };\nKIT_1.2 {};\n")
    file = compile_library(tmp_path / "libkit.so", source, f"-Wl,--version-script={script}")
    assert {"KIT_1.0", "KIT_1.2"} <= read(file).offers


@linux
def test_what_is_needed_is_found_beside_on_run_paths_and_in_the_system(tmp_path):
    source = written(tmp_path, "c.c", "int one() { return 1; }")
    far = tmp_path / "far"
    far.mkdir()
    lib = tmp_path / "lib"
    lib.mkdir()
    deep = compile_library(far / "libdeep.so", source)
    hidden = compile_library(
        far / "libhidden.so", "-Wl,--no-as-needed", deep, "-Wl,--disable-new-dtags"
    )
    beside = compile_library(lib / "libbeside.so", source)
    main = (lib / "libmain.so", "-Wl,--no-as-needed", hidden, beside, "-lm")
    # The older kind of run path also counts for what the libraries found there need.
    compile_library(*main, "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../far")
    assert Links(facts_of(tmp_path).libraries, {}).missing == ()
    compile_library(*main, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../far")
    found = Links(facts_of(tmp_path).libraries, {})
    assert found.missing == (Missing("libdeep.so", "libhidden.so", essential=True),)
    assert Links(facts_of(tmp_path).libraries, {"LD_LIBRARY_PATH": str(far)}).missing == ()


@linux
def test_what_libtorch_does_not_load_itself_is_missed_less(tmp_path):
    source = written(tmp_path, "c.c", "int one() { return 1; }")
    gone = compile_library(tmp_path / "libcusolver.so.11", source)
    lib = tmp_path / "lib"
    lib.mkdir()
    compile_library(lib / "libtorch.so", source)
    compile_library(lib / "libtorch_cuda_linalg.so", "-Wl,--no-as-needed", gone)
    gone.unlink()
    found = Links(facts_of(tmp_path).libraries, {})
    assert found.missing == (
        Missing("libcusolver.so.11", "libtorch_cuda_linalg.so", essential=False),
    )


@linux
def test_what_libtorch_and_another_library_need_is_missed_as_libtorch_misses_it(tmp_path):
    source = written(tmp_path, "c.c", "int one() { return 1; }")
    gone = compile_library(tmp_path / "libgone.so", source)
    lib = tmp_path / "lib"
    lib.mkdir()
    for name in ("libextra.so", "libtorch.so"):
        compile_library(lib / name, "-Wl,--no-as-needed", gone)
    gone.unlink()
    found = Links(facts_of(tmp_path).libraries, {})
    assert found.missing == (Missing("libgone.so", "libtorch.so", essential=True),)


@linux
def test_a_symbol_version_that_the_library_found_does_not_have_is_unmet(tmp_path):
    source = written(tmp_path, "c.cpp", 'extern "C" int one() { return 1; }')
    user = written(tmp_path, "user.cpp", 'extern "C" int one(); int two() { return one() + 1; }')
    lib = tmp_path / "lib"
    lib.mkdir()
    newer = written(tmp_path, "newer", "KIT_2.0 { global: one; };")
    older = written(tmp_path, "older", "KIT_1.0 { global: one; };")
    kit = compile_library(lib / "libkit.so", source, f"-Wl,--version-script={newer}")
    compile_library(lib / "libuser.so", user, kit)
    assert Links(facts_of(tmp_path).libraries, {}).unmet == ()
    compile_library(kit, source, f"-Wl,--version-script={older}")
    (unmet,) = Links(facts_of(tmp_path).libraries, {}).unmet
    assert (unmet.need.version, unmet.need.file) == ("KIT_2.0", "libkit.so")
    assert (unmet.needed_by, unmet.provider) == ("libuser.so", kit)


@linux
def test_libraries_of_the_nvidia_driver_are_not_missing_from_libtorch(tmp_path):
    source = written(tmp_path, "c.c", "int one() { return 1; }")
    driver = compile_library(tmp_path / "libnvcuvid.so.1", source)
    lib = tmp_path / "lib"
    lib.mkdir()
    compile_library(lib / "libuser.so", "-Wl,--no-as-needed", driver)
    driver.unlink()
    found = Links(facts_of(tmp_path).libraries, {})
    assert (found.missing, found.driver) == ((), ("libnvcuvid.so.1",))


@each_row(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (b"<html>", "it is not an ELF file"),
        (b"\x7fELF", "its ELF headers are damaged"),
        (b"\x7fELF\x02\x01\x01" + bytes(60), "it has no section table"),
    ],
)
def test_a_file_that_is_no_library_says_what_it_is(tmp_path, content, problem):
    file = tmp_path / "libtorch.so"
    file.write_bytes(content)
    assert problem in read(file).problem
    assert problem in facts_of(tmp_path).libraries[0].problem


def test_a_library_that_cannot_be_opened_is_a_problem_and_not_a_crash(tmp_path):
    assert "No such file" in read(tmp_path / "libgone.so").problem


def test_a_folder_that_is_not_there_or_has_no_libraries_is_an_error(tmp_path):
    with pytest.raises(LibtorchError, match="No such file"):
        facts_of(tmp_path / "nowhere")
    with pytest.raises(LibtorchError, match="has no libraries"):
        facts_of(tmp_path)


@each_row(("name", "system"), [("libtorch.dylib", "macOS"), ("torch_cpu.dll", "Windows")])
def test_libraries_of_other_systems_are_not_proved(tmp_path, name, system):
    lib = tmp_path / "lib"
    lib.mkdir(exist_ok=True)
    for old in lib.iterdir():
        old.unlink()
    (lib / name).write_bytes(b"MZ")
    with pytest.raises(LibtorchError, match=f"has libraries for {system}, such as {name}; only"):
        facts_of(tmp_path)


@linux
def test_links_to_a_library_beside_it_are_not_read_twice(tmp_path):
    source = written(tmp_path, "c.c", "int one() { return 1; }")
    compile_library(tmp_path / "libone.so.1.2", source)
    (tmp_path / "libone.so.1").symlink_to("libone.so.1.2")
    (tmp_path / "libone.so").symlink_to("libone.so.1")
    assert [one.name for one in facts_of(tmp_path).libraries] == ["libone.so.1.2"]


@linux
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_a_mutated_library_never_crashes_the_reader(tmp_path, data):
    sound = tmp_path / "lib" / "libsound.so"
    if not sound.exists():
        embed(tmp_path, {".nv_fatbin": container(sass(80), ptx(90))}, sound.name)
    content = bytearray(sound.read_bytes())
    sections = int.from_bytes(content[0x28:0x30], "little")
    areas = (st.integers(0, 63), st.integers(sections, len(content) - 1))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.one_of(*areas, st.integers(0, len(content) - 1)))
        content[at] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged" / "libdamaged.so"
    damaged.parent.mkdir(exist_ok=True)
    damaged.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    facts = facts_of(damaged.parent)
    (library,) = facts.libraries
    assert library.problem or library.format == "elf"
    lost = {one.name for one in Links(facts.libraries, {}).missing}
    assert lost <= set(library.needed)


# The real torch of this environment.

TORCH = Path(importlib.util.find_spec("torch").submodule_search_locations[0])


def highest(prefix, text):
    found = re.findall(rf"\b{prefix}_(\d+(?:\.\d+)*)", text)
    return max(found, key=lambda version: [int(part) for part in version.split(".")])


@linux
def test_the_installed_torch_is_read_as_readelf_reads_it():
    facts = facts_of(TORCH)
    version = re.search(r"__version__ = '([^']+)'", (TORCH / "version.py").read_text())[1]
    assert facts.torch == version
    assert facts.abi == "cxx11"
    assert not [one.problem for one in facts.libraries if one.problem]
    text = subprocess.run(
        ["readelf", "-VW", *(str(one.path) for one in facts.libraries)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for prefix in ("GLIBC", "GLIBCXX", "CXXABI"):
        assert facts.newest(prefix) == highest(prefix, text)


@linux
def test_the_installed_cpu_torch_has_no_gpu_code_and_misses_nothing(tmp_path, fdl):
    facts = facts_of(TORCH)
    if "+cpu" not in facts.torch:
        pytest.skip(f"the torch of this environment is {facts.torch}, no CPU build")
    assert (facts.images, facts.architectures, facts.cuda) == ((), (), None)
    session = fdl("libtorch", "check", str(TORCH), env=without_nvidia(tmp_path / "nvidia"))
    assert session.exit == 0, session.out
    assert "GPU code  none" in session.out
    assert "this machine has them" in session.out
    assert "Problems" not in session.out
