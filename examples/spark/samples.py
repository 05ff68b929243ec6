"""Where the Spark examples run when nothing is named: a cluster inside this process, with a few messages."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from contrailmq import Admin, Message, Producer
from contrailmq.testing import LocalCluster


@contextmanager
def own_cluster(topic: str, bodies: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A NameServer's address and the store of its one broker, whose topic holds these messages in one queue."""
    with (
        tempfile.TemporaryDirectory(prefix="contrailmq-example-") as directory,
        LocalCluster(store=directory) as cluster,
    ):
        with Producer("samples", namesrv=cluster.namesrv) as producer:
            queue = producer.queues(topic)[0]
            for body in bodies:
                producer.send(Message(topic, body.encode()), queue=queue)
        print(f"a broker of its own, with {len(bodies)} messages on topic {topic}")
        yield cluster.namesrv, str(Path(directory, "broker-0"))


@contextmanager
def given_cluster(namesrv: str, topic: str) -> Iterator[tuple[str, str]]:
    """The user's own, which must have the topic."""
    with Admin(namesrv=namesrv) as admin:
        if topic not in admin.topics():
            sys.exit(f"topic {topic} does not exist at {namesrv}: send to it first, or run this without --namesrv")
    yield namesrv, ""
