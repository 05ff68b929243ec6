"""gRPC over `wire.http2`: `calls.py` is a call, `port.py` the port that takes them, `call_task.py` what runs them."""
