"""What the tests share: two hosts on a pair, a thread with a result, a loop of asyncio's."""

import asyncio
import itertools
import os
import sys
import threading
import unittest

import pagewire

_names = itertools.count()
A, B = "10.0.0.1", "10.0.0.2"
A6, B6 = "fd00::1", "fd00::2"


def skip(test, why):
    print(f"SKIPPED: {test.id()}: {why}", file=sys.stderr)
    if os.environ.get("PAGEWIRE_REQUIRE_ALL", "0") != "0":
        test.fail(why)
    test.skipTest(why)


class Pair(unittest.TestCase):
    """`a` and `b` are hosts on one link."""

    settings = ""

    def setUp(self):
        link = f"pair=python{next(_names)}"
        self.a = pagewire.Host(f"{link},addr={A}/24,addr={A6}/64")
        self.addCleanup(self.a.close)
        self.b = pagewire.Host(f"{link},addr={B}/24,addr={B6}/64")
        self.addCleanup(self.b.close)

    def keep(self, closable):
        self.addCleanup(closable.close)
        return closable

    def listener(self, port=80, address=B, **settings):
        return self.keep(self.b.create_server((address, port), **settings))

    def connected(self, port=80):
        """A stream from `a` to `b`, and its other end."""
        listener = self.b.create_server((B, port))
        with listener:
            client = self.keep(self.a.create_connection((B, port)))
            return client, self.keep(listener.accept()[0])

    def loop(self):
        loop = asyncio.SelectorEventLoop(pagewire.Selector())
        self.addCleanup(loop.close)
        return loop

    def run_async(self, coroutine, limit=60):
        async def limited():
            try:
                return await asyncio.wait_for(coroutine, limit)
            finally:
                left = asyncio.all_tasks() - {asyncio.current_task()}
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)
                # Transports close in the next rounds.
                await asyncio.sleep(0.01)

        loop = self.loop()
        asyncio.set_event_loop(loop)
        try:
            return loop.run_until_complete(limited())
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            asyncio.set_event_loop(None)


class Task(threading.Thread):
    """A call on a thread of its own; `result` waits for it."""

    def __init__(self, call, *args):
        super().__init__(daemon=True)
        self._call = call, args
        self._done = self._failed = None
        self.start()

    def run(self):
        call, args = self._call
        try:
            self._done = call(*args)
        except BaseException as why:
            self._failed = why

    def result(self, limit=30):
        self.join(limit)
        if self.is_alive():
            raise AssertionError("the thread does not end")
        if self._failed is not None:
            raise self._failed
        return self._done
