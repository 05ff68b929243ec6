"""How many bytes of memory a simulated process holds: every object that can be reached from one of its own.

What belongs to the simulation is left out, for all processes share it; so are modules, classes and functions, which a
process has once, and mapped files, which are its disk's.
"""

from __future__ import annotations

import gc
import mmap
import sys
import types
from typing import Final

_SHARED: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    types.CoroutineType,
    types.GeneratorType,
    mmap.mmap,
    memoryview,
)


def bytes_held_by(owner: object) -> int:
    """Of everything that the owner leads to, itself included."""
    known, waiting, total = {id(owner)}, [owner], 0
    while waiting:
        one = waiting.pop()
        total += sys.getsizeof(one, 0)
        for other in gc.get_referents(one):
            if id(other) not in known and not isinstance(other, _SHARED) and not _is_of_the_simulation(other):
                known.add(id(other))
                waiting.append(other)
    return total


def _is_of_the_simulation(one: object) -> bool:
    return type(one).__module__.startswith(("simulation", "greenlet"))
