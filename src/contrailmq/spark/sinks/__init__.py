"""Rows to messages: packing and sending."""
