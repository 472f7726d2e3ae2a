"""Hosts: networks of this process."""

import atexit
import contextlib
import ctypes
import socket as standard
import weakref
from typing import NamedTuple

from . import _library
from ._library import EACH, check, library
from ._socket import Socket


class Ledger(NamedTuple):
    """Payload bytes that were copied, by the stack and at the link, and frames."""

    copied: int
    by_device: int
    sent_frames: int
    received_frames: int


class Host:
    """A host on a link, as `pw_host_open` starts it: "pair=lan,addr=10.0.0.1/24"."""

    def __init__(self, config):
        self._handle = -1
        self._handle = check(library.pw_host_open(config.encode()))
        self._config = config
        self._sockets = weakref.WeakSet()
        # Stack threads call into Python (send_owned): they end before the interpreter does.
        _running.add(self)

    def __repr__(self):
        return f"<pagewire.Host {self._config!r}{' closed' if self.closed else ''}>"

    @property
    def closed(self):
        return self._handle < 0

    def _open_handle(self):
        # A negative handle is the library's network in use: not meant here.
        if self._handle < 0:
            raise _library.bad_descriptor()
        return self._handle

    def close(self):
        """Ends the network and its sockets; what is queued is delivered within two seconds."""
        handle, self._handle = self._handle, -1
        if handle < 0:
            return
        _running.discard(self)
        # First: their numbers may be given anew at once.
        for each in list(self._sockets):
            each._orphan()
        check(library.pw_host_close(handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def socket(self, family=standard.AF_INET, type=standard.SOCK_STREAM, proto=0):
        """A socket of this network."""
        flags = standard.SOCK_CLOEXEC | standard.SOCK_NONBLOCK
        fd = check(library.pw_host_socket(self._open_handle(), family, type | flags, proto))
        return Socket(self, family, type & ~flags, proto, fd, 0.0 if type & standard.SOCK_NONBLOCK else None)

    def create_connection(self, address, timeout=None, source_address=None):
        """A stream to `address`, as of `socket.create_connection`."""
        found = standard.getaddrinfo(*address, type=standard.SOCK_STREAM)
        why = None
        for family, kind, proto, _, to in found:
            made = self.socket(family, kind, proto)
            try:
                made.settimeout(timeout)
                if source_address is not None:
                    made.bind(source_address)
                made.connect(to)
                return made
            except OSError as error:
                made.close()
                why = error
        raise why

    def create_server(self, address, *, family=standard.AF_INET, backlog=128):
        """A listener at `address`, as of `socket.create_server`."""
        made = self.socket(family)
        try:
            made.setsockopt(standard.SOL_SOCKET, standard.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(backlog)
        except BaseException:
            made.close()
            raise
        return made

    def ledger(self):
        ledger = _library.Ledger(size=ctypes.sizeof(_library.Ledger))
        check(library.pw_ledger_get(self._open_handle(), ledger))
        return Ledger(ledger.copied, ledger.by_device, ledger.sent_frames, ledger.received_frames)

    def counts(self):
        """Every count, and the copied bytes by reason, by name."""
        found = {}

        @EACH
        def each(_, name, value):
            found[name.decode()] = value

        check(library.pw_counts_each(self._open_handle(), each, None))
        return found

    def stats(self):
        """The report of all counts that are not 0."""
        room = 4096
        while True:
            text = ctypes.create_string_buffer(room)
            length = check(library.pw_stats_text(self._open_handle(), text, room))
            if length < room:
                return text.value.decode(errors="replace")
            room = length + 1024

    def frames_send(self, frame):
        """Gives the network of a link "frames" an Ethernet frame; BlockingIOError if it is full."""
        with _library.Pinned(frame) as pinned:
            return check(library.pw_frames_send(self._open_handle(), pinned.address, pinned.size))

    def frames_receive(self, most=65536):
        """A frame of the network's, cut to `most` bytes; BlockingIOError if there is none."""
        into = ctypes.create_string_buffer(max(most, 1))
        length = check(library.pw_frames_receive(self._open_handle(), into, most))
        return ctypes.string_at(into, length)

    def frames_fileno(self):
        """A descriptor of the kernel's that is readable when there is a frame, after a BlockingIOError."""
        return check(library.pw_frames_fd(self._open_handle()))


_running = set()


@atexit.register
def _close_all():
    for host in list(_running):
        # A child after fork has no network to close.
        with contextlib.suppress(OSError):
            host.close()
