"""An edited source is never hidden by an older compiled module; what is compiled and unedited is used.

The real thing, small: a package of three modules with the tools and the front of ours, compiled by mypyc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from contrailmq import _compiled

ROOT = Path(__file__).resolve().parents[1]
HOT = """from __future__ import annotations

from contrailmq.limits import LIMIT


def limit() -> int:
    return LIMIT
"""
SHOW = "import contrailmq.hot; print(contrailmq.hot.limit(), contrailmq.hot.__file__.rpartition('.')[2])"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")


def tree(root: Path, hot: str = HOT) -> Path:
    """A small project with our tools and our package's front."""
    package = root / "src" / "contrailmq"
    package.mkdir(parents=True)
    shutil.copytree(ROOT / "tools", root / "tools")
    (root / "tools" / "hot-modules.txt").write_text("# one\nhot\n")
    (root / "constraints.txt").write_text("mypy==2\n")
    shutil.copy(ROOT / "src" / "contrailmq" / "_compiled.py", package)
    (package / "__init__.py").write_text("from contrailmq import _compiled\n")
    (package / "limits.py").write_text("from typing import Final\n\nLIMIT: Final = 3\n")
    (package / "hot.py").write_text(hot)
    return root


def environment(**changes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != _compiled.PURE} | changes


def compiling(root: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "compile_hot.py")]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**changes), start_new_session=True)


def shown(root: Path, **changes: str) -> tuple[str, str]:
    """What a fresh process gets from the hot module, with the kind of its file, and what it says on standard error."""
    changes |= {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], capture_output=True, text=True, env=environment(**changes), check=True
    )
    return done.stdout.strip(), done.stderr


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tree(tmp_path_factory.mktemp("compiled"))
    done = compiling(root)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "contrailmq: 1 hot modules compiled with mypyc (CONTRAILMQ_PURE=1 leaves that out)\n"
    return root


@pytest.fixture
def copy_of(compiled: Path, tmp_path: Path) -> Path:
    """To be edited: times and all."""
    return Path(shutil.copytree(compiled, tmp_path / "copy"))


@needs_compiler
def test_a_compiled_module_is_used_while_its_source_is_unchanged(compiled: Path) -> None:
    assert shown(compiled) == ("3 so", "")


@needs_compiler
def test_a_touched_source_is_unchanged(copy_of: Path) -> None:
    os.utime(copy_of / "src" / "contrailmq" / "hot.py", ns=(1, 1))
    assert shown(copy_of) == ("3 so", "")


@needs_compiler
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("hot", "return LIMIT", "return 4 + 0"), ("limits", "= 3", "= 4"), ("hot", "LIMIT\n", "4\n")],
)
def test_an_edited_source_runs_and_one_line_names_it_and_the_remedy(
    copy_of: Path, name: str, old: str, new: str
) -> None:
    """Also one whose constant mypyc copied, of the same size or another."""
    source = copy_of / "src" / "contrailmq" / f"{name}.py"
    head, _, tail = source.read_text().rpartition(old)
    source.write_text(f"{head}{new}{tail}")
    result, said = shown(copy_of)
    assert result == "4 py"
    assert said == (
        f"contrailmq runs as plain Python: {name}.py has changed since it was compiled; "
        "make compile (or installing again) renews it\n"
    )


FOR_A_WHEEL = """
import sys
from pathlib import Path
import compile_hot
compile_hot.run_mypyc = lambda folder: print("compiled again")
compile_hot.compile_to(Path(sys.argv[1]), keep_times=False)
"""


@needs_compiler
@pytest.mark.parametrize(
    ("edited", "wish", "said"),
    [
        ("", "1", ""),
        ("", "0", "compiled again\n"),
        ("hot", "1", "compiled again\n"),
        ("limits", "1", "compiled again\n"),
    ],
)
def test_a_wheel_takes_compiled_modules_of_the_same_sources_if_it_may(
    copy_of: Path, tmp_path: Path, edited: str, wish: str, said: str
) -> None:
    package, folder = copy_of / "src" / "contrailmq", tmp_path / "wheel"
    folder.mkdir()
    os.utime(package / "hot.py", ns=(1, 1))
    if edited:
        (package / f"{edited}.py").write_text((package / f"{edited}.py").read_text() + "\n# new\n")
    done = subprocess.run(
        [sys.executable, "-c", FOR_A_WHEEL, str(folder)],
        env=environment(CONTRAILMQ_REUSE=wish, PYTHONPATH=str(copy_of / "tools")),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == said
    made = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*.so")}
    beside = {file.relative_to(copy_of / "src"): file.read_bytes() for file in (copy_of / "src").rglob("*.so")}
    assert made == ({} if said else beside)


@needs_compiler
def test_a_missing_compiled_module_means_plain_python_for_all(copy_of: Path) -> None:
    (module,) = (copy_of / "src" / "contrailmq").glob("*.so")
    module.unlink()
    result, said = shown(copy_of)
    assert result == "3 py"
    assert f"{module.name} is missing" in said


@needs_compiler
def test_a_wish_for_plain_python_is_silent(compiled: Path) -> None:
    assert shown(compiled, CONTRAILMQ_PURE="1") == ("3 py", "")
    assert shown(compiled, CONTRAILMQ_PURE="0") == ("3 so", "")


@needs_compiler
def test_removing_leaves_plain_python_and_nothing_else(copy_of: Path) -> None:
    subprocess.run([sys.executable, str(copy_of / "tools" / "compile_hot.py"), "--remove"], check=True)
    left = {path.name for path in (copy_of / "src").rglob("*") if path.suffix in (".so", ".txt", ".c")}
    assert left == set()
    assert shown(copy_of) == ("3 py", "")


@needs_compiler
def test_a_module_that_does_not_compile_leaves_plain_python_with_the_cause(tmp_path: Path) -> None:
    root = tree(tmp_path, HOT.replace("-> int", "-> str"))
    done = compiling(root)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "contrailmq: plain Python is installed, not compiled: compiling failed (src/contrailmq/hot.py:7"
    )
    assert shown(root) == ("3 py", "")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"CC": "no-such-compiler -x"}, "no C compiler (no-such-compiler) was found; install one"),
        ({"PATH": "/nowhere", "CC": ""}, "was found; install one (Debian: apt install gcc) and install again"),
        ({"CONTRAILMQ_PURE": "1"}, "CONTRAILMQ_PURE was set when it was installed; install again without it"),
    ],
)
def test_without_a_compiler_one_line_names_the_remedy_and_plain_python_runs(
    tmp_path: Path, changes: dict[str, str], cause: str
) -> None:
    root = tree(tmp_path)
    done = compiling(root, **changes)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("contrailmq: plain Python is installed, not compiled: ")
    assert cause in done.stderr
    assert shown(root) == ("3 py", "")
    build = _compiled.found(str(root / "src" / "contrailmq"), pure=False)
    assert build.compiled == 0
    assert cause in str(build)


def manifest(package: Path, suffix: str) -> None:
    package.mkdir()
    (package / "hot.py").write_bytes(b"x = 1\n")
    (package / f"hot{suffix}").write_bytes(b"")
    (package / "_compiled.txt").write_text(
        f"compiled {suffix}\n{zlib.crc32(b'x = 1' + bytes([10])):08x} 6 0 hot hot.py\n"
    )


def test_modules_compiled_for_another_python_are_hidden(tmp_path: Path) -> None:
    """They would not be loaded, but others of an older build may lie beside them."""
    manifest(tmp_path / "made", ".cpython-309-x86_64-linux-gnu.so")
    build = _compiled.found(str(tmp_path / "made"), pure=False)
    assert (build.compiled, build.is_stale, build.hidden) == (0, False, ("hot.py",))
    assert "install again with this one" in build.why_plain
    manifest(tmp_path / "right", EXTENSION_SUFFIXES[0])
    assert _compiled.found(str(tmp_path / "right"), pure=False) == _compiled.Build(compiled=1)


def test_the_finder_knows_the_hot_modules_and_nothing_else(tmp_path: Path) -> None:
    finder = _compiled.PlainSources(str(tmp_path / "made"), ["store/queues/keys.py"])
    found = finder.find_spec("made.store.queues.keys")
    assert found is not None
    assert found.origin == str(tmp_path / "made" / "store" / "queues" / "keys.py")
    assert finder.find_spec("made.store") is None
    assert finder.find_spec("json") is None


def test_this_process_runs_what_it_says() -> None:
    from contrailmq.store.log import commit_log

    assert str(commit_log.__file__).endswith(".py") == (_compiled.build.compiled == 0)


def test_every_hot_module_exists_once() -> None:
    lines = (ROOT / "tools" / "hot-modules.txt").read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    assert len(names) == len(set(names)) > 30
    assert [name for name in names if not (ROOT / "src" / "contrailmq" / f"{name}.py").exists()] == []
