"""Socket: the standard library's socket, of a Pagewire host.

A descriptor here never waits in the library. The object waits, in `pw_poll`, which a signal ends: so Ctrl-C works,
and a timeout means what it means to `socket.socket`.
"""

import ctypes
import errno
import fcntl
import io
import math
import os
import socket
import struct
import time
import warnings

from . import _address, _library, _payload
from ._library import IoVec, MsgHdr, Pinned, PollFd, array_of, bad_descriptor, check, error, library

POLLIN, POLLOUT = 1, 4
_FLAGS = socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
_MSG_ZEROCOPY = 0x4000000
_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_ERRQUEUE


class Socket:
    """A socket of a host. Its methods are those of `socket.socket`, and `send_owned` and `recv_chunks`."""

    __slots__ = ("__weakref__", "_closed", "_family", "_fd", "_host", "_io_refs", "_proto", "_timeout", "_type")

    def __init__(self, host, family, type, proto, fileno, timeout=None):
        self._fd = fileno
        self._host, self._family, self._type, self._proto = host, family, type, proto
        self._timeout = timeout
        self._io_refs = 0
        self._closed = False
        host._sockets.add(self)
        if host.closed:
            self._orphan()
            raise bad_descriptor()

    def __repr__(self):
        state = " [closed]" if self._closed else ""
        return f"<pagewire.Socket{state} fd={self._fd}, family={self.family!r}, type={self.type!r}>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self._closed:
            self.close()

    def __del__(self):
        if getattr(self, "_fd", -1) >= 0:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self)
            self._real_close()

    def __getstate__(self):
        raise TypeError("cannot pickle a socket")

    # ---- The object --------------------------------------------------------------------------------------------

    @property
    def host(self):
        return self._host

    @property
    def family(self):
        return socket.AddressFamily(self._family)

    @property
    def type(self):
        return socket.SocketKind(self._type)

    @property
    def proto(self):
        return self._proto

    @property
    def timeout(self):
        return self._timeout

    def gettimeout(self):
        return self._timeout

    def settimeout(self, seconds):
        if seconds is not None:
            seconds = float(seconds)
            if math.isnan(seconds):
                raise ValueError("Invalid value NaN (not a number)")
            if seconds < 0:
                raise ValueError("Timeout value out of range")
        self._number()
        self._timeout = seconds

    def setblocking(self, flag):
        self.settimeout(None if flag else 0.0)

    def getblocking(self):
        return self._timeout != 0

    def fileno(self):
        return self._fd

    def _number(self):
        if self._fd < 0:
            raise bad_descriptor()
        return self._fd

    def close(self):
        self._closed = True
        if self._io_refs <= 0:
            self._real_close()

    def _decref_socketios(self):
        if self._io_refs > 0:
            self._io_refs -= 1
        if self._closed:
            self.close()

    def _real_close(self):
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._host._sockets.discard(self)
            if library.pw_close(fd) < 0 and ctypes.get_errno() != errno.ECONNRESET:
                raise error()

    def _orphan(self):
        """The host is closed, and the descriptor with it."""
        self._fd = -1

    def detach(self):
        """The descriptor, which is the caller's then: to be closed by `pw_close`."""
        fd = self._fd
        if fd >= 0 and self._timeout is None:
            library.pw_fcntl(fd, fcntl.F_SETFL, 0)
        self._fd = -1
        self._closed = True
        self._host._sockets.discard(self)
        return fd

    def dup(self):
        fd = check(library.pw_fcntl(self._number(), fcntl.F_DUPFD_CLOEXEC, 0))
        return Socket(self._host, self._family, self._type, self._proto, fd, self._timeout)

    def makefile(self, mode="r", buffering=None, *, encoding=None, errors=None, newline=None):
        if not set(mode) <= {"r", "w", "b"}:
            raise ValueError(f"invalid mode {mode!r} (only r, w, b allowed)")
        writing = "w" in mode
        reading = "r" in mode or not writing
        raw = socket.SocketIO(self, ("r" if reading else "") + ("w" if writing else ""))
        self._io_refs += 1
        if buffering is None or buffering < 0:
            buffering = io.DEFAULT_BUFFER_SIZE
        if buffering == 0:
            if "b" not in mode:
                raise ValueError("unbuffered streams must be binary")
            return raw
        if reading and writing:
            buffer = io.BufferedRWPair(raw, raw, buffering)
        elif reading:
            buffer = io.BufferedReader(raw, buffering)
        else:
            buffer = io.BufferedWriter(raw, buffering)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline)
        text.mode = mode
        return text

    # ---- Waiting -----------------------------------------------------------------------------------------------

    def _deadline(self):
        return time.monotonic() + self._timeout if self._timeout else None

    def _wait(self, event, deadline):
        """Waits for an event until the deadline; without one, until SO_RCVTIMEO or SO_SNDTIMEO."""
        late = socket.timeout("timed out")
        if deadline is None:
            limit = self._kernel_limit(event)
            if limit:
                deadline = time.monotonic() + limit
                late = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        poll = PollFd(self._number(), event)
        while True:
            left = -1
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise late
                left = min(math.ceil(left * 1000), 0x7FFFFFFF)
            found = library.pw_poll(poll, 1, left)
            # A handler of a signal has run, or runs now: it may have closed the socket.
            self._number()
            if found > 0:
                return
            if found < 0 and ctypes.get_errno() != errno.EINTR:
                raise error()

    def _kernel_limit(self, event):
        name = socket.SO_RCVTIMEO if event == POLLIN else socket.SO_SNDTIMEO
        seconds, micros = struct.unpack("ll", self.getsockopt(socket.SOL_SOCKET, name, 16))
        return seconds + micros / 1e6

    def _run(self, event, flags, call, deadline=None):
        """The result of `call(descriptor)`, repeated after waits as long as it fails with EAGAIN."""
        if deadline is None:
            deadline = self._deadline()
        patient = self._timeout != 0 and not (self._timeout is None and flags & _AT_ONCE)
        while True:
            done = call(self._number())
            if not isinstance(done, int) or done >= 0:
                return done
            number = ctypes.get_errno()
            if number == errno.EAGAIN and patient:
                self._wait(event, deadline)
            elif number != errno.EINTR:
                raise error()

    # ---- Connections -------------------------------------------------------------------------------------------

    def bind(self, address):
        data = _address.pack(self._family, address)
        check(library.pw_bind(self._number(), data, len(data)))

    def listen(self, backlog=128):
        check(library.pw_listen(self._number(), max(backlog, 0)))

    def accept(self):
        name, length = ctypes.create_string_buffer(_address.ROOM), ctypes.c_uint()

        def call(fd):
            length.value = _address.ROOM
            return library.pw_accept4(fd, name, length, _FLAGS)

        fd = self._run(POLLIN, 0, call)
        made = Socket(self._host, self._family, self._type, self._proto, fd, socket.getdefaulttimeout())
        return made, _address.unpack(name.raw[: length.value])

    def _connect(self, address):
        """0, or the number of the error, and whether the library has a text for it."""
        data = _address.pack(self._family, address)
        deadline = self._deadline()
        if library.pw_connect(self._number(), data, len(data)) >= 0:
            return 0, True
        number = ctypes.get_errno()
        if number != errno.EINPROGRESS or self._timeout == 0:
            return number, True
        self._wait(POLLOUT, deadline)
        return self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), False

    def connect(self, address):
        number, has_text = self._connect(address)
        if number:
            raise error() if has_text else OSError(number, os.strerror(number))

    def connect_ex(self, address):
        try:
            return self._connect(address)[0]
        except socket.timeout:
            return errno.EAGAIN
        except OSError as why:
            if why.errno is None or isinstance(why, socket.gaierror):
                raise
            return why.errno

    def shutdown(self, how):
        check(library.pw_shutdown(self._number(), how))

    def _name(self, call):
        name, length = ctypes.create_string_buffer(_address.ROOM), ctypes.c_uint(_address.ROOM)
        check(call(self._number(), name, length))
        return _address.unpack(name.raw[: length.value])

    def getsockname(self):
        return self._name(library.pw_getsockname)

    def getpeername(self):
        return self._name(library.pw_getpeername)

    def getsockopt(self, level, option, buflen=0):
        if not 0 <= buflen <= 1024:
            raise OSError(errno.EINVAL, "getsockopt buflen out of range")
        into, length = ctypes.create_string_buffer(buflen or 4), ctypes.c_uint(buflen or 4)
        check(library.pw_getsockopt(self._number(), level, option, into, length))
        if buflen:
            return into.raw[: length.value]
        return struct.unpack_from("=i", into)[0]

    def setsockopt(self, level, option, value, optlen=None):
        if value is None:
            check(library.pw_setsockopt(self._number(), level, option, None, optlen))
            return
        data = struct.pack("=i", value) if isinstance(value, int) else value
        with Pinned(data) as pinned:
            check(library.pw_setsockopt(self._number(), level, option, pinned.address, pinned.size))

    # ---- Sending -----------------------------------------------------------------------------------------------

    def _keeps_sending(self, flags):
        """A stream that blocks takes everything, as Linux's does."""
        return self._timeout is None and self._type == socket.SOCK_STREAM and not flags & _AT_ONCE

    def _send(self, address, size, flags, deadline=None):
        if flags & _MSG_ZEROCOPY:
            raise OSError(errno.EOPNOTSUPP, "MSG_ZEROCOPY outlives a Python buffer: use send_owned")
        return self._run(POLLOUT, flags, lambda fd: library.pw_sendto(fd, address, size, flags, None, 0), deadline)

    def _send_all(self, pinned, flags, deadline=None):
        sent = 0
        while True:
            try:
                sent += self._send(pinned.address + sent, pinned.size - sent, flags, deadline)
            except OSError:
                if sent and deadline is None:
                    return sent
                raise
            if sent >= pinned.size:
                return sent

    def send(self, data, flags=0):
        with Pinned(data) as pinned:
            if self._keeps_sending(flags):
                return self._send_all(pinned, flags)
            return self._send(pinned.address, pinned.size, flags)

    def sendall(self, data, flags=0):
        deadline = self._deadline()
        with Pinned(data) as pinned:
            sent = 0
            while True:
                sent += self._send(pinned.address + sent, pinned.size - sent, flags, deadline)
                if sent >= pinned.size:
                    return

    def sendto(self, data, *rest):
        if len(rest) not in (1, 2):
            raise TypeError(f"sendto() takes 2 or 3 arguments ({len(rest) + 1} given)")
        flags, address = rest if len(rest) == 2 else (0, rest[0])
        if flags & _MSG_ZEROCOPY:
            raise OSError(errno.EOPNOTSUPP, "MSG_ZEROCOPY outlives a Python buffer: use send_owned")
        name = _address.pack(self._family, address)
        with Pinned(data) as pinned:

            def call(fd):
                return library.pw_sendto(fd, pinned.address, pinned.size, flags, name, len(name))

            return self._run(POLLOUT, flags, call)

    def sendmsg(self, buffers, ancdata=(), flags=0, address=None):
        if flags & _MSG_ZEROCOPY:
            raise OSError(errno.EOPNOTSUPP, "MSG_ZEROCOPY outlives a Python buffer: use send_owned")
        pinned, message, kept = [], MsgHdr(), []
        try:
            for buffer in buffers:
                pinned.append(Pinned(buffer))
            parts = [(each.address, each.size) for each in pinned]
            if address is not None:
                name = _address.pack(self._family, address)
                kept.append(ctypes.create_string_buffer(name, len(name)))
                message.name, message.namelen = ctypes.addressof(kept[-1]), len(name)
            control = _pack_control(ancdata)
            if control:
                kept.append(ctypes.create_string_buffer(control, len(control)))
                message.control, message.controllen = ctypes.addressof(kept[-1]), len(control)
            total = sum(size for _, size in parts)
            sent = 0
            while True:
                vector = array_of(IoVec, len(parts))(*parts)
                message.iov, message.iovlen = vector, len(parts)
                try:
                    done = self._run(POLLOUT, flags, lambda fd: library.pw_sendmsg(fd, message, flags))
                except OSError:
                    if sent:
                        return sent
                    raise
                sent += done
                if sent >= total or not self._keeps_sending(flags):
                    return sent
                parts = _skip(parts, done)
                message.control, message.controllen = None, 0
        finally:
            for each in pinned:
                each.release()

    def sendfile(self, file, offset=0, count=None):
        """Sends a file of the kernel's, by reference to its pages."""
        if self._type != socket.SOCK_STREAM:
            raise ValueError("only SOCK_STREAM type sockets are supported")
        if self._timeout == 0:
            raise ValueError("non-blocking sockets are not supported")
        deadline, source, sent = self._deadline(), file.fileno(), 0
        at = ctypes.c_longlong(offset)
        try:
            while count is None or sent < count:
                most = 0x7FFF0000 if count is None else count - sent
                done = self._run(POLLOUT, 0, lambda fd: library.pw_sendfile(fd, source, at, most), deadline)
                if done == 0:
                    break
                sent += done
            return sent
        finally:
            if sent > 0 and hasattr(file, "seek"):
                file.seek(offset + sent)

    # ---- Receiving ---------------------------------------------------------------------------------------------

    def _recv(self, address, size, flags):
        def call(fd, found=0):
            return library.pw_recvfrom(fd, address + found, size - found, flags, None, None)

        found = self._run(POLLIN, flags, call)
        if not flags & socket.MSG_WAITALL or self._timeout is not None or flags & (_AT_ONCE | socket.MSG_PEEK):
            return found
        while 0 < found < size and self._type == socket.SOCK_STREAM:
            try:
                more = self._run(POLLIN, flags, lambda fd: call(fd, found))
            except OSError:
                break
            if more == 0:
                break
            found += more
        return found

    def recv(self, bufsize, flags=0):
        into = _room(bufsize)
        return ctypes.string_at(into, self._recv(ctypes.addressof(into), bufsize, flags))

    def recv_into(self, buffer, nbytes=0, flags=0):
        with Pinned(buffer, writable=True) as pinned:
            return self._recv(pinned.address, _into(pinned, nbytes), flags)

    def _recvfrom(self, address, size, flags):
        name, length = ctypes.create_string_buffer(_address.ROOM), ctypes.c_uint()

        def call(fd):
            length.value = _address.ROOM
            return library.pw_recvfrom(fd, address, size, flags, name, length)

        found = self._run(POLLIN, flags, call)
        return found, _address.unpack(name.raw[: min(length.value, _address.ROOM)])

    def recvfrom(self, bufsize, flags=0):
        into = _room(bufsize)
        found, address = self._recvfrom(ctypes.addressof(into), bufsize, flags)
        return ctypes.string_at(into, found), address

    def recvfrom_into(self, buffer, nbytes=0, flags=0):
        with Pinned(buffer, writable=True) as pinned:
            return self._recvfrom(pinned.address, _into(pinned, nbytes), flags)

    def _recvmsg(self, parts, ancbufsize, flags):
        if ancbufsize < 0:
            raise ValueError("invalid ancillary data buffer length")
        name = ctypes.create_string_buffer(_address.ROOM)
        control = ctypes.create_string_buffer(ancbufsize) if ancbufsize else None
        vector = array_of(IoVec, len(parts))(*parts)
        message = MsgHdr()

        def call(fd):
            message.name, message.namelen = ctypes.addressof(name), _address.ROOM
            message.iov, message.iovlen = vector, len(parts)
            message.control = ctypes.addressof(control) if control else None
            message.controllen = ancbufsize
            return library.pw_recvmsg(fd, message, flags)

        found = self._run(POLLIN, flags, call)
        ancillary = _unpack_control(control.raw[: message.controllen]) if control else []
        address = _address.unpack(name.raw[: min(message.namelen, _address.ROOM)])
        return found, ancillary, message.flags, address

    def recvmsg(self, bufsize, ancbufsize=0, flags=0):
        into = _room(bufsize)
        found, *rest = self._recvmsg([(ctypes.addressof(into), bufsize)], ancbufsize, flags)
        return (ctypes.string_at(into, found), *rest)

    def recvmsg_into(self, buffers, ancbufsize=0, flags=0):
        pinned = []
        try:
            for buffer in buffers:
                pinned.append(Pinned(buffer, writable=True))
            return self._recvmsg([(each.address, each.size) for each in pinned], ancbufsize, flags)
        finally:
            for each in pinned:
                each.release()

    # ---- Payload by reference ----------------------------------------------------------------------------------

    def send_owned(self, buffer, on_release=None, flags=0):
        """Sends a buffer without a copy. Returns the number of queued bytes: less than all without a wait, or late.

        The buffer stays as it is, and is locked, until the peer has the bytes. `on_release(buffer)` is called then,
        on any thread; it must not wait.
        """
        loan = _payload.Loan(buffer, on_release)
        deadline, sent = self._deadline(), 0
        try:
            while True:
                try:
                    sent += self._run(POLLOUT, flags, lambda fd: loan.send(fd, sent, flags), deadline)
                except OSError:
                    if sent:
                        return sent
                    raise
                if sent >= loan.size or self._timeout == 0 or flags & _AT_ONCE:
                    return sent
        finally:
            loan.close(sent)

    def recv_chunks(self, most, flags=0):
        """Up to `most` received bytes as a list of chunks, without a copy; an empty list at the end of the stream."""
        return self._run(POLLIN, flags, lambda fd: _payload.receive(fd, most, flags))

    def send_chunk(self, chunk, flags=0):
        """Sends a received chunk on without a copy. Returns the number of bytes; the chunk then is the rest."""
        return self._run(POLLOUT, flags, lambda fd: chunk.send_on(fd, flags))


def _room(size):
    if size < 0:
        raise ValueError("negative buffersize in recv")
    # Types of arrays are kept by size, so sizes are few.
    return array_of(ctypes.c_char, 1 << max(size - 1, 0).bit_length())()


def _into(pinned, size):
    if size < 0:
        raise ValueError("negative buffersize in recv_into")
    if size > pinned.size:
        raise ValueError("buffer too small for requested bytes")
    return size or pinned.size


def _skip(parts, count):
    """What follows the first `count` bytes."""
    rest = []
    for address, size in parts:
        step = min(count, size)
        count -= step
        if size > step:
            rest.append((address + step, size - step))
    return rest


_CMSG = struct.Struct("@Nii")


def _pack_control(ancdata):
    packed = b""
    for level, kind, data in ancdata:
        data = bytes(data)
        item = _CMSG.pack(socket.CMSG_LEN(len(data)), level, kind) + data
        packed += item.ljust(socket.CMSG_SPACE(len(data)), b"\0")
    return packed


def _unpack_control(data):
    found = []
    while len(data) >= _CMSG.size:
        length, level, kind = _CMSG.unpack_from(data)
        if length < _CMSG.size:
            break
        found.append((level, kind, data[_CMSG.size : length]))
        data = data[socket.CMSG_SPACE(length - _CMSG.size) :]
    return found
