"""ROOT/config/store.properties: settings of the store's broker without which its files cannot be judged.

A consume queue holds the delivery time of each delayed message, which depends on `messageDelayLevel`; the log holds the
level alone. So a broker leaves its levels here when they are not RocketMQ's, and `store inspect|verify|rebuild` take
them from here unless they are given a broker.conf. RocketMQ does not know the file and passes over it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from contrailmq.store.config import StoreConfig, read_properties, rocketmq_key

RECORDED: Final = ("message_delay_level",)


def recorded_path(root: Path) -> Path:
    return root / "config" / "store.properties"


def recorded_settings(root: Path) -> dict[str, str]:
    """What the store's broker left, by our names; nothing where it left nothing."""
    path = recorded_path(root)
    try:
        texts = read_properties(path)
    except FileNotFoundError:
        texts = {}
    return {name: texts[rocketmq_key(name)] for name in RECORDED if rocketmq_key(name) in texts}


def settings_to_record(config: StoreConfig) -> str | None:
    """The text of the file, None when it stands there already or all is as in RocketMQ and there is no file."""
    wanted = {name: str(getattr(config, name)) for name in RECORDED}
    known = recorded_settings(config.path)
    defaults = {name: str(getattr(StoreConfig(config.path), name)) for name in RECORDED}
    if wanted == known or (not known and wanted == defaults):
        return None
    return "".join(f"{rocketmq_key(name)}={value}\n" for name, value in wanted.items())
