"""POP: messages handed out for a time, acknowledged one by one. The design is in `in_flight.py` and docs/pop.md."""
