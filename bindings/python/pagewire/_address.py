"""Socket addresses: Python's tuples, and the kernel's bytes."""

import socket
import struct

# struct sockaddr_storage
ROOM = 128


def _numeric(family, host):
    """The bytes of an address; a name is looked up by the kernel's resolver."""
    if host == "":
        return bytes(4 if family == socket.AF_INET else 16), 0
    if family == socket.AF_INET and host == "<broadcast>":
        return b"\xff" * 4, 0
    name, _, scope = host.partition("%")
    try:
        return socket.inet_pton(family, name), int(scope) if scope.isdigit() else 0
    except OSError:
        found = socket.getaddrinfo(host, None, family)[0][4]
    return socket.inet_pton(family, found[0].partition("%")[0]), found[3] if len(found) > 3 else 0


def pack(family, address):
    """The bytes of `(host, port)` or `(host, port, flow, scope)`."""
    limit = 2 if family == socket.AF_INET else 4
    if family not in (socket.AF_INET, socket.AF_INET6):
        raise OSError(f"addresses of family {family!r} are not Pagewire's")
    if not isinstance(address, tuple) or not 2 <= len(address) <= limit:
        raise TypeError(f"an address is a tuple (host, port), not {address!r}")
    host, port, *rest = address
    if isinstance(host, (bytes, bytearray)):
        host = bytes(host).decode("ascii")
    if not isinstance(host, str) or not hasattr(port, "__index__"):
        raise TypeError(f"an address is a tuple (host, port), not {address!r}")
    if not 0 <= port <= 0xFFFF:
        raise OverflowError("port must be 0-65535.")
    number, scope = _numeric(family, host)
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H4s8x", port, number)
    flow = rest[0] if rest else 0
    if not 0 <= flow <= 0xFFFFF:
        raise OverflowError("flowinfo must be 0-1048575.")
    scope = rest[1] if len(rest) > 1 else scope
    return struct.pack("=H", family) + struct.pack("!HI16s", port, flow, number) + struct.pack("=I", scope)


def unpack(data):
    """The tuple of an address; None without one."""
    if len(data) < 2:
        return None
    (family,) = struct.unpack_from("=H", data)
    if family == socket.AF_INET:
        port, number = struct.unpack_from("!H4s", data, 2)
        return socket.inet_ntop(family, number), port
    if family == socket.AF_INET6:
        port, flow, number = struct.unpack_from("!HI16s", data, 2)
        (scope,) = struct.unpack_from("=I", data, 24)
        return socket.inet_ntop(family, number), port, flow & 0xFFFFF, scope
    return family, bytes(data[2:])
