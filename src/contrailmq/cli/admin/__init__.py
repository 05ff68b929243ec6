"""`contrailmq admin …`: looking at a cluster and changing it, one file for each noun.

Every command takes `--namesrv` (or NAMESRV_ADDR) and `--json`; `broker` takes an address instead of a NameServer.
Works with our servers and with Apache's. Each noun has its file; how to ask a cluster is in `asking.py`, with TLS
in `secured.py`, how answers are printed in `output.py`.
"""

from __future__ import annotations

import typer

from contrailmq.cli.admin.brokers import broker_app, cluster_app
from contrailmq.cli.admin.check import check
from contrailmq.cli.admin.dead_letters import dlq_app
from contrailmq.cli.admin.groups import group_app
from contrailmq.cli.admin.messages import message_app
from contrailmq.cli.admin.migrating import migrate_app
from contrailmq.cli.admin.offsets import group_reset, group_skip, offset_app
from contrailmq.cli.admin.producers import producers
from contrailmq.cli.admin.replication import ha_app
from contrailmq.cli.admin.resending import message_resend, message_trace
from contrailmq.cli.admin.secured import tls_flags
from contrailmq.cli.admin.syncing import export_metadata, import_metadata
from contrailmq.cli.admin.tailing import message_tail
from contrailmq.cli.admin.topics import topic_app

__all__ = ["app"]

app = typer.Typer(help="Look at a cluster and change it.", no_args_is_help=True, callback=tls_flags)
# What has a file of its own.
group_app.command("reset")(group_reset)
group_app.command("skip")(group_skip)
message_app.command("tail")(message_tail)
message_app.command("trace")(message_trace)
message_app.command("resend")(message_resend)

app.add_typer(topic_app, name="topic")
app.add_typer(group_app, name="group")
app.add_typer(message_app, name="message")
app.add_typer(offset_app, name="offset")
app.add_typer(dlq_app, name="dlq")
app.add_typer(cluster_app, name="cluster")
app.add_typer(broker_app, name="broker")
app.add_typer(ha_app, name="ha")
app.add_typer(migrate_app, name="migrate")
app.command("producers")(producers)
app.command("export")(export_metadata)
app.command("import")(import_metadata)
app.command("check")(check)
