"""Connections, routes, heartbeats: one instance for the clients of a process."""
