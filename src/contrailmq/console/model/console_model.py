"""The model's front: one cluster as the console sees it. Pages are given this and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from contrailmq.client.settings import ClientSettings
from contrailmq.console.model.asking import Asking
from contrailmq.console.model.groups import Groups
from contrailmq.console.model.letters import Letters
from contrailmq.console.model.messages import Messages
from contrailmq.console.model.pending import Pending
from contrailmq.console.model.pipeline import ReadArchives
from contrailmq.console.model.sampling import Sampler
from contrailmq.console.model.schemas import Schemas
from contrailmq.console.model.settings import Settings
from contrailmq.console.model.topics import Topics


class ConsoleModel:
    """Make it, start it and stop it on one event loop. One that `is_read_only` refuses every change (asking.py)."""

    def __init__(
        self,
        namesrv: str,
        *,
        is_read_only: bool = False,
        read_archives: ReadArchives | None = None,
        schemas: Path | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.namesrv = namesrv
        self.is_read_only = is_read_only
        self.asking = Asking(namesrv=namesrv, is_read_only=is_read_only, **settings)
        self.sampler = Sampler(self.asking)
        self.topics = Topics(self.asking, dict(settings))
        self.groups = Groups(self.asking)
        self.messages = Messages(self.asking, self.topics)
        self.schemas = Schemas(schemas)
        self.letters = Letters(self.asking, self.topics)
        self.pending = Pending(self.asking)
        self.settings = Settings(self.asking)
        self.read_archives = read_archives  # how far archives of this machine are; None: none were named

    async def start(self) -> None:
        """Begins to sample; does not wait for the cluster."""
        await self.asking.start()
        self.sampler.start()

    async def stop(self) -> None:
        await self.sampler.stop()
        await self.asking.shutdown()
