"""Stores that no broker runs on: inspect, verify, rebuild, repair."""
