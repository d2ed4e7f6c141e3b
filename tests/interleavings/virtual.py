"""Time that passes only when everybody waits, and processes that may be stopped and killed.

One event loop runs a whole history. Blocking code runs in greenlets of its tasks, so that a writer made
for threads and one made for asyncio live in the same world: `Threads` and `Clock` stand in for the
modules `threading` and `time`, and `sleep` is what a blocking call waits with.
"""

import asyncio
import selectors
from contextvars import ContextVar, copy_context

from sqlalchemy.util import await_only, greenlet_spawn


class Standstill(Exception):
    """Everybody waits, and nobody for a time: nothing will ever happen again."""


class Killed(BaseException):
    """The process is gone; whatever of it still runs has no effect on anybody."""


class _NoFiles(selectors.SelectSelector):
    """Waiting is a step of the clock."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        if timeout is None:
            raise Standstill
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._files = _NoFiles()
        super().__init__(self._files)
        self.set_task_factory(_task_of_a_process)
        self.set_exception_handler(lambda loop, context: None)

    def time(self):
        return self._files.now


class Process:
    """What lives and dies together: the tasks that were started in its context."""

    current: ContextVar["Process"] = ContextVar("process")

    def __init__(self, name):
        self.name = name
        self.tasks = []
        self.is_dead = False
        self.stopped_until = 0.0
        self.cut_off_until = 0.0

    def __str__(self):
        return self.name

    def start(self, work, *args):
        """Run blocking code as a thread of this process; gives its task."""
        context = copy_context()
        context.run(Process.current.set, self)
        work = greenlet_spawn(work, *args)
        return asyncio.get_running_loop().create_task(work, context=context)

    def kill(self):
        self.is_dead = True
        for task in self.tasks:
            task.cancel()

    def check(self):
        if self.is_dead:
            raise Killed

    def stand_still(self):
        """Where a stopped process stands until it is continued (SIGSTOP, SIGCONT)."""
        self.check()
        while (left := self.stopped_until - now()) > 0:
            sleep(left)
            self.check()


def _task_of_a_process(loop, work, context=None):
    context = context or copy_context()
    task = asyncio.Task(work, loop=loop, context=context)
    if Process.current in context:
        context[Process.current].tasks.append(task)
    return task


def now():
    return asyncio.get_running_loop().time()


def sleep(seconds):
    await_only(asyncio.sleep(seconds))


class Clock:
    """`time`, as far as the writers use it."""

    monotonic = staticmethod(now)
    time = staticmethod(now)


class Threads:
    """`threading`, as far as the writers use it."""

    @staticmethod
    def get_ident():
        return id(asyncio.current_task())

    class Event:
        def __init__(self):
            self._event = asyncio.Event()
            self.set, self.clear, self.is_set = (
                self._event.set,
                self._event.clear,
                self._event.is_set,
            )

        def wait(self, timeout=None):
            return await_only(_in_time(self._event.wait(), timeout))

    class Semaphore:
        def __init__(self, value=1):
            self._semaphore = asyncio.Semaphore(value)
            self.release = self._semaphore.release

        def acquire(self, blocking=True, timeout=None):
            if not self._semaphore.locked():
                return await_only(self._semaphore.acquire())  # at once
            return blocking and await_only(_in_time(self._semaphore.acquire(), timeout))

    class Thread:
        def __init__(self, target, args=(), name="", daemon=True):
            self._target, self._args = target, args

        def start(self):
            self._task = asyncio.ensure_future(greenlet_spawn(self._target, *self._args))

        def join(self):
            await_only(asyncio.wait([self._task]))


async def _in_time(work, seconds):
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        return False
