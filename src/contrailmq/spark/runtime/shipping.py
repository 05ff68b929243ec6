"""How this package gets to Spark's Python processes: packed and sent, or found where the driver has it.

Spark pickles a source by the name of its class, and saves with it what Python files had been added to the session until
then. Each process that makes the source, plans a read or runs a task imports the class again. So the package is on its
way before a source is registered; what is added afterwards is for later functions only.

- **Local masters.** Workers are on this host: the package's own directory (or the zip that it was imported from) goes
  on their PYTHONPATH, unless the session was started with it.
- **Clusters**, `local-cluster` among them. The package is packed into a zip and added as a Python file. Under
  `spark-submit --py-files` it is a zip already, which is sent as it is.
- **Spark Connect.** The zip is added to the session's artifacts: nobody knows there where executors are.

Only Python files travel. What they import besides must be there already; `needs.py` tells what is missing.
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
