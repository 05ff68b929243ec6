from __future__ import annotations

from contrailmq.wire.acl import AclCredentials, sign_content, signed_content


def test_known_signatures() -> None:
    assert sign_content(b"Hello RocketMQ Client ACL Feature", "adiaushdiaushd") == "tAb/54Rwwcq+pbH8Loi7FWX4QSQ="
    assert sign_content(b"rocketmq2TopicTest", "12345678") == "GeeGoP9mRvDhoVp4PD5omX0prgE="


def test_a_request_is_signed_over_its_values_sorted_by_key_then_its_body() -> None:
    ext = {"topic": "TopicTest"}
    AclCredentials("rocketmq2", "12345678")(105, ext, b"")
    assert ext == {"topic": "TopicTest", "AccessKey": "rocketmq2", "Signature": "GeeGoP9mRvDhoVp4PD5omX0prgE="}
    content = signed_content({"b": "2", "B": "1", "a": "0", "Signature": "x", "SecurityToken": "t"}, b"body")
    assert content == b"1t02body"


def test_secrets_do_not_show_in_texts() -> None:
    assert "12345678" not in repr(AclCredentials("rocketmq2", "12345678", "token"))
