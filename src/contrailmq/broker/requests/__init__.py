"""What clients ask for: send, pull, reply, retry, query, offsets, heartbeats."""
