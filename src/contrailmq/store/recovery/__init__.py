"""Opening: the log is walked, queues and index are brought to agree with it."""
