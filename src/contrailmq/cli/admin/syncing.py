"""`contrailmq admin export` and `contrailmq admin import`: what a cluster should have, as a file.

An import shows what differs, asks, and changes only that. What the file lacks stays, unless `--prune` is given. Each
change is made by itself: one that a broker refuses is told of at the end, and the others are made.

    exit code of import --dry-run   0 the cluster is as the file says   3 it differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import msgspec
import typer

from contrailmq.cli.admin.asking import DryRun, Json, Namesrv, Yes, ask, confirm, fail
from contrailmq.cli.admin.metadata import (
    GroupEntry,
    State,
    TopicEntry,
    desired_state,
    document_of,
    group_config,
    read_document,
    state_of,
    topic_config,
    written,
)
from contrailmq.cli.admin.output import counted, print_json
from contrailmq.client.admin.admin_topics import ORDER_TOPICS
from contrailmq.message import ContrailError, printable

if TYPE_CHECKING:
    from contrailmq import Admin

DIFFERS: Final = 3
MISSING: Final = object()
Entry = TypeVar("Entry", TopicEntry, GroupEntry)
Namespaces = Annotated[
    list[str] | None, typer.Option("--kv", metavar="NAMESPACE", help="this namespace of key-values too; repeat it")
]


class Change(NamedTuple):
    """One thing that differs. `fields` has old and new values; of what is created or deleted one of them is null."""

    kind: str  # topic, group, kv or setting
    action: str  # create, change or delete
    name: str
    where: str  # a broker, or a namespace of key-values
    fields: dict[str, tuple[object, object]]

    @property
    def line(self) -> str:
        sign = {"create": "+", "change": "~", "delete": "-"}[self.action]
        return f"{sign} {self.kind} {self.name} on {self.where}"


def export_metadata(
    to: Annotated[Path | None, typer.Option("--to", help="a file; standard output without it")] = None,
    namespaces: Namespaces = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Topics, groups, key-values and settings of the brokers as YAML, for git. `admin import` applies it."""
    document = ask(namesrv, lambda admin: document_of(state_of(admin, namespaces or ())))
    if to is None:
        if as_json:
            print_json(msgspec.to_builtins(document))
        else:
            typer.echo(written(document), nl=False)
        return
    if to.exists():
        confirm(f"replace the file {to}?", is_agreed=yes)
    try:
        to.write_text(written(document))
    except OSError as exc:
        fail(f"{to} cannot be written: {exc.strerror or exc}")
    facts = {"file": str(to), "topics": len(document.topics), "groups": len(document.groups)}
    if as_json:
        print_json(facts)
    else:
        typer.echo(f"{counted(facts['topics'], 'topic')} and {counted(facts['groups'], 'group')} in {to}")  # type: ignore[arg-type]


def import_metadata(
    file: Annotated[str, typer.Argument(help="what `admin export` wrote, or - for standard input")],
    dry_run: DryRun = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="delete what the file lacks, messages and offsets too")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="also when unread messages become unreachable")] = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Make the cluster as the file says: show what differs, ask, change only that. Exit code 3: --dry-run differs."""
    data = _read(file)

    def apply(admin: Admin) -> None:
        document = read_document(data, file)
        present = state_of(admin, document.kv)
        desired = desired_state(document, present.brokers)
        changes = list(differences(present, desired))
        kept = [] if prune else [change for change in changes if _is_pruning(change, desired)]
        changes = [change for change in changes if change not in kept]
        if not force and not dry_run:
            _require_readable(admin, changes)
        if not as_json:
            _show(changes, kept)
        failed: list[str] = []
        if changes and not dry_run:
            confirm(f"apply {counted(len(changes), 'change')}?", is_agreed=yes)
            failed = [text for change in _in_order(changes) if (text := _tried(admin, change, present, desired))]
        if as_json:
            _print_json(changes, kept, failed, is_applied=not dry_run)
        elif changes and not dry_run:
            typer.echo(f"{counted(len(changes) - len(failed), 'change')} applied")
        if failed:
            raise ContrailError(f"{counted(len(failed), 'change')} failed: {'; '.join(failed)}")
        if dry_run and changes:
            raise typer.Exit(DIFFERS)

    ask(namesrv, apply)


def differences(present: State, desired: State) -> Iterator[Change]:
    """What is to be created, changed and deleted, by name. Settings that the file does not name are left alone."""
    yield from _differences("topic", present.topics, desired.topics)
    yield from _differences("group", present.groups, desired.groups)
    for space, key in sorted(present.kv.keys() | desired.kv.keys()):
        old, new = present.kv.get((space, key)), desired.kv.get((space, key))
        if old != new:
            action = "create" if old is None else "delete" if new is None else "change"
            yield Change("kv", action, key, space, {"value": (old, new)})
    for (broker, key), new in sorted(desired.settings.items()):
        old = present.settings.get((broker, key))
        if old != new:
            yield Change("setting", "change", key, broker, {"value": (old, new)})


def _differences(
    kind: str, present: dict[tuple[str, str], Entry], desired: dict[tuple[str, str], Entry]
) -> Iterator[Change]:
    for name, broker in sorted(present.keys() | desired.keys()):
        old, new = present.get((name, broker)), desired.get((name, broker))
        if old == new:
            continue
        before = msgspec.structs.asdict(old) if old is not None else {}
        after = msgspec.structs.asdict(new) if new is not None else {}
        fields = {
            key: (before.get(key), after.get(key))
            for key in {**before, **after}
            if key not in ("name", "brokers") and before.get(key, MISSING) != after.get(key, MISSING)
        }
        yield Change(kind, "create" if old is None else "delete" if new is None else "change", name, broker, fields)


def _is_pruning(change: Change, desired: State) -> bool:
    """Deletes that only --prune makes. That of what NameServers say of an order topic follows from the topic."""
    is_implied = (
        change.kind == "kv" and change.where == ORDER_TOPICS and any(name == change.name for name, _ in desired.topics)
    )
    return change.action == "delete" and not is_implied


def _require_readable(admin: Admin, changes: list[Change]) -> None:
    hidden = []
    for change in changes:
        if change.kind == "topic" and change.action == "change" and "read_queues" in change.fields:
            unread = admin.unread_beyond(change.name, int(str(change.fields["read_queues"][1])), broker=change.where)
            hidden += [f"{counted(unread, 'message')} of topic {change.name} on {change.where}"] if unread else []
    if hidden:
        raise ContrailError(
            f"{', '.join(hidden)} that not every group has consumed would become unreachable: lower write_queues alone "
            "and let the groups finish, or add --force"
        )


def _in_order(changes: list[Change]) -> list[Change]:
    """What is said of order topics first: with each registration brokers take from it. Deletes last."""
    kinds = ("kv", "topic", "group", "setting")
    return sorted(changes, key=lambda change: (change.action == "delete", kinds.index(change.kind)))


def _tried(admin: Admin, change: Change, present: State, desired: State) -> str:
    """Why it failed, empty when it is done."""
    try:
        _apply(admin, change, present, desired)
    except ContrailError as exc:
        return f"{change.kind} {change.name} on {change.where}: {exc}"
    return ""


def _apply(admin: Admin, change: Change, present: State, desired: State) -> None:
    name, where = change.name, change.where
    match change.kind, change.action:
        case "topic", "delete":
            admin.delete_topic(name, broker=where)
        case "topic", _:
            entry, known = desired.topics[name, where], present.topics.get((name, where))
            had = known.attributes if known is not None else {}
            attributes: dict[str, str | None] = dict.fromkeys(had.keys() - entry.attributes.keys())
            attributes |= {key: text for key, text in entry.attributes.items() if had.get(key) != text}
            admin.put_topic_config(topic_config(entry), broker=where, attributes=attributes)
        case "group", "delete":
            admin.delete_group(name, broker=where)
        case "group", _:
            config = group_config(desired.groups[name, where], admin.group_config(name).get(where))
            admin.create_group(config, broker=where)
        case "kv", "delete":
            admin.delete_kv(where, name)
        case "kv", _:
            admin.put_kv(where, name, desired.kv[where, name])
        case _:
            address = admin.masters(broker=where)[where]
            admin.update_broker_config(address, {name: desired.settings[where, name]})


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as exc:
        fail(f"{file} cannot be read: {exc.strerror or exc}")


def _show(changes: list[Change], kept: list[Change]) -> None:
    for change in changes:
        typer.echo(printable(change.line))
        for key, (old, new) in change.fields.items() if change.action == "change" else ():
            typer.echo(printable(f"    {key}: {_plain(old)} -> {_plain(new)}"))
    if kept:
        typer.echo(f"{len(kept)} of the cluster's entries are not in the file, and stay: --prune deletes them")
    if not changes:
        typer.echo("the cluster is as the file says")


def _plain(value: object) -> str:
    return "-" if value is None else str(value)


def _print_json(changes: list[Change], kept: list[Change], failed: list[str], *, is_applied: bool) -> None:
    print_json(
        {
            "changes": [
                {
                    "kind": change.kind,
                    "action": change.action,
                    "name": change.name,
                    "where": change.where,
                    "fields": {key: {"old": old, "new": new} for key, (old, new) in change.fields.items()},
                }
                for change in changes
            ],
            "not_in_file": len(kept),
            "is_applied": is_applied,
            "failed": failed,
        }
    )
