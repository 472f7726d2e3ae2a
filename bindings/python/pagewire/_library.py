"""The functions of libpagewire, and their structures.

`ctypes.CDLL` gives up the interpreter's lock during a call, so a call that waits stops no other thread.
"""

import ctypes
import ctypes.util
import errno
import functools
import os
import platform
import re
import sys
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ssize_t, c_uint, c_uint64, c_ulong, c_void_p


class Ledger(ctypes.Structure):
    _fields_ = [("size", c_size_t)] + [
        (name, c_uint64) for name in ("copied", "by_device", "sent_frames", "received_frames")
    ]


class Chunk(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("len", c_size_t), ("flags", c_uint), ("handle", c_void_p)]


class PollFd(ctypes.Structure):
    _fields_ = [("fd", c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class EpollEvent(ctypes.Structure):
    # The kernel packs it on x86-64 only.
    if platform.machine() in ("x86_64", "AMD64"):
        _pack_ = 1
        _layout_ = "ms"
    _fields_ = [("events", ctypes.c_uint32), ("data", c_uint64)]


class IoVec(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("len", c_size_t)]


class MsgHdr(ctypes.Structure):
    _fields_ = [
        ("name", c_void_p),
        ("namelen", c_uint),
        ("iov", POINTER(IoVec)),
        ("iovlen", c_size_t),
        ("control", c_void_p),
        ("controllen", c_size_t),
        ("flags", c_int),
    ]


RELEASE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)
EACH = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_uint64)

_length = POINTER(c_uint)
_FUNCTIONS = {
    "pw_error": (c_char_p,),
    "pw_host_open": (c_int, c_char_p),
    "pw_host_close": (c_int, c_int),
    "pw_host_socket": (c_int, c_int, c_int, c_int, c_int),
    "pw_bind": (c_int, c_int, c_char_p, c_uint),
    "pw_listen": (c_int, c_int, c_int),
    "pw_accept4": (c_int, c_int, c_void_p, _length, c_int),
    "pw_connect": (c_int, c_int, c_char_p, c_uint),
    "pw_shutdown": (c_int, c_int, c_int),
    "pw_getsockname": (c_int, c_int, c_void_p, _length),
    "pw_getpeername": (c_int, c_int, c_void_p, _length),
    "pw_getsockopt": (c_int, c_int, c_int, c_int, c_void_p, _length),
    "pw_setsockopt": (c_int, c_int, c_int, c_int, c_void_p, c_uint),
    "pw_recvfrom": (c_ssize_t, c_int, c_void_p, c_size_t, c_int, c_void_p, _length),
    "pw_recvmsg": (c_ssize_t, c_int, POINTER(MsgHdr), c_int),
    "pw_sendto": (c_ssize_t, c_int, c_void_p, c_size_t, c_int, c_char_p, c_uint),
    "pw_sendmsg": (c_ssize_t, c_int, POINTER(MsgHdr), c_int),
    "pw_sendfile": (c_ssize_t, c_int, c_int, POINTER(ctypes.c_longlong), c_size_t),
    "pw_close": (c_int, c_int),
    "pw_dup": (c_int, c_int),
    "pw_poll": (c_int, POINTER(PollFd), c_ulong, c_int),
    "pw_epoll_create1": (c_int, c_int),
    "pw_epoll_ctl": (c_int, c_int, c_int, c_int, POINTER(EpollEvent)),
    "pw_epoll_wait": (c_int, c_int, POINTER(EpollEvent), c_int, c_int),
    "pw_send_owned": (c_ssize_t, c_int, c_void_p, c_size_t, c_int, RELEASE, c_void_p),
    "pw_recv_chunks": (c_ssize_t, c_int, POINTER(Chunk), c_size_t, c_size_t, c_int),
    "pw_chunk_release": (None, POINTER(Chunk)),
    "pw_send_chunk": (c_ssize_t, c_int, POINTER(Chunk), c_int),
    "pw_frames_send": (c_ssize_t, c_int, c_void_p, c_size_t),
    "pw_frames_receive": (c_ssize_t, c_int, c_void_p, c_size_t),
    "pw_frames_fd": (c_int, c_int),
    "pw_ledger_get": (c_int, c_int, POINTER(Ledger)),
    "pw_counts_each": (c_int, c_int, EACH, c_void_p),
    "pw_stats_text": (c_ssize_t, c_int, c_void_p, c_size_t),
}


def _load():
    path = os.environ.get("PAGEWIRE_LIBRARY") or ctypes.util.find_library("pagewire") or "libpagewire.so.0.1"
    try:
        library = ctypes.CDLL(path, use_errno=True)
    except OSError as why:
        raise ImportError(f"no library of Pagewire's: {why}; PAGEWIRE_LIBRARY names its file") from why
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    # Variadic: its third argument is an int here.
    library.pw_fcntl.restype = c_int
    return library


library = _load()

_NUMBER = re.compile(r" \(os error \d+\)$")


def error(own=True):
    """The exception of the call that has just failed on this thread. `own`: the library itself made the error."""
    number = ctypes.get_errno()
    text = library.pw_error().decode(errors="replace") if own else ""
    return OSError(number, _NUMBER.sub("", text) or os.strerror(number))


def check(done, own=True):
    """The result of a call, or its error as an exception."""
    if done < 0:
        raise error(own)
    return done


def bad_descriptor():
    return OSError(errno.EBADF, os.strerror(errno.EBADF))


@functools.lru_cache(maxsize=256)
def array_of(kind, length):
    return kind * length


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", ctypes.py_object),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_void_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, POINTER(_PyBuffer), c_int]
_get_buffer.restype = c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [POINTER(_PyBuffer)]
_release_buffer.restype = None


class Pinned:
    """The memory of a buffer, which cannot move or shrink until `release`."""

    __slots__ = ("_view", "address", "size")

    def __init__(self, buffer, writable=False):
        if isinstance(buffer, str):
            raise TypeError("a bytes-like object is required, not 'str'")
        view = _PyBuffer()
        _get_buffer(buffer, view, 1 if writable else 0)
        self._view, self.address, self.size = view, view.buf, view.len

    def release(self):
        view, self._view = self._view, None
        if view is not None:
            _release_buffer(view)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def __del__(self):
        if not sys.is_finalizing() and getattr(self, "_view", None) is not None:
            self.release()
