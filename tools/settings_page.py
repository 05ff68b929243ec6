"""docs/settings.md, made of the code: every key with its default, its meaning and whether it changes at run time.

    python tools/settings_page.py > docs/settings.md

A test compares the page with what this prints.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping
from typing import Final

from contrailmq.broker.config import (
    DIFFERENCES,
    FIXED_KEYS,
    PROTECTED_KEYS,
    BrokerConfig,
    store_properties,
)
from contrailmq.broker.foreign_settings import PROMISES, WITHOUT_EFFECT
from contrailmq.console.model.setting_meanings import MEANINGS
from contrailmq.namesrv.config import PROTECTED_KEYS as PROTECTED_OF_NAMESRV
from contrailmq.namesrv.config import WITHOUT_EFFECT as WITHOUT_EFFECT_IN_NAMESRV
from contrailmq.namesrv.config import NamesrvConfig
from contrailmq.store.config import LIVE, StoreConfig, rocketmq_key
from contrailmq.store.files import Files

# Defaults that are not the same everywhere, and sizes that an empty store takes.
SHOWN: Final = {
    "brokerName": "the host's name",
    "haListenPort": "listenPort + 1",
    "storePathRootDir": "store in the home directory",
}
ALWAYS, FIXED, PROTECTED = "yes", "no", "if allowed"

HEAD: Final = """\
# Settings

<!-- Made by tools/settings_page.py from the code. -->

Every key of `contrailmq broker` and `contrailmq namesrv`, with RocketMQ's names. `contrailmq broker -p` prints those of
a broker with the values that count. [Where they come from](broker.md#settings), and in which order, is there.

**While running**: *yes* can be changed by `contrailmq admin broker set` (or `mqadmin updateBrokerConfig`) and takes
effect at once; *if allowed* can be too, if `allowRemoteConfig` names the key
([why](security.md#changing-settings-over-the-network)); *no* is read at the start.
Sizes of files are those of an empty store: one that has files keeps theirs.
"""
PROMISED: Final = """\
## Settings that promise what is not there
If one of these is set, the server refuses to start and lists everything that is missing. RocketMQ's default of a key is
accepted; `yes`, `on` and `1` mean true. With `--set allowUnsupported=true` (or the key in the file) it starts anyway,
with a warning.

| key | what is missing |
|---|---|
"""
AFTER_PROMISED: Final = """
`storeType` other than `default` is refused whatever is allowed: stores are files, and there is no RocksDB. A NameServer
refuses `enableControllerInNamesrv`, `aclEnable`, `authenticationEnabled` and `authorizationEnabled` in the same way.
"""
UNUSED: Final = """\
## Settings without effect
These keys of RocketMQ's are known and have no effect here, with the reason. At start, one line of the log names those
that are set.
"""


def page() -> str:
    broker = BrokerConfig().to_properties() | SHOWN
    parts = [
        HEAD,
        _different(),
        "## Broker\n" + _table(broker, {key: _of_broker(key) for key in BrokerConfig().to_properties()}),
        "## Store of a broker\n" + _table(_store_defaults(), _of_store()),
        "## NameServer\n" + _table(NamesrvConfig().to_properties(), _of_namesrv()),
        PROMISED + "".join(f"| `{promise.key}` | {promise.missing} |\n" for promise in PROMISES) + AFTER_PROMISED,
        UNUSED + "\n" + _unused(),
    ]
    return "\n".join(parts)


def _different() -> str:
    rows = [f"| {key} | {theirs} | {ours} | {why} |\n" for key, (theirs, ours, why) in sorted(DIFFERENCES.items())]
    head = "## Defaults that differ from RocketMQ's\n| key | RocketMQ | here | why |\n|---|---|---|---|\n"
    return head + "".join(rows)


def _table(defaults: Mapping[str, str], changes: Mapping[str, str]) -> str:
    rows = []
    for key in sorted(changes, key=str.lower):
        value = defaults[key]
        shown = value if key in SHOWN and value == SHOWN[key] else f"`{value}`" if value else "empty"
        rows.append(f"| `{key}` | {shown} | {changes[key]} | {MEANINGS[key]} |\n")
    return "| key | default | while running | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _of_broker(key: str) -> str:
    return FIXED if key in FIXED_KEYS else PROTECTED if key in PROTECTED_KEYS else ALWAYS


def _of_store() -> dict[str, str]:
    live = {rocketmq_key(name) for name in LIVE}
    found = {}
    for key in store_properties(StoreConfig("unused")):
        found[key] = (PROTECTED if key in PROTECTED_KEYS else ALWAYS) if key in live else FIXED
    return found


def _store_defaults() -> dict[str, str]:
    resolved = StoreConfig("/nonexistent/store").resolved(Files())
    return store_properties(resolved) | SHOWN


def _of_namesrv() -> dict[str, str]:
    config = NamesrvConfig()
    keys = config.to_properties().keys() - WITHOUT_EFFECT_IN_NAMESRV
    return {
        key: FIXED if key in config.blocked_keys else PROTECTED if key in PROTECTED_OF_NAMESRV else ALWAYS
        for key in keys
    }


def _unused() -> str:
    by_reason: dict[str, list[str]] = {}
    for key, reason in WITHOUT_EFFECT.items():
        by_reason.setdefault(reason, []).append(key)
    by_reason["of a NameServer, threads, queues and buffers"] = sorted(WITHOUT_EFFECT_IN_NAMESRV)
    return "".join(_wrapped(reason, sorted(keys, key=str.lower)) for reason, keys in by_reason.items())


def _wrapped(reason: str, keys: Iterable[str]) -> str:
    text = f"- {reason}: " + ", ".join(f"`{key}`" for key in keys)
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
