"""Where a job's kernels run: in this process, in a pool of processes, or as Spark tasks.

A kernel is a plain function of one picklable item that gives one picklable result; what it writes, it writes to files.
`Engine.run` yields results in the order of the items, whichever engine it is, so a job merges them the same way and the
engines give equal results. On Spark one item is one task (`mapInArrow` over a range, one row per partition): it is
retried by Spark, and works under Spark Connect as well. `on_progress` gets the number of finished items while the
others run (under Spark Connect only at the end).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import pyarrow as pa

from contrailmq.message import ContrailError
from contrailmq.spark.runtime.shipping import ship_package
from contrailmq.spark.runtime.task_process import freeze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASKS_UNKNOWN: Final = 8  # more than slots only means that some tasks wait
_LOOK_S: Final = 0.5
Progress = Callable[[int, int], None]  # items done, items in all
Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerDiedError(ContrailError):
    """A process of the local engine's pool ended before its task: most often the system took it for its memory."""

    retriable = True

    def __init__(self, workers: int) -> None:
        super().__init__(
            f"one of the {workers} processes of the local engine was killed, most often for want of memory: free some, "
            "use fewer of them, as in LocalEngine(workers=1), or let Spark run the job (--engine spark)"
        )


class Engine(Protocol):
    """Runs a kernel over items; results come in the order of the items."""

    @property
    def tasks_at_once(self) -> int:
        """How many items it works on at the same time, at most."""

    def run(
        self, kernel: Callable[[Item], Result], items: Sequence[Item], on_progress: Progress | None = None
    ) -> Iterator[Result]: ...


class LocalEngine:
    """A pool of processes, started when first needed; one worker or one item means: in this process.

    Workers are forked from a server process that has imported the kernels and started no threads: forking this process
    would copy the locks of Arrow's and the client's threads, and starting each worker again costs seconds.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    @property
    def tasks_at_once(self) -> int:
        return self.workers

    def run(
        self, kernel: Callable[[Item], Result], items: Sequence[Item], on_progress: Progress | None = None
    ) -> Iterator[Result]:
        tell = on_progress or _tell_nobody
        if self.workers > 1 and len(items) > 1:
            yield from self._run_in_pool(kernel, items, tell)
            return
        for done, item in enumerate(items, 1):
            result = kernel(item)
            tell(done, len(items))
            yield result

    def _run_in_pool(self, kernel: Callable[[Item], Result], items: Sequence[Item], tell: Progress) -> Iterator[Result]:
        """However it ends, no task runs any more then: after an error the caller removes what tasks were writing."""
        tasks: deque[Future[Result]] = deque()
        try:
            pool = self._started_pool(kernel.__module__)
            tasks.extend(pool.submit(kernel, item) for item in items)
            while tasks:
                result = tasks[0].result()
                tasks.popleft()
                tell(len(items) - len(tasks), len(items))
                yield result
        except BrokenProcessPool as exc:
            self.close()
            raise WorkerDiedError(self.workers) from exc
        finally:
            wait([task for task in tasks if not task.cancel()])

    def _started_pool(self, kernel_module: str) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("forkserver")
            # Of ours only: the server looks for them where it was started, not where we find modules (Python 3.11).
            wanted = ("contrailmq.spark.decoding.log_plan", kernel_module)
            context.set_forkserver_preload([name for name in wanted if name.startswith("contrailmq.")])
            self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_prepare_worker)
        return self._pool

    def close(self) -> None:
        """End the pool's processes."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _tell_nobody(done: int, total: int) -> None:
    """For a caller that gives no `on_progress`."""


def _prepare_worker() -> None:
    """Begin a process of a pool."""
    sys.meta_path.insert(0, _NoPandas())
    maker = multiprocessing.parent_process()  # the one with the pool, not the server that forked this one
    assert maker is not None

    def end_with_maker() -> None:
        maker.join()
        os._exit(1)

    # A pool that is killed cannot end its processes, and each would wait for its next task for ever.
    threading.Thread(target=end_with_maker, name="end-with-maker", daemon=True).start()


class _NoPandas(MetaPathFinder):
    """PyArrow imports pandas, where it is installed, with its first array: most of a second that no kernel needs."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of a pool's processes", name=fullname)


class SparkEngine:
    """Spark tasks, one for each item."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    @property
    def tasks_at_once(self) -> int:
        context = getattr(self.spark, "_sc", None)  # a session of Spark Connect has none and does not tell
        return _TASKS_UNKNOWN if context is None else int(context.defaultParallelism)

    def run(
        self, kernel: Callable[[Item], Result], items: Sequence[Item], on_progress: Progress | None = None
    ) -> Iterator[Result]:
        if not items:
            return
        from pyspark import cloudpickle

        ship_package(self.spark)  # a session that was given may not be ours
        # Spark's pickle also takes functions that have no name, such as the filter of a redrive.
        payloads = [cloudpickle.dumps((kernel, item)) for item in items]

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    work, item = pickle.loads(payloads[number])
                    yield pa.RecordBatch.from_pydict({"number": [number], "result": [pickle.dumps(work(item))]})
            freeze()

        tasks = self.spark.range(0, len(items), 1, len(items)).mapInArrow(task, "number bigint, result binary")
        with self._watched(len(items), on_progress):
            rows = tasks.collect()
        for row in sorted(rows, key=lambda row: int(row["number"])):
            result: Result = pickle.loads(row["result"])
            yield result

    @contextmanager
    def _watched(self, total: int, on_progress: Progress | None) -> Iterator[None]:
        """Tell how many tasks are done while a job with so many runs."""
        if on_progress is None:
            yield
            return
        context, ended = getattr(self.spark, "_sc", None), threading.Event()

        def watch() -> None:
            if context is None:
                return
            tracker = context.statusTracker()
            while not ended.wait(_LOOK_S):
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
                done = [stage.numCompletedTasks for stage in stages if stage is not None and stage.numTasks == total]
                if done:
                    on_progress(max(done), total)

        watcher = threading.Thread(target=watch, name="spark-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
        on_progress(total, total)
