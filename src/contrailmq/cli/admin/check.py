"""`contrailmq admin check`: what is wrong with a cluster, in order of urgency, and what to do about it.

It asks by RocketMQ's own requests alone, so Apache's clusters are looked at as well as ours. What a broker does not
say is not checked, and a broker that does not answer is a finding, not the end.

    exit code   0 nothing is wrong   3 warnings only   4 something is critical
                1 the cluster cannot be asked   2 the command line is wrong
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from contrailmq.cli.admin.asking import Json, Namesrv, ask
from contrailmq.cli.admin.figures import figure
from contrailmq.cli.admin.output import counted, print_json
from contrailmq.cli.admin.replication import slaves_of_cluster
from contrailmq.cli.admin.watching import watched
from contrailmq.message import ContrailError, SystemTopic, is_system_group, printable, retry_topic

if TYPE_CHECKING:
    from contrailmq import Admin
    from contrailmq.client.admin.admin_groups import QueueProgress
    from contrailmq.wire.bodies import ClusterInfo

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
HALVES_READ_MAX: Final = 200  # to find the oldest that waits
AGED_QUEUES_MAX: Final = 64  # of one group, whose oldest message is asked for
CLOCK_STEP_S: Final = 1.0  # of a clock that is told in whole seconds, as Apache's brokers do
NEAR_FULL: Final = 0.05


class Severity(enum.IntEnum):
    """Its value is the exit code."""

    OK = 0
    WARNING = 3
    CRITICAL = 4


class About(enum.IntEnum):
    """What a finding is about; of two that are as severe, the one that comes first here is more urgent."""

    BROKER = enum.auto()
    DISK = enum.auto()
    REPLICATION = enum.auto()
    TRANSACTIONS = enum.auto()
    LAG = enum.auto()
    SUBSCRIPTIONS = enum.auto()
    CLOCK = enum.auto()


class Finding(NamedTuple):
    severity: Severity
    about: About
    where: str
    text: str
    remedy: str


class Bounds(NamedTuple):
    """From where on something is wrong."""

    lag_messages: int
    lag_minutes: float
    half_minutes: float
    clock_s: float


class Report(NamedTuple):
    findings: list[Finding]
    brokers: int
    groups: int

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.OK)


@watched
def check(
    lag_messages: Annotated[int, typer.Option(min=0, help="a group may be so many messages behind")] = 100_000,
    lag_minutes: Annotated[float, typer.Option(min=0, help="a message may wait so long for a group")] = 10.0,
    half_minutes: Annotated[float, typer.Option(min=0, help="a transaction may be open so long")] = 10.0,
    clock_s: Annotated[float, typer.Option(min=0, help="a broker's clock may differ so much from this one's")] = 2.0,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """What is wrong, most urgent first, with the remedy. Exit code 0: nothing, 3: warnings, 4: something critical."""
    bounds = Bounds(lag_messages, lag_minutes, half_minutes, clock_s)
    report = ask(namesrv, lambda admin: examine(admin, bounds))
    if as_json:
        _print_json(report)
    else:
        _print(report)
    raise typer.Exit(int(report.severity))


def examine(admin: Admin, bounds: Bounds) -> Report:
    """All findings, the most urgent first."""
    info = admin.cluster()
    brokers = [
        (name, id_, address)
        for name, group in sorted(info.broker_addr_table.items())
        for id_, address in sorted(group.broker_addrs.items())
    ]
    findings = [*_masters(info)]
    answering: dict[str, str] = {}  # broker name -> the address of its master, which answers
    for name, id_, address in brokers:
        found = list(_broker(admin, name, id_, address, bounds))
        findings += found
        if id_ == 0 and not any(finding.about is About.BROKER for finding in found):
            answering[name] = address
    findings += _guarded("slaves", _slaves(admin))
    groups: list[str] = []
    if answering:
        findings += _guarded("transactions", _transactions(admin, bounds))
        groups = [group for group in admin.groups() if not is_system_group(group)]
        for group in groups:
            findings += _guarded(group, _group(admin, group, bounds))
    findings.sort(key=lambda finding: (-finding.severity, finding.about))
    return Report(findings, len(brokers), len(groups))


def _guarded(where: str, findings: Iterator[Finding]) -> list[Finding]:
    """What cannot be asked is a finding of its own."""
    found: list[Finding] = []
    try:
        found += findings
    except ContrailError as exc:
        found.append(
            Finding(Severity.WARNING, About.BROKER, where, f"not checked: {exc}", "mend what it says, and check again")
        )
    return found


# --- brokers


def _masters(info: ClusterInfo) -> Iterator[Finding]:
    if not info.broker_addr_table:
        yield Finding(
            Severity.CRITICAL, About.BROKER, "cluster", "no broker is registered", "start one with -n this NameServer"
        )
    for name, group in sorted(info.broker_addr_table.items()):
        if 0 not in group.broker_addrs:
            slaves = counted(len(group.broker_addrs), "slave")
            yield Finding(
                Severity.CRITICAL,
                About.BROKER,
                name,
                f"its master is gone, {slaves} left: nothing can be sent to it",
                "start the master again; its log says why it ended. Consumers read from slaves with slaveReadEnable",
            )


def _broker(admin: Admin, name: str, id_: int, address: str, bounds: Bounds) -> Iterator[Finding]:
    where = f"{name} ({'master' if id_ == 0 else f'slave {id_}'}, {address})"
    try:
        began_ms = time.time() * 1000
        figures = admin.broker_stats(address)
        ended_ms = time.time() * 1000
        settings = admin.broker_config(address)
    except ContrailError as exc:
        severity = Severity.CRITICAL if id_ == 0 else Severity.WARNING
        remedy = "is the process there, and does a firewall let this machine in? Its log ends with the reason"
        yield Finding(severity, About.BROKER, where, f"does not answer: {exc}", remedy)
        return
    yield from _disk(where, figures, settings)
    damaged = _number(figures.get("damagedRecords"))
    if damaged:
        yield Finding(
            Severity.CRITICAL,
            About.DISK,
            where,
            f"{counted(int(damaged), 'damaged record')} found and skipped",
            f"`contrailmq admin broker damage {address}` shows them; check the disk, then `contrailmq store repair`",
        )
    yield from _clock(where, figures, (began_ms + ended_ms) / 2, bounds)


def _disk(where: str, figures: dict[str, str], settings: dict[str, str]) -> Iterator[Finding]:
    used = max(
        (value for key, text in figures.items() if key.startswith("commitLogDiskRatio") for value in [_number(text)]),
        default=0.0,
    )
    refuses = (_number(settings.get("diskSpaceWarningLevelRatio")) or 90) / 100
    cleans = (_number(settings.get("diskMaxUsedSpaceRatio")) or 75) / 100
    hours = settings.get("fileReservedTime", "72")
    remedy = f"free space, add a disk, or lower fileReservedTime ({hours} h)"
    if used >= refuses:
        text = f"the disk is {used:.0%} full, from {refuses:.0%} on messages are refused (diskSpaceWarningLevelRatio)"
        yield Finding(Severity.CRITICAL, About.DISK, where, text, remedy)
    elif used >= refuses - NEAR_FULL:
        text = f"the disk is {used:.0%} full, from {refuses:.0%} on messages are refused (diskSpaceWarningLevelRatio)"
        yield Finding(Severity.WARNING, About.DISK, where, text, remedy)
    elif used >= cleans:
        text = f"the disk is {used:.0%} full: old messages are deleted before their time (diskMaxUsedSpaceRatio)"
        yield Finding(Severity.WARNING, About.DISK, where, text, remedy)


def _clock(where: str, figures: dict[str, str], here_ms: float, bounds: Bounds) -> Iterator[Finding]:
    """Ours tell their clock to the millisecond. Of Apache's, start and running time make one of whole seconds."""
    there_ms, step_s = _number(figures.get("currentTimestamp")), 0.0
    if not there_ms:
        began_ms, runs_s = _number(figures.get("bootTimestamp")), figure(figures.get("runtime", ""))
        if not began_ms or not isinstance(runs_s, int):
            return
        there_ms, step_s = began_ms + runs_s * 1000, CLOCK_STEP_S
    difference_s = (there_ms - here_ms) / 1000
    if abs(difference_s) > bounds.clock_s + step_s:
        way = "ahead of" if difference_s > 0 else "behind"
        yield Finding(
            Severity.WARNING,
            About.CLOCK,
            where,
            f"its clock is {abs(difference_s):.1f} s {way} this machine's: delays, retention and searches go by it",
            "run NTP (chrony, systemd-timesyncd) on both, and see which of the two is wrong",
        )


def _slaves(admin: Admin) -> Iterator[Finding]:
    remedy = (
        "`contrailmq admin ha status` shows it; the slave's log says why: its master's address, haAllowList, --resync"
    )
    for row in slaves_of_cluster(admin):
        where = f"{row.broker} (slave {row.id if row.id is not None else 'unknown'}, {row.slave})"
        if row.connected is False:
            yield Finding(Severity.CRITICAL, About.REPLICATION, where, "does not follow its master", remedy)
        elif row.connected and row.in_sync is False:
            behind = f"{row.lag_bytes or 0:,} bytes" + (f", {row.lag_s:.0f} s" if row.lag_s else "")
            silent = f", silent for {row.silent_s:.0f} s" if row.silent_s else ""
            text = f"is not in sync: {behind} behind its master{silent}"
            yield Finding(Severity.CRITICAL, About.REPLICATION, where, text, remedy)


# --- groups


def _transactions(admin: Admin, bounds: Bounds) -> Iterator[Finding]:
    """Half messages that wait. Those that are asked about are stored anew each time: their birth tells their age."""
    begin_ms = (time.time() - bounds.half_minutes * 60) * 1000
    for row in admin.progress(TRANSACTION_GROUP, SystemTopic.HALF):
        if not row.lag:
            continue
        since_ms = row.last_time_ms or 0
        halves = admin.messages_by_time(
            SystemTopic.HALF, begin_ms=since_ms, end_ms=int(time.time() * 1000), max_count=HALVES_READ_MAX
        )
        old = [
            half
            for half in halves
            if half.born_time_ms < begin_ms and half.queue_offset >= row.consumer_offset and _is_of(half, row)
        ]
        if old:
            topics = sorted({half.properties.get("REAL_TOPIC", "") for half in old})
            minutes = (time.time() * 1000 - min(half.born_time_ms for half in old)) / 60_000
            more = " at least" if len(halves) >= HALVES_READ_MAX else ""
            yield Finding(
                Severity.WARNING,
                About.TRANSACTIONS,
                row.queue.broker_name,
                f"{counted(len(old), 'transaction')}{more} of {', '.join(topics)} open for up to {minutes:.0f} minutes",
                "their producers do not answer checks: are they up, and does their check return COMMIT or ROLLBACK?",
            )


def _is_of(half: object, row: QueueProgress) -> bool:
    queue = getattr(half, "queue", None)
    return queue is None or queue.broker_name == row.queue.broker_name


def _group(admin: Admin, group: str, bounds: Bounds) -> Iterator[Finding]:
    members = admin.consumers(group)
    online = [connection.client_id for connection in members.connection_set] if members is not None else []
    rows = [row for row in admin.progress(group) if row.lag]
    waiting = sum(row.lag for row in rows)
    if waiting and not online:
        yield Finding(
            Severity.WARNING,
            About.LAG,
            group,
            f"nobody consumes, and the backlog is {counted(waiting, 'message')}",
            f"start its consumers, or `contrailmq admin group delete {group}` if it is not needed",
        )
    elif waiting > bounds.lag_messages or _waits_long(admin, rows, bounds):
        topics = ", ".join(sorted({row.queue.topic for row in rows}))
        is_many = waiting > bounds.lag_messages
        age = (
            f"more than {bounds.lag_messages:,}" if is_many else f"some of it older than {bounds.lag_minutes:g} minutes"
        )
        yield Finding(
            Severity.WARNING,
            About.LAG,
            group,
            f"the backlog is {counted(waiting, 'message')} of {topics}, {age}",
            "more consumers (up to one for each queue), faster handling, or skip them: `contrailmq admin group skip`",
        )
    yield from _subscriptions(admin, group, online)


def _waits_long(admin: Admin, rows: Iterable[QueueProgress], bounds: Bounds) -> bool:
    """Whether a message is waiting that was stored before the bound."""
    since_ms = int((time.time() - bounds.lag_minutes * 60) * 1000)
    oldest_first = sorted(rows, key=lambda row: row.last_time_ms)[:AGED_QUEUES_MAX]
    return any(admin.search_offset(row.queue, since_ms) > row.consumer_offset for row in oldest_first)


def _subscriptions(admin: Admin, group: str, online: list[str]) -> Iterator[Finding]:
    """All members of a group must subscribe alike: otherwise messages are not delivered, and nobody says so."""
    if len(online) < 2:
        return
    said: dict[frozenset[tuple[str, str, str]], list[str]] = {}
    for client_id in online:
        try:
            info = admin.running_info(group, client_id)
        except ContrailError:  # it is gone, or a client that does not answer: nothing is known of it
            continue
        wanted = frozenset(
            (each.topic, each.expression_type or "TAG", each.sub_string)
            for each in info.subscription_set
            if each.topic != retry_topic(group)
        )
        said.setdefault(wanted, []).append(client_id)
    if len(said) > 1:
        kinds = "; ".join(
            f"{clients[0]}{f' and {len(clients) - 1} more' if len(clients) > 1 else ''}: "
            + ", ".join(f"{topic} {expression}" for topic, _, expression in sorted(wanted))
            for wanted, clients in said.items()
        )
        yield Finding(
            Severity.WARNING,
            About.SUBSCRIPTIONS,
            group,
            f"its members subscribe differently: {kinds}",
            "give all of them the same topics and expressions, or a group of their own: some messages reach nobody now",
        )


# --- showing


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _print(report: Report) -> None:
    for finding in report.findings:
        label = finding.severity.name.lower()
        typer.echo(printable(f"{label}: {finding.about.name.lower()}: {finding.where}: {finding.text}"))
        typer.echo(printable(f"    {finding.remedy}"))
    brokers, groups = counted(report.brokers, "broker"), counted(report.groups, "group")
    wrong = counted(len(report.findings), "finding") if report.findings else "nothing is wrong"
    typer.echo(f"{wrong} ({brokers}, {groups})")


def _print_json(report: Report) -> None:
    print_json(
        {
            "status": report.severity.name.lower(),
            "brokers": report.brokers,
            "groups": report.groups,
            "findings": [
                {
                    "severity": finding.severity.name.lower(),
                    "about": finding.about.name.lower(),
                    "where": finding.where,
                    "text": finding.text,
                    "remedy": finding.remedy,
                }
                for finding in report.findings
            ],
        }
    )
