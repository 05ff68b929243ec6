"""Adopts topics that have messages in queues but no entry in the table, so that their messages are served.

The table may be older than the queues, for example after a restore from a copy. Without an entry nobody could read
these messages, and cleaning would destroy their queues. An adopted topic gets as many queues as its highest queue id
asks for, the usual permissions, and queue.type=BatchCQ where its queues are of that kind. A retry topic brings its
group along. This happens when the store opens. A message that still waits then (delay level, timer, transaction) has
its topic adopted when the first queue of that topic is made.

A slave's table comes from its master, and may be older than what the log has brought. A topic that shows up in its
queues and not in its table is `missing`: slave_sync.py asks the master for its tables then. When there is no master to
answer, the slave adopts what is missing, and the next copy of the master's table takes its place.

Not adopted: deleted topics (deleted_topics.py), light queues and the broker's own `rmq_sys_` topics. A topic that the
table knows keeps its number of queues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.keeping import GROUPS_FILE, TOPICS_FILE
from contrailmq.broker.state.offsets import OFFSETS_FILE
from contrailmq.broker.state.topics import QUEUES_MAX, Topic
from contrailmq.message import RETRY_PREFIX, MessageError, SystemTopic, check_group, check_topic
from contrailmq.store import LIGHT_PREFIX

log = logging.getLogger("contrailmq.broker")

NAMES_MAX: Final = 10  # in a line of the log


class Adoption:
    """Owner: the broker's server. Everything runs on the loop."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._adopted: dict[str, Topic] = {}  # as they were made; one that was changed since is somebody else's
        self.missing: dict[str, int] = {}  # of a slave: topics that its master has not told it of, and their queues
        self.on_missing: Callable[[], None] = lambda: None

    def at_opening(self) -> list[str]:
        """Call it once, when store and tables are loaded; returns the files that are out of date then."""
        node = self._node
        node.store.new_queues.clear()
        changed = [DELETED_FILE] if node.deleted.fit(node.store.log_min_offset, node.store.appended_offset) else []
        self._remove_what_was_deleted()
        if node.is_slave:
            return changed
        changed += self._finish_deletions()
        unknown = self._unknown_topics()
        adopted = [self._adopt(name, queues=unknown[name]) for name in unknown if not node.deleted.is_gone(name)]
        if adopted:
            log.warning(
                "adopted %d topics that the queues hold and topics.json lacks: %s; change their queues and permissions "
                "with updateTopic if they were others",
                len(adopted),
                some([f"{topic.name} ({topic.write_queues} queues)" for topic in adopted]),
            )
        groups = self._adopt_groups(adopted if node.has_groups_file else list(node.topics))
        return changed + [TOPICS_FILE] * bool(adopted) + [GROUPS_FILE] * bool(groups)

    def at_delivery(self, queues: Sequence[tuple[str, int]]) -> None:
        """Queues were made: whose topic does the table lack?"""
        node = self._node
        for name, queue_id in queues:
            known = node.topics.get(name)
            if known is None and node.is_slave:
                self._miss(name, queue_id)
            elif known is None and _may_adopt(name) and not node.deleted.is_gone(name):
                self._adopt_groups([self._adopt(name, queues=queue_id + 1)])
                log.warning("adopted topic %s: a message came to its queue %d, topics.json lacks it", name, queue_id)
            elif known is not None and known is self._adopted.get(name) and queue_id >= known.queue_limit:
                self._adopt(name, queues=queue_id + 1)

    def _miss(self, name: str, queue_id: int) -> None:
        if _may_adopt(name):
            self.missing[name] = max(self.missing.get(name, 0), queue_id + 1)
            self.on_missing()

    def adopt_missing(self) -> list[str]:
        """Of a slave whose master is gone: serve what it has; returns the files that are out of date then."""
        missing, self.missing = self.missing, {}
        adopted = [
            self._adopt(name, queues=queues) for name, queues in missing.items() if name not in self._node.topics
        ]
        if not adopted:
            return []
        log.warning(
            "adopted %d topics that came with the log just before the master went away: %s; the master's table takes "
            "their place when it is back",
            len(adopted),
            some([f"{topic.name} ({topic.write_queues} queues)" for topic in adopted]),
        )
        return [TOPICS_FILE] + [GROUPS_FILE] * bool(self._adopt_groups(adopted))

    def _remove_what_was_deleted(self) -> None:
        """Queues that the log brought back: those whose newest message is older than the deletion of their topic.

        This is checked per queue: in a topic that was created again some may have no message yet.
        """
        count = self._node.store.delete_queues_before(self._node.deleted.log_ends())
        if count:
            log.info("removed %d queues of deleted topics that the log had brought back", count)

    def _finish_deletions(self) -> list[str]:
        """A crash may have come between the files that a deletion changes; the files that are out of date then.

        Group offsets of a deleted topic mean nothing any more: in one that is created again they would skip as
        many messages. A topic that the table still has stays, empty: a broker of Apache's, which knows no notes, may
        have made it since.
        """
        node = self._node
        files = [OFFSETS_FILE] if node.offsets.remove_topics(node.deleted.gone()) else []
        left = [topic.name for topic in node.topics if node.deleted.is_gone(topic.name)]
        for name in left:
            node.deleted.note_made_again(name)
        if left:
            log.warning(
                "a crash interrupted the deletion of %d topics: their messages are gone, the topics are there: %s; "
                "delete them again if they are not wanted",
                len(left),
                some(left),
            )
        return files + [DELETED_FILE] * bool(left)

    def _unknown_topics(self) -> dict[str, int]:
        """Topics with messages that the table lacks, and how many queues they have."""
        counts: dict[str, int] = {}
        holding: set[str] = set()
        for (topic, queue_id), (low, high) in self._node.store.queues().items():
            if topic not in self._node.topics:
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
                if high > low:
                    holding.add(topic)
        return {topic: counts[topic] for topic in sorted(holding) if _may_adopt(topic)}

    def _adopt(self, name: str, *, queues: int) -> Topic:
        attributes = {"queue.type": "BatchCQ"} if self._node.store.has_batch_queues(name) else {}
        count = min(queues, QUEUES_MAX)
        topic = self._adopted[name] = Topic(name, read_queues=count, write_queues=count, attributes=attributes)
        self._node.topics.put(topic)
        return topic

    def _adopt_groups(self, topics: Sequence[Topic]) -> list[str]:
        """Those of the retry topics among these that no table has."""
        names = [self._group_of(topic.name) for topic in topics if topic.name.startswith(RETRY_PREFIX)]
        adopted = [name for name in dict.fromkeys(names) if name not in self._node.groups and _is_group(name)]
        for name in adopted:
            self._node.groups.put(Group(name))
        if adopted:
            log.warning("adopted %d groups that have retry topics: %s", len(adopted), some(adopted))
        return adopted

    def _group_of(self, retry_topic: str) -> str:
        """Of `%RETRY%group`, or of `%RETRY%group+topic` and `%RETRY%group_topic`: there, popped messages come again."""
        name = retry_topic.removeprefix(RETRY_PREFIX)
        group, separator, _ = name.partition("+")
        if separator:
            return group
        ends = [at for at, character in enumerate(name) if character == "_" and name[at + 1 :] in self._node.topics]
        return name[: ends[0]] if ends and ends[0] and name not in self._node.groups else name


def _may_adopt(topic: str) -> bool:
    if topic.startswith((LIGHT_PREFIX, SystemTopic.PREFIX)):
        return False
    try:
        check_topic(topic)
    except MessageError as exc:
        log.warning("a queue directory is not adopted: %s", exc)
        return False
    return True


def _is_group(name: str) -> bool:
    """False for what cannot be the name of one."""
    try:
        check_group(name)
    except MessageError:
        return False
    return True


def some(names: Iterable[str]) -> str:
    """The first names, for a line of the log."""
    names = list(names)
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
