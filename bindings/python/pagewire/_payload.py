"""Payload by reference: buffers that are lent to the stack, and chunks that the stack lends."""

import ctypes
import itertools
import weakref

from . import _library
from ._library import RELEASE, array_of, library

_loans = {}
_numbers = itertools.count(1)


class Loan:
    """A buffer that the stack reads, locked until it does not any more."""

    def __init__(self, buffer, on_release):
        self.buffer = buffer
        self.pinned = _library.Pinned(buffer)
        self.size = self.pinned.size
        self.on_release = on_release
        self.pieces = set()
        self.is_closed = False
        # Whoever pops it ends the loan. Only such single steps are used: a release may come in any call of any thread.
        self.end = [None]

    def send(self, fd, start, flags):
        """Sends what follows `start`."""
        number = next(_numbers)
        self.pieces.add(number)
        _loans[number] = self
        address = self.pinned.address + start
        sent = library.pw_send_owned(fd, address, self.size - start, flags, _release, number)
        if sent < 0:
            del _loans[number]
            self.pieces.discard(number)
        return sent

    def close(self, sent):
        """No more pieces come."""
        if sent == 0:
            self.on_release = None
        self.is_closed = True
        self._end_if_done()

    def _end_if_done(self):
        if not self.is_closed or self.pieces:
            return
        try:
            self.end.pop()
        except IndexError:
            return
        self.pinned.release()
        buffer, self.buffer = self.buffer, None
        if self.on_release is not None:
            self.on_release(buffer)


@RELEASE
def _release(number, _data, _len):
    loan = _loans.pop(number)
    loan.pieces.discard(number)
    loan._end_if_done()


class _Pages:
    """A chunk of the library's, given back with the last reference to it."""

    __slots__ = ("raw",)

    def __init__(self, raw):
        self.raw = raw

    def __del__(self, give_back=library.pw_chunk_release):
        give_back(self.raw)


class Chunk:
    """Received bytes in the pages that they came in.

    `view` is a read-only memoryview of them, and so is `memoryview(chunk)` from Python 3.12 on. The pages go back
    to the stack after `release`, or the end of the `with`, as soon as no view of them is left.
    """

    __slots__ = ("_memory", "_pages", "_raw")

    def __init__(self, raw):
        self._raw = raw
        self._pages = _Pages(raw)
        self._memory = None

    def _held(self):
        if self._pages is None:
            raise ValueError("the chunk was released")
        return self._pages

    @property
    def view(self):
        pages = self._held()
        memory = self._memory and self._memory()
        if memory is None:
            memory = array_of(ctypes.c_ubyte, self._raw.len).from_address(self._raw.data)
            # Every memoryview holds the array, and so the pages.
            memory.pages = pages
            self._memory = weakref.ref(memory)
        return memoryview(memory).cast("B").toreadonly()

    def __buffer__(self, _flags):
        return self.view

    def __bytes__(self):
        self._held()
        return ctypes.string_at(self._raw.data, self._raw.len)

    def __len__(self):
        return 0 if self._pages is None else self._raw.len

    @property
    def shared(self):
        """Whether the sender may change the bytes while they are read."""
        return bool(self._raw.flags & 1)

    @property
    def released(self):
        """Whether the stack has the pages back."""
        return not self._raw.handle

    def release(self):
        self._pages = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def send_on(self, fd, flags):
        """Sends the bytes by reference; the chunk then is the rest, or released."""
        self._held()
        if self._memory and self._memory() is not None:
            raise BufferError("views of the chunk exist")
        sent = library.pw_send_chunk(fd, self._raw, flags)
        if self.released:
            self._pages = None
        return sent


def receive(fd, most, flags, count=64):
    """Up to `count` chunks of at most `most` bytes; a number below 0 instead: the call failed."""
    raw = array_of(_library.Chunk, count)()
    found = library.pw_recv_chunks(fd, raw, count, most, flags)
    if found < 0:
        return found
    return [Chunk(_library.Chunk.from_buffer_copy(raw[at])) for at in range(found)]
