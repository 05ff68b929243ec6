"""Consumers: rebalance, pulling, listeners, offsets, sending back."""
