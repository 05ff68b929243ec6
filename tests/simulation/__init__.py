"""A whole cluster in one process, from one seed.

Start reading in `world.py` (time and order), then `threads.py` (what blocks), `network.py` and `sockets.py` (what
connects), `loop.py` (asyncio on top of them), `disks.py` (what a power cut takes), `nodes.py` (processes and their
clocks), `patches.py` (how unchanged code comes to use all this), `cluster.py` (our servers in it) and
`trial.py` (faults from a seed, with `history.py` and `checker.py`).
"""
