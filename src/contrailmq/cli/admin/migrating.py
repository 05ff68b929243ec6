"""`contrailmq admin migrate plan`: what of a cluster carries over to brokers of ours, what does not, what to do.

It asks by RocketMQ's own requests and changes nothing. What our brokers do with a setting is not said here: it is asked
of the tables that a start goes by (`broker/foreign_settings.py`, the store's settings), so plan and start agree.

    exit code   0 everything carries over   3 something is to be done first   4 something would be lost or refused
                1 the cluster cannot be asked   2 the command line is wrong
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import typer

from contrailmq.cli.admin.asking import Json, Namesrv, ask
from contrailmq.cli.admin.output import counted, print_json
from contrailmq.message import ContrailError, is_system_group, printable

if TYPE_CHECKING:
    from contrailmq import Admin
    from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
    from contrailmq.wire.bodies import TopicConfigWrapper

migrate_app = typer.Typer(help="Moving a cluster to brokers of ours.", no_args_is_help=True)
NAMES_SHOWN: Final = 5


class Urgency(enum.IntEnum):
    """Its value is the exit code."""

    KEPT = 0
    FIRST = 3
    BLOCKS = 4


WORDS: Final = {Urgency.KEPT: "carries over", Urgency.FIRST: "to do first", Urgency.BLOCKS: "would not carry over"}


class Finding(NamedTuple):
    urgency: Urgency
    about: str
    where: str
    text: str
    remedy: str


@dataclass(slots=True)
class BrokerFacts:
    """What one broker says of itself. Nothing where it does not answer."""

    name: str
    broker_id: int
    address: str
    settings: dict[str, str] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)
    topics: TopicConfigWrapper | None = None
    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"{self.name} ({'master' if self.broker_id == 0 else f'slave {self.broker_id}'}, {self.address})"


@migrate_app.callback()
def _migrate() -> None:
    """Moving a cluster to brokers of ours."""


@migrate_app.command("plan")
def migrate_plan(namesrv: Namesrv = None, as_json: Json = False) -> None:
    """What carries over to brokers of ours, what would not, and what to do; the most urgent first."""
    facts = ask(namesrv, facts_of_cluster)
    findings = sorted((found for broker in facts for found in examine(broker)), key=lambda found: -found.urgency)
    urgency = max((found.urgency for found in findings), default=Urgency.KEPT)
    if as_json:
        print_json(
            {
                "status": urgency.name.lower(),
                "brokers": len(facts),
                "findings": [found._asdict() | {"urgency": found.urgency.name.lower()} for found in findings],
            }
        )
    else:
        for found in findings:
            typer.echo(printable(f"{WORDS[found.urgency]}: {found.about}: {found.where}: {found.text}"))
            if found.remedy:
                typer.echo(printable(f"    {found.remedy}"))
        typer.echo(f"{counted(len(facts), 'broker')} looked at: {WORDS[urgency]}")
    raise typer.Exit(int(urgency))


def facts_of_cluster(admin: Admin) -> list[BrokerFacts]:
    """Every broker that the NameServer knows, by name and id. One that does not answer is a fault, not the end."""
    table = admin.cluster().broker_addr_table
    found = [
        BrokerFacts(name, broker_id, address)
        for name, group in sorted(table.items())
        for broker_id, address in sorted(group.broker_addrs.items())
    ]
    for broker in found:
        try:
            broker.settings = admin.broker_config(broker.address)
            broker.figures = admin.broker_stats(broker.address)
            if broker.broker_id == 0:
                broker.topics = admin.topic_table(broker.address)
                broker.groups = admin.group_configs(broker=broker.name)[broker.name]
        except ContrailError as exc:
            broker.faults.append(str(exc))
    return found


def examine(broker: BrokerFacts) -> list[Finding]:
    """What one broker's facts mean."""
    if broker.faults:
        remedy = "start it, and make the plan again"
        return [Finding(Urgency.FIRST, "broker", broker.where, f"not looked at: {'; '.join(broker.faults)}", remedy)]
    return [*_settings(broker), *_version(broker), *_topics(broker), *_groups(broker), *_waiting(broker)]


# --- settings


def _settings(broker: BrokerFacts) -> Iterator[Finding]:
    """What our broker would say to this broker's settings as a configuration file."""
    from contrailmq.broker.foreign_settings import PROMISES

    broken = set()
    for promise in PROMISES:
        text = broker.settings.get(promise.key, "").strip()
        if text and promise.is_asked_for(text):
            broken.add(promise.key)
            yield Finding(
                Urgency.BLOCKS,
                "setting",
                broker.where,
                f"{promise.key}={text}: {promise.missing}",
                _remedy(promise.key),
            )
    kind = broker.settings.get("storeType", "default")
    if kind != "default":
        yield Finding(
            Urgency.BLOCKS,
            "store",
            broker.where,
            f"storeType={kind}: its queues are in RocksDB, which is not read",
            "the log carries over, and `contrailmq store rebuild` makes the queues from it; or drain this broker",
        )
    yield from _refused(broker, broken)


def _remedy(key: str) -> str:
    if "RocksDB" in key or key in ("configManagerVersion", "popConsumerKVServiceEnable"):
        return (
            "drain this broker, or turn it off there and let the broker write its files again, before it is taken over"
        )
    if key in ("aclEnable", "authenticationEnabled", "authorizationEnabled"):
        return "keep the ports in a trusted network, or wait; allowUnsupported=true starts without it"
    if "ontroller" in key or key in ("allAckInSyncStateSet", "enableDLegerCommitLog", "duplicationEnable"):
        return "choose a master by hand, with slaves that follow it and enableSlaveActingMaster (docs/replication.md)"
    return "remove it from the configuration if nothing relies on it"


def _refused(broker: BrokerFacts, known: Iterable[str]) -> Iterator[Finding]:
    """Values that a start of ours refuses, one by one, in the words of that start."""
    from contrailmq.broker.config import read_configs

    asked = {key: text for key, text in broker.settings.items() if key not in {*known, "storeType"}}
    try:
        read_configs(asked)
    except ContrailError as exc:
        remedy = "change the value in the configuration of the broker that takes over"
        yield Finding(Urgency.FIRST, "setting", broker.where, str(exc), remedy)


def _version(broker: BrokerFacts) -> Iterator[Finding]:
    version = broker.figures.get("brokerVersionDesc", "unknown")
    yield Finding(Urgency.KEPT, "version", broker.where, f"{version}: log, queues and index are read as they are", "")


# --- what it holds


def _topics(broker: BrokerFacts) -> Iterator[Finding]:
    if broker.topics is None:
        return
    table = broker.topics.topic_config_table
    odd = {
        "compaction topics": (
            "cleanup.policy",
            "COMPACTION",
            "they are kept whole: old values of a key are not removed",
        ),
    }
    for about, (attribute, value, text) in odd.items():
        names = [name for name, config in table.items() if config.attributes.get(attribute, "").upper() == value]
        if names:
            remedy = "move their producers and consumers to plain topics, or leave these topics where they are"
            yield Finding(Urgency.BLOCKS, about, broker.where, f"{_listed(names)}: {text}", remedy)
    mapped = broker.topics.topic_queue_mapping_detail_map or broker.topics.topic_queue_mapping_info_map or {}
    if mapped:
        yield Finding(
            Urgency.BLOCKS,
            "static topics",
            broker.where,
            f"{_listed(mapped)}: queues that are mapped over brokers are not served",
            "move their producers and consumers to plain topics first",
        )
    yield Finding(Urgency.KEPT, "topics", broker.where, f"{counted(len(table), 'topic')}, from config/topics.json", "")


def _groups(broker: BrokerFacts) -> Iterator[Finding]:
    own = [name for name in broker.groups if not is_system_group(name)]
    if own or broker.broker_id == 0:
        text = f"{counted(len(own), 'group')} with settings and offsets, from config/*.json"
        yield Finding(Urgency.KEPT, "groups", broker.where, text, "")


def _waiting(broker: BrokerFacts) -> Iterator[Finding]:
    """Timers are in files that carry over, but those of a broker that stands still are late: said, not hidden."""
    if broker.settings.get("timerWheelEnable", "true") != "true":
        return
    late_s = _number(broker.figures.get("timerReadBehind"))
    behind = _number(broker.figures.get("timerOffsetBehind"))
    if late_s > 0:
        text = f"the timer wheel is {late_s:,} s late: what is due already is delivered after the move"
        yield Finding(Urgency.FIRST, "timers", broker.where, text, _wait_for("timerReadBehind"))
    if behind > 0:
        text = f"not in the timer wheel yet: {counted(behind, 'message')} of its topic, to be read after the move"
        yield Finding(Urgency.FIRST, "timers", broker.where, text, _wait_for("timerOffsetBehind"))


def _wait_for(figure: str) -> str:
    return f"wait until `contrailmq admin broker status` shows {figure} 0 before the broker is stopped"


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _listed(names: Iterable[str] | Mapping[str, msgspec.Raw]) -> str:
    known = sorted(names)
    more = f" and {len(known) - NAMES_SHOWN} more" if len(known) > NAMES_SHOWN else ""
    return ", ".join(known[:NAMES_SHOWN]) + more
