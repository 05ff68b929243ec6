"""`contrailmq up --print-config DIR`: the same cluster as files, for whoever runs its servers one by one.

    DIR/namesrv.conf            contrailmq namesrv -c namesrv.conf
    DIR/broker-a.conf ...       contrailmq broker -c broker-a.conf, one for each broker, slaves too
    DIR/start.sh                starts them all, and the console; SIGTERM or Ctrl-C stops them

Each file has all that its server needs, so it can move to another machine once its addresses are changed. Nothing is
started, and files that are there already are not replaced: they may have been edited.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message import ContrailError
from contrailmq.store.config import rocketmq_key
from contrailmq.wire.properties import format_properties

NAMESRV: Final = "namesrv.conf"
START: Final = "start.sh"
_STARTS: Final = """\
#!/bin/sh
# The cluster of `contrailmq up`, as separate processes. Ctrl-C or SIGTERM stops them all.
# CONTRAILMQ names the program where it is not on the PATH.
set -eu
cd "$(dirname "$0")"
: "${{CONTRAILMQ:=contrailmq}}"
servers=
stop() {{
  trap '' INT TERM
  for server in $servers; do kill "$server" 2> /dev/null || true; done
  wait
  exit 0
}}
trap stop INT TERM
{starts}
wait
"""


class BrokerFile(NamedTuple):
    """One broker: the file's name without its suffix, its store, its settings."""

    name: str
    store: Path
    settings: Mapping[str, str]


class WrittenFilesError(ContrailError):
    """The files cannot be written; says which and what to do."""


def write_files(
    directory: Path,
    *,
    name_server: Mapping[str, str],
    brokers: Iterable[BrokerFile],
    store_settings: Mapping[str, object],
    console: str,
) -> list[Path]:
    """What was written, in the order of a start. `console` is its command, empty without one."""
    small = {rocketmq_key(name): str(value) for name, value in store_settings.items()}
    texts = {NAMESRV: format_properties(dict(name_server))}
    commands = [f"namesrv -c {NAMESRV}"]
    for broker in brokers:
        settings = small | dict(broker.settings) | {"storePathRootDir": str(broker.store.absolute())}
        texts[f"{broker.name}.conf"] = format_properties(settings)
        commands.append(f"broker -c {shlex.quote(broker.name)}.conf")
    commands += [console] if console else []
    starts = "\n".join(f'"$CONTRAILMQ" {command} & servers="$servers $!"' for command in commands)
    texts[START] = _STARTS.format(starts=starts)
    there = [name for name in texts if (directory / name).exists()]
    if there:
        raise WrittenFilesError(f"{directory / there[0]} exists and may have been edited: name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text)
    (directory / START).chmod(0o755)
    return [directory / name for name in texts]
