"""Messages: what users send, what the log stores, and the small encodings both share.

Everything else in the package builds on this room, and it imports nothing of ours. It knows no sockets and no files.

A `Message` is what a producer hands over. The broker turns it into a record of the commit log (`message/codec.py`), and
a `StoredMessage` is that record seen from Python. All attributes beyond topic, body and flag travel as properties.
"""

from contrailmq.message.compression import (
    Compression,
    SysFlag,
    compress,
    decompress,
)
from contrailmq.message.errors import (
    ContrailError,
    MessageError,
)
from contrailmq.message.hashing import java_hash, java_hash_of_id, java_hash_within, tags_code
from contrailmq.message.identity import (
    Host,
    PhysicalOffset,
    QueueOffset,
    UniqueId,
    create_unique_id,
    create_unique_ids,
    decode_host,
    encode_host,
    offset_message_id,
    parse_offset_message_id,
    parse_unique_id,
)
from contrailmq.message.model import (
    BODY_BYTES_MAX,
    Message,
    MessageQueue,
    StoredMessage,
    as_body,
    check_message,
)
from contrailmq.message.names import (
    DLQ_PREFIX,
    GROUP_BYTES_MAX,
    LONG_TOPIC_BYTES_MAX,
    RESEND_GROUP,
    RETRY_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    TOPIC_BYTES_MAX,
    SystemTopic,
    check_group,
    check_topic,
    dlq_topic,
    is_system_group,
    is_system_topic,
    names_directory,
    retry_topic,
)
from contrailmq.message.printable import printable, printable_json, printable_lines
from contrailmq.message.properties import (
    PROPERTIES_BYTES_MAX,
    RESERVED_PROPERTIES,
    Property,
    decode_properties,
    encode_properties,
    natural_number,
    text_wants_durable,
    wants_durable,
)

__all__ = [
    "BODY_BYTES_MAX",
    "DLQ_PREFIX",
    "GROUP_BYTES_MAX",
    "LONG_TOPIC_BYTES_MAX",
    "PROPERTIES_BYTES_MAX",
    "RESEND_GROUP",
    "RESERVED_PROPERTIES",
    "RETRY_PREFIX",
    "SYSTEM_GROUPS",
    "SYSTEM_GROUP_PREFIX",
    "TOPIC_BYTES_MAX",
    "Compression",
    "ContrailError",
    "Host",
    "Message",
    "MessageError",
    "MessageQueue",
    "PhysicalOffset",
    "Property",
    "QueueOffset",
    "StoredMessage",
    "SysFlag",
    "SystemTopic",
    "UniqueId",
    "as_body",
    "check_group",
    "check_message",
    "check_topic",
    "compress",
    "create_unique_id",
    "create_unique_ids",
    "decode_host",
    "decode_properties",
    "decompress",
    "dlq_topic",
    "encode_host",
    "encode_properties",
    "is_system_group",
    "is_system_topic",
    "java_hash",
    "java_hash_of_id",
    "java_hash_within",
    "names_directory",
    "natural_number",
    "offset_message_id",
    "parse_offset_message_id",
    "parse_unique_id",
    "printable",
    "printable_json",
    "printable_lines",
    "retry_topic",
    "tags_code",
    "text_wants_durable",
    "wants_durable",
]
