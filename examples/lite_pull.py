"""Lite pull: messages when the caller wants them, seeking back, committing by hand."""

from __future__ import annotations

from cluster import name_server

from contrailmq import ConsumeFromWhere, LitePullConsumer, Message, Producer


def main() -> None:
    with name_server() as namesrv:
        with Producer("shop", namesrv=namesrv) as producer:
            queue = producer.queues("Audit")[0]
            for number in range(10):
                producer.send(Message("Audit", b"entry %d" % number), queue=queue)
        with LitePullConsumer(
            "audit", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, auto_commit=False
        ) as pull:
            pull.subscribe("Audit")
            bodies: list[bytes] = []
            while len(bodies) < 10:
                bodies += [message.body for message in pull.poll(timeout=5.0)]
            pull.commit()
            print(f"{len(bodies)} entries read; committed up to {pull.committed(queue)}")
            pull.seek(queue, 8)
            print("once more from 8:", [message.body for message in pull.poll(timeout=5.0)])


if __name__ == "__main__":
    main()
