"""Pagewire: a TCP/IP stack in this process that moves pages instead of copying bytes.

A Host is a network. Its sockets have the methods of the standard library's. Selector waits for them and for
descriptors of the kernel's, and asyncio runs on it:

    with pagewire.Host("pair=lan,addr=10.0.0.1/24") as host:
        listener = host.socket()
        loop = asyncio.SelectorEventLoop(pagewire.Selector())
"""

from ._host import Host, Ledger
from ._payload import Chunk
from ._selector import Selector
from ._socket import Socket

__all__ = ["Chunk", "Host", "Ledger", "Selector", "Socket"]
