"""Lite topics (RIP-83): very many light sub-topics under one parent topic, consumed one by one with POP.

    send to Chat with __LITE_TOPIC=room7   one record in Chat's queue, and a unit in the light queue %LMQ%$Chat$room7
    subscribe a client to room7            LITE_SUBSCRIPTION_CTL: kept in memory alone (registry.py)
    a message comes to room7               its name joins `ready` of each subscribed client, one that waits is woken
    POP_LITE_MESSAGE of a client           messages of the lite topics in its `ready`, from each in turn

What is kept, and when it is written:

    subscriptions   memory; clients say all of theirs every 30 s, so after a start they are known within that time
    positions       the table of consumer offsets, under the light queue's name; its journal is written before an
                    acknowledgement is answered
    who has what    `pop/orders.py`, as for a FIFO group: of each lite topic one batch of a group is in flight. Its
                    journal is written before the messages leave. The reference keeps this in memory, and after its
                    restart all that was in flight comes again at once

So a lite topic is in order: while a message is neither acknowledged nor due again, nothing behind its batch leaves. A
message is retried where it stands; there is no retry topic. What was acknowledged behind an open message does not come
again, other than in the reference, which reads the queue again from there.

Nothing here runs for messages of other topics: the store tells of the queues that somebody is subscribed to, and the
fast path of sends leaves a LITE topic to the plain one by a fact that the topic knows (`Topic.is_plain`). Light queues
need enableLmq and enableMultiDispatch, as in the reference, which without them stores such messages where no consumer
finds them; here they are refused.
"""
