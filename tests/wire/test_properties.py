from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from contrailmq.wire.properties import (
    Settings,
    SettingsError,
    environment_settings,
    format_properties,
    merge,
    parse_properties,
    read_properties,
    rocketmq_settings,
)


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    listen_port: int = 9876
    order_message_enable: bool = False
    ratio: float = 0.5
    bind_address: str = "0.0.0.0"


def test_every_form_of_javas_properties_files_is_read() -> None:
    text = (
        "# comment\n! comment\n\nlistenPort=10911\n  a : b\r\nc d\nempty=\nalone\n"
        "long=one,\\\n     two\nk\\=ey=v\\u00e9\\tx\nspaces = kept inside \nurl=http://x:1/?a=b"
    )
    assert parse_properties(text) == {
        "listenPort": "10911",
        "a": "b",
        "c": "d",
        "empty": "",
        "alone": "",
        "long": "one,two",
        "k=ey": "vé\tx",
        "spaces": "kept inside",
        "url": "http://x:1/?a=b",
    }


def test_what_is_written_is_read_back() -> None:
    values = Example(listen_port=1).to_properties()
    assert parse_properties(format_properties(values)) == values
    assert values["orderMessageEnable"] == "false"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("x\nkvConfigPath=/x", "x\\nkvConfigPath=/x"),
        ("x\r\ty\f", "x\\r\\ty\\f"),
        ("#!a:b=c", "#!a:b=c"),
        ("C:\\dir\\new", "C:\\\\dir\\\\new"),
        ("  both ends ", "\\u0020\\u0020both ends\\u0020"),
        (" ", "\\u0020"),
        ("ends in \\", "ends in \\\\"),
        ("", ""),
    ],
)
def test_a_value_of_any_kind_is_one_line_and_read_back_the_same(value: str, written: str, tmp_path: Path) -> None:
    """Java writes a leading space as backslash and space, and escapes = : # ! too; it reads both forms."""
    text = format_properties({"key": value, "a key": "z"})
    assert text == f"a\\ key=z\nkey={written}\n"
    (tmp_path / "f").write_text(text)
    assert read_properties(tmp_path / "f") == {"key": value, "a key": "z"}
    assert parse_properties("k=\\ led\\ ") == {"k": " led "}  # as Java writes it


def test_a_flag_beats_our_environment_which_beats_the_file_which_beats_rocketmqs_environment() -> None:
    environ = {"CONTRAILMQ_LISTEN_PORT": "2", "CONTRAILMQ_RATIO": "2.5", "OTHER": "x"}
    properties = merge(
        flags={"listenPort": "1"},
        environment=environment_settings(environ, Example.keys()),
        file={"listenPort": "3", "ratio": "3.5", "orderMessageEnable": "TRUE"},
        rocketmq={"orderMessageEnable": "false", "bindAddress": "1.2.3.4"},
    )
    settings, warnings = Example.from_properties(properties)
    assert settings == Example(listen_port=1, ratio=2.5, order_message_enable=True, bind_address="1.2.3.4")
    assert warnings == []


def test_an_unknown_key_is_a_warning_that_names_the_nearest() -> None:
    _, warnings = Example.from_properties({"listenPrt": "1", "zzz": "1", "tls.server.mode": "disabled"})
    assert warnings == [
        "unknown setting listenPrt is ignored: did you mean listenPort?",
        "unknown setting zzz is ignored",
    ]


@pytest.mark.parametrize(("key", "text"), [("listenPort", "many"), ("orderMessageEnable", "yes"), ("ratio", "half")])
def test_a_value_of_the_wrong_type_is_an_error_that_names_the_key(key: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"setting {key} is '{text}': it takes"):
        Example.from_properties({key: text})


def test_an_update_changes_known_keys_only() -> None:
    assert Example().updated({"listenPort": "5", "nonsense": "1"}) == Example(listen_port=5)


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.conf"):
        read_properties(tmp_path / "nowhere.conf")


def test_rocketmqs_own_names_in_the_environment_count() -> None:
    environ = {"ROCKETMQ_HOME": "/opt/rmq", "NAMESRV_ADDR": "a:1"}
    assert rocketmq_settings(environ, ["rocketmqHome", "listenPort"]) == {"rocketmqHome": "/opt/rmq"}
    assert environment_settings(environ, ["rocketmqHome", "listenPort"]) == {}
