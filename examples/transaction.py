"""Transactions: the message becomes visible only if the database transaction commits.

When the outcome of `execute` is lost, the broker asks `check`, which looks into the database.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster import name_server

from contrailmq import (
    ConsumeFromWhere,
    Message,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)


def main() -> None:
    with TemporaryDirectory() as directory:
        run(Path(directory, "shop.sqlite"))


def run(path: Path) -> None:
    received = threading.Event()

    def book(message: Message, amount: object) -> TransactionState:
        with sqlite3.connect(path) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount INTEGER CHECK (amount > 0))"
            )
            try:
                database.execute("INSERT INTO orders VALUES (?, ?)", (message.keys[0], amount))
            except sqlite3.IntegrityError:
                return TransactionState.ROLLBACK
        return TransactionState.COMMIT

    def look_up(message: StoredMessage) -> TransactionState:
        with sqlite3.connect(path) as database:
            found = database.execute("SELECT 1 FROM orders WHERE id = ?", (message.keys[0],)).fetchone()
        return TransactionState.COMMIT if found else TransactionState.ROLLBACK

    def handle(messages: list[StoredMessage]) -> None:
        for message in messages:
            print(f"order {message.keys[0]} is booked and announced")
        received.set()

    with (
        name_server() as namesrv,
        TransactionProducer("shop", namesrv=namesrv, execute=book, check=look_up) as producer,
    ):
        good = producer.send_in_transaction(Message("Booked", b"bicycle", keys=["o-1"]), 100)
        bad = producer.send_in_transaction(Message("Booked", b"nothing", keys=["o-2"]), 0)
        print(f"o-1: {good.state.name}, o-2: {bad.state.name}")
        consumer = PushConsumer("stock", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("Booked")
        consumer.listen(handle)
        consumer.start()
        assert received.wait(20)
        consumer.shutdown()


if __name__ == "__main__":
    main()
