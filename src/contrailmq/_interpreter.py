"""The Python that runs, and whether it was built to be fast.

Imports nothing of ours: `tools/best_python.py` runs this file with any Python that it finds.
"""

from __future__ import annotations

import sys
import sysconfig


def is_optimised() -> bool:
    """Whether it was built with profile-guided optimisation.

    Debian and Ubuntu build theirs so without the configure flag that says it; the install schemes that they add give
    them away. A Python without a record of its flags, as on Windows, is taken as the makers' own.
    """
    flags = sysconfig.get_config_var("CONFIG_ARGS")
    if flags is None:
        return True
    if sysconfig.get_config_var("Py_DEBUG"):
        return False
    return "--enable-optimizations" in flags or "deb_system" in sysconfig.get_scheme_names()


def described() -> str:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return f"Python {version}, {sys.executable}, built {'with' if is_optimised() else 'without'} optimisations"
