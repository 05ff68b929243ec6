"""From a queue's offset to slices of the log."""
