"""How many files and connections this process may have open, and when another connection is one too many.

The kernel gives a new descriptor the lowest number that is free. So the number of a connection that was just accepted
says how many descriptors are in use, whoever uses them, and nobody has to count: from `limit - reserve` on it is one
too many, and what is left belongs to those who must not fail, a store's files above all.
"""

from __future__ import annotations

from typing import Final

NO_LIMIT: Final = 2**31 - 1
OWN_DESCRIPTORS: Final = 32  # of a server without a store: its tables, the connections that it opens itself


def raise_limit() -> None:
    """Lift the soft limit of open files to the hard one, where there is such a thing and we may."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ImportError, OSError, ValueError):  # Windows has no limit, macOS a hard one that cannot be set
        return


def connection_ceiling(reserve: int) -> int:
    """The first descriptor number that no connection may have. A reserve takes at most half of the limit."""
    try:
        import resource
    except ImportError:
        return NO_LIMIT
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return NO_LIMIT if limit == resource.RLIM_INFINITY else limit - min(reserve, limit // 2)
