from __future__ import annotations

import pytest

from contrailmq.message.addresses import check_host_form, split_host_port, without_brackets


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        ("host.example:10911", "host.example", 10911),
        ("broker_a-1:65535", "broker_a-1", 65535),
        (" host:1 ", "host", 1),
        ("host:0", "host", 0),
        ("host:0000009876", "host", 9876),
        ("[::1]:9876", "::1", 9876),
        ("::1:9876", "::1", 9876),
        ("fe80::1%eth0:9876", "fe80::1%eth0", 9876),
        ("\u00fcber.example:1", "\u00fcber.example", 1),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert split_host_port(text) == (host, port)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "host:port"),
        ("x:", "host:port"),
        (":10912", "host:port"),
        ("", "host:port"),
        ("host:65536", "at most 65535"),
        ("host:76448", "at most 65535"),
        ("host:0000070000", "at most 65535"),
        ("host:" + "9" * 5000, "at most 65535"),
        ("host:-1", "at most 65535"),
        ("host:1_0", "at most 65535"),
        ("host:\uff11", "at most 65535"),
        ("a:10912;b:10912", "not a host name"),
        ("a,b:10912", "not a host name"),
        ("ho st:10912", "not a host name"),
        ("http://host:10912", "not a host name"),
        ("a:b:10912", "not a host name"),
        ("a..b:10912", "1 to 63 characters"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split_host_port(text)


@pytest.mark.parametrize("host", ["", "1.2.3.4:10911", "[::1]", "a;b", "a b"])
def test_a_host_alone_has_no_port_and_no_brackets(host: str) -> None:
    with pytest.raises(ValueError, match=r"not a host name|without brackets"):
        check_host_form(host)


def test_only_a_whole_pair_of_brackets_is_taken_off() -> None:
    assert [without_brackets(host) for host in ("[::1]", "::1", "[::1", "host")] == ["::1", "::1", "[::1", "host"]
