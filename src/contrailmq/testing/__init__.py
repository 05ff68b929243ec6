"""A real cluster for tests: a NameServer and brokers in this process, on free ports, ready in well under a second.

    from contrailmq.testing import LocalCluster

    with LocalCluster() as cluster:
        ...  # cluster.namesrv is "127.0.0.1:port"

pytest finds the fixture `contrailmq_cluster` by itself once the package is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from contrailmq.testing.cluster import LocalCluster

__all__ = ["LocalCluster"]

PYTEST_PLUGIN: Final = "contrailmq.testing.plugin"


def __getattr__(name: str) -> object:
    """Import the cluster when it is asked for: pytest loads this package in every run that has it installed."""
    if name == "LocalCluster":
        from contrailmq.testing.cluster import LocalCluster

        return LocalCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
