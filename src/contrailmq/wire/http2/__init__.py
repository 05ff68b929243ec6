"""HTTP/2 (RFC 9113, RFC 7541) as a server of gRPC needs it: `connection.py` first, then `frames.py` and `hpack.py`."""
