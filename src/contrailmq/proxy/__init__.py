"""The gRPC API of RocketMQ 5 (`apache.rocketmq.v2`), in front of any cluster of ours or Apache's.

A call is translated into requests over remoting: `service` checks it and asks `producing` or `consuming`, which ask the
brokers that `cluster` knows. What a client must show again later (receipt handles, transaction ids) says all that is
needed to serve it, so a proxy may be restarted, or be another one, at any time. Two things are kept in memory only:
who is connected (`clients`), and which messages are with consumers who renew (`renewing`); after a crash such messages
come back when their invisible time ends.

`protocol/` has the messages, in a descriptor pool of their own.
"""
