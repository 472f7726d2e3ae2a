"""Selector: an epoll instance that takes descriptors of both kinds."""

import collections.abc
import ctypes
import errno
import math
import os
import selectors
import time

from . import _library
from ._library import EpollEvent, array_of, check, library

_ADD, _DELETE, _MODIFY = 1, 2, 3
_IN, _OUT = 1, 4


class Selector(selectors.BaseSelector):
    """Waits for sockets of Pagewire's hosts and for descriptors of the kernel's.

    `fileno` is a descriptor of the kernel's, readable while `select` would report something.
    """

    def __init__(self):
        self._epoll = check(library.pw_epoll_create1(0x80000), own=False)
        self._keys = {}
        self._map = _Map(self)

    def fileno(self):
        return self._epoll

    def close(self):
        epoll, self._epoll = self._epoll, -1
        self._keys.clear()
        self._map = None
        if epoll >= 0:
            library.pw_close(epoll)

    def __del__(self):
        if getattr(self, "_epoll", -1) >= 0:
            self.close()

    def _lookup(self, fileobj):
        try:
            return _number(fileobj)
        except ValueError:
            # It may have been closed since.
            for key in self._keys.values():
                if key.fileobj is fileobj:
                    return key.fd
            raise

    def _control(self, operation, fd, events):
        mask = (_IN if events & selectors.EVENT_READ else 0) | (_OUT if events & selectors.EVENT_WRITE else 0)
        if library.pw_epoll_ctl(self._epoll, operation, fd, EpollEvent(mask, fd)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def register(self, fileobj, events, data=None):
        _check_events(events)
        fd = self._lookup(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} (FD {fd}) is already registered")
        self._control(_ADD, fd, events)
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj):
        key = self._keys.pop(self._find(fileobj).fd)
        try:
            self._control(_DELETE, key.fd, 0)
        except OSError:
            # It was closed.
            pass
        return key

    def modify(self, fileobj, events, data=None):
        _check_events(events)
        key = self._find(fileobj)
        if events != key.events:
            try:
                self._control(_MODIFY, key.fd, events)
            except OSError:
                del self._keys[key.fd]
                raise
        key = self._keys[key.fd] = key._replace(events=events, data=data)
        return key

    def _find(self, fileobj):
        try:
            return self._keys[self._lookup(fileobj)]
        except KeyError:
            raise KeyError(f"{fileobj!r} is not registered") from None

    def select(self, timeout=None):
        room = 1 << min(len(self._keys), 1023).bit_length()
        events = array_of(EpollEvent, room)()
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0)
        wait = -1 if timeout is None else _milliseconds(timeout)
        while True:
            found = library.pw_epoll_wait(self._epoll, events, room, wait)
            if found >= 0:
                break
            if ctypes.get_errno() != errno.EINTR:
                raise _library.error()
            if deadline is not None:
                wait = _milliseconds(deadline - time.monotonic())
        ready = []
        for event in events[:found]:
            key = self._keys.get(event.data)
            if key is None:
                continue
            # An error is reported as both, as the standard selectors do.
            mask = selectors.EVENT_WRITE if event.events & ~_IN else 0
            mask |= selectors.EVENT_READ if event.events & ~_OUT else 0
            if mask & key.events:
                ready.append((key, mask & key.events))
        return ready

    def get_key(self, fileobj):
        if self._map is None:
            raise RuntimeError("Selector is closed")
        return self._find(fileobj)

    def get_map(self):
        return self._map


class _Map(collections.abc.Mapping):
    """Registered objects, and their keys."""

    def __init__(self, selector):
        self._selector = selector

    def __len__(self):
        return len(self._selector._keys)

    def __getitem__(self, fileobj):
        return self._selector._find(fileobj)

    def __iter__(self):
        return iter(self._selector._keys)


def _milliseconds(seconds):
    return min(math.ceil(max(seconds, 0) * 1000), 0x7FFFFFFF)


def _check_events(events):
    if not events or events & ~(selectors.EVENT_READ | selectors.EVENT_WRITE):
        raise ValueError(f"Invalid events: {events!r}")


def _number(fileobj):
    if isinstance(fileobj, int):
        fd = fileobj
    else:
        try:
            fd = int(fileobj.fileno())
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"Invalid file object: {fileobj!r}") from None
    if fd < 0:
        raise ValueError(f"Invalid file descriptor: {fd}")
    return fd
