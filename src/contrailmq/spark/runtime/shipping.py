"""How this package reaches Spark's Python processes. It must be on its way before a source is registered.

Spark pickles a source by its class name together with the Python files added so far, and every process that makes the
source, plans a read or runs a task imports the class again.

- Local masters: the package's directory (or the zip that it was imported from) goes on the workers' PYTHONPATH.
- Clusters, also `local-cluster`: the package is zipped and added as a Python file. Under `spark-submit --py-files` it
  is a zip already.
- Spark Connect: the zip becomes an artifact of the session.

Only Python files are sent. What they import must be installed there; `needs.py` reports what is missing.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import weakref
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE: Final = Path(__file__).parents[2]
_sent: weakref.WeakSet[Any] = weakref.WeakSet()  # sessions of Spark Connect that have it


def is_local_master(master: str) -> bool:
    """Whether tasks run in the driver's own JVM. `local-cluster` has executors in processes of their own."""
    return master == "local" or master.startswith("local[")


def ship_package(spark: SparkSession) -> None:
    """Bring this package to whatever Python processes the session starts from now on. The second time does nothing."""
    context = getattr(spark, "_sc", None)
    if context is None:
        if spark not in _sent:
            spark.addArtifacts(str(pack_package()), pyfile=True)
            _sent.add(spark)
    elif is_local_master(context.master):
        _show_to_local_workers(context)
    else:
        archive = pack_package()
        if archive.name not in context._python_includes:
            context.addPyFile(str(archive))


def _show_to_local_workers(context: Any) -> None:
    """Let workers on this host import the package from where the driver did, by the driver's Python."""
    folder = str(PACKAGE.parent)
    started_with = context._jvm.System.getenv("PYTHONPATH") or ""
    added = context.environment.get("PYTHONPATH", "")
    if folder not in (*started_with.split(os.pathsep), *added.split(os.pathsep)):
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [added, folder]))
    if "PYSPARK_PYTHON" not in os.environ:  # Spark would take any python3 on the PATH
        context.pythonExec = sys.executable


def pack_package() -> Path:
    """This package as a zip that Python can import from, made once per content."""
    if PACKAGE.parent.is_file():
        return PACKAGE.parent  # imported from such a zip
    sources = sorted(PACKAGE.rglob("*.py"))
    digest = hashlib.sha256()
    for source in sources:
        digest.update(str(source.relative_to(PACKAGE)).encode() + b"\0" + source.read_bytes())
    archive = cache_folder() / f"contrailmq-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        with (
            tempfile.NamedTemporaryFile(dir=archive.parent, delete=False) as part,
            zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for source in sources:
                packed.write(source, Path("contrailmq") / source.relative_to(PACKAGE))
        os.replace(part.name, archive)
    return archive


def cache_folder() -> Path:
    """Where what is made once stays; a temporary directory where the user has no room for it."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "contrailmq"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass  # a read-only home: a temporary directory does as well
    return Path(tempfile.mkdtemp(prefix="contrailmq-"))
