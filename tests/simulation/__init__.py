"""A whole cluster in one process, from one seed.

Start reading in `world.py` (time and order), then `threads.py` (what blocks), `network.py` and `sockets.py` (what
connects), `loop.py` (asyncio on top of them), `disks.py` (what a power cut takes), `nodes.py` (processes and their
clocks), `patches.py` (how unchanged code comes to use all this) and `cluster.py` (our servers in it). On top of them
`faults.py` (what happens, from a seed), `workload.py` (the clients), `history.py` (what they saw), `stores.py` (what is
left on the disks), `checker.py` (what must be true of both), `replicas.py` (and of masters
and slaves), `trial.py` (all of it for one seed), `planted.py` (bugs that the checker must find), `runs.py` (many seeds)
and `scoreboard.py` (docs/reliability.md).
"""
