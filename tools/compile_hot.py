"""Compile the hot modules with mypyc: the build hook of the wheel, and `make compile`.

An editable install gets its compiled modules beside the sources, a wheel has them inside. Either has a manifest with
them, so that an edited source is never hidden by an older compiled module; `src/contrailmq/_compiled.py` describes it.
Where they cannot be compiled, the manifest says why, and plain Python is installed.

mypyc writes one C file for each module, and as many compilers as there are cores work on them: 104 s of CPU for 41
modules, where one file for all took 205 s of one core. Whether the split costs speed is open: it was measured on a busy
machine only. The least of three runs split and of six in one file, us of CPU: a put 8.3 and 8.9, put_many 6.2 and 6.0 a
message, a get 11.5 and 12.6; but side by side, put and get were slower split in two rounds of three.

    python tools/compile_hot.py             compile in place (make compile)
    python tools/compile_hot.py --remove    plain Python again (make pure)
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilderConfig

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "src"
PACKAGE: Final = SOURCES / "contrailmq"
MANIFEST: Final = "_compiled.txt"
PURE: Final = "CONTRAILMQ_PURE"
REUSE: Final = "CONTRAILMQ_REUSE"  # set by tools/wheels.py: a wheel takes the modules that make install compiled
# mypyc, and whatever the sources that it reads import: without the types of those it refuses them.
BUILD_TOOLS: Final = ("mypy", "librt", "lz4", "msgspec", "uvloop", "zlib-ng", "zstandard")
OUTPUT_LINES: Final = 30  # of a compiler that fails


class CannotCompile(Exception):
    """The text is the cause and the remedy, in one line."""


class CompiledModules(BuildHookInterface[WheelBuilderConfig]):
    """Hatchling calls it for every wheel, also for the one that an editable install is."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """In the versions of constraints.txt, since mypyc and librt have to fit each other; none for plain Python."""
        if why_not() or may_reuse():
            return []
        return ["setuptools", *(line for line in constraints() if line.partition("==")[0] in BUILD_TOOLS)]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._made = Path(tempfile.mkdtemp(prefix="contrailmq-build-"))
        if version == "editable":
            compile_in_place()
            return
        says = compile_to(self._made, keep_times=False)
        tell(says)
        files = [file for file in self._made.rglob("*") if file.is_file()]
        build_data["force_include"].update({str(file): str(file.relative_to(self._made)) for file in files})
        is_pure = not any(file.suffix == ".so" for file in files)
        build_data["pure_python"], build_data["infer_tag"] = is_pure, not is_pure

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._made, ignore_errors=True)


def compile_in_place() -> bool:
    """Compiled modules and their manifest beside the sources; False where there is only a manifest that says why."""
    remove_compiled()
    with tempfile.TemporaryDirectory(prefix="contrailmq-build-") as folder:
        says = compile_to(Path(folder), keep_times=True)
        files = sorted(
            (file for file in Path(folder).rglob("*") if file.is_file()), key=lambda file: file.name == MANIFEST
        )
        for file in files:  # the manifest last: without it nothing vouches for the others
            shutil.copy2(file, SOURCES / file.relative_to(folder))
    tell(says)
    return len(files) > 1


def remove_compiled() -> None:
    (PACKAGE / MANIFEST).unlink(missing_ok=True)
    for file in compiled_files():
        file.unlink()


def compile_to(folder: Path, *, keep_times: bool) -> str:
    """Fill a folder with what belongs beside the package's sources, the manifest included; returns what to tell."""
    (folder / "contrailmq").mkdir()
    manifest = folder / "contrailmq" / MANIFEST
    try:
        if reason := why_not():
            raise CannotCompile(reason)
        before = snapshot(keep_times=keep_times)
        copy_compiled(folder) if may_reuse() else run_mypyc(folder)
        if snapshot(keep_times=keep_times) != before:
            raise CannotCompile("a source changed while it was compiled: install again, or make compile")
    except CannotCompile as exc:
        for file in folder.rglob("*.so"):
            file.unlink()
        manifest.write_text(f"plain {exc}\n")
        return f"contrailmq: plain Python is installed, not compiled: {exc}"
    manifest.write_text(f"compiled {sysconfig.get_config_var('EXT_SUFFIX')}\n{before}")
    return f"contrailmq: {len(hot_modules())} hot modules compiled with mypyc ({PURE}=1 leaves that out)"


def may_reuse() -> bool:
    """Whether the compiled modules beside the sources shall be taken, and are of just these sources."""
    try:
        head, *lines = (PACKAGE / MANIFEST).read_text().splitlines()
    except FileNotFoundError:
        return False
    # All but the times, which a wheel does not keep.
    known = [line.split()[:2] + line.split()[3:] for line in lines]
    wanted = [line.split()[:2] + line.split()[3:] for line in snapshot(keep_times=False).splitlines()]
    is_of_these = head == f"compiled {sysconfig.get_config_var('EXT_SUFFIX')}" and known == wanted
    return is_of_these and os.environ.get(REUSE) == "1"


def copy_compiled(folder: Path) -> None:
    for file in compiled_files():
        target = folder / file.relative_to(SOURCES)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)


def compiled_files() -> list[Path]:
    return [*PACKAGE.rglob("*.so"), *SOURCES.glob("*__mypyc.*.so")]


def why_not() -> str:
    """Why nothing can or shall be compiled here; empty where it can."""
    if os.environ.get(PURE, "") not in ("", "0"):
        return f"{PURE} was set when it was installed; install again without it"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler}) was found; install one (Debian: apt install gcc) and install again"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return (
            "Python.h was not found; install this Python's headers (Debian: apt install python3-dev) and install again"
        )
    return ""


def hot_modules() -> list[str]:
    """Paths below the package."""
    lines = (ROOT / "tools" / "hot-modules.txt").read_text().splitlines()
    return [f"{line.strip()}.py" for line in lines if line.strip() and not line.startswith("#")]


def constraints() -> list[str]:
    return (ROOT / "constraints.txt").read_text().split()


def snapshot(*, keep_times: bool) -> str:
    """The lines of the manifest. Times are kept where the sources stay; those of a wheel get others when installed."""
    hot = {PACKAGE / path for path in hot_modules()}
    used = {home for path in hot for home in imported_from(path)} - hot
    lines = []
    for path in (*sorted(hot), *sorted(used)):
        data, status = path.read_bytes(), path.stat()
        modified_ns = status.st_mtime_ns if keep_times else 0
        kind = "hot" if path in hot else "used"
        lines.append(
            f"{zlib.crc32(data):08x} {len(data)} {modified_ns} {kind} {path.relative_to(PACKAGE).as_posix()}\n"
        )
    return "".join(lines)


def imported_from(path: Path) -> Iterator[Path]:
    """The modules of ours that names come from: through a package's front, also those behind it."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            folder = SOURCES.joinpath(*name.split("."))
            if not name.startswith("contrailmq."):
                continue
            if folder.with_suffix(".py").exists():
                yield folder.with_suffix(".py")
            elif (folder / "__init__.py").exists() and folder / "__init__.py" != path:
                yield folder / "__init__.py"
                yield from imported_from(folder / "__init__.py")


def run_mypyc(folder: Path) -> None:
    """In a process of its own: mypyc ends the one that it runs in when it finds an error."""
    done = subprocess.run(
        [sys.executable, __file__, "--into", str(folder)], cwd=ROOT, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        print(*lines[-OUTPUT_LINES:], sep="\n", file=sys.stderr)
        cause = next((line for line in lines if "error" in line.lower()), f"mypyc ended with {done.returncode}")
        raise CannotCompile(f"compiling failed ({cause.strip()[:200]}); make compile shows all of it")


def mypyc_into(folder: Path) -> None:
    """mypyc to C, then C to modules; what it prints is for the one who has to find out why it fails."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    cores = len(os.sched_getaffinity(0))

    class AllCores(build_ext):  # type: ignore[misc]
        def build_extensions(self) -> None:
            compiler, one_by_one = self.compiler, self.compiler.compile
            pool = ThreadPool(cores)

            def compile_side_by_side(sources: list[str], *args: Any, **settings: Any) -> list[str]:
                objects = pool.map(lambda source: one_by_one([source], *args, **settings), sources, chunksize=1)
                return [name for names in objects for name in names]

            compiler.compile = compile_side_by_side
            super().build_extensions()

    with tempfile.TemporaryDirectory(prefix="contrailmq-mypyc-") as build:
        os.environ["MYPY_CACHE_DIR"] = build
        extensions = mypycify(
            [f"src/contrailmq/{path}" for path in hot_modules()],
            multi_file=True,
            opt_level="2",
            debug_level="0",
            target_dir=build,
            group_name="contrailmq",
        )
        for extension in extensions:
            # Another compiler's new warning is no reason to stop. Hidden names need no table of addresses.
            flags = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
            extension.extra_compile_args = [*flags, "-fvisibility=hidden"]
            extension.sources.sort(key=os.path.getsize, reverse=True)  # no core is left with the longest one at the end
        command = AllCores(Distribution({"name": "contrailmq", "ext_modules": extensions}))
        command.build_lib, command.build_temp, command.parallel = str(folder), build, cores
        command.ensure_finalized()
        command.run()


def tell(line: str) -> None:
    """One line, on the terminal too: pip keeps what a build prints to itself."""
    print(line, file=sys.stderr)
    if not sys.stderr.isatty():
        try:
            with open("/dev/tty", "w") as terminal:
                terminal.write(f"\r{line}\n")
        except OSError:
            return  # nobody is there to read it


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            return 0 if compile_in_place() else 1
        case ["--remove"]:
            remove_compiled()
        case ["--into", folder]:
            mypyc_into(Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
