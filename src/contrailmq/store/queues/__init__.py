"""Consume queues and batch queues: where the messages of a topic lie in the log."""
