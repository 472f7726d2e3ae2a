"""Runs inside a network namespace of its own: a host on a tap, and peers of the kernel's."""

import asyncio
import os
import socket
import subprocess
import sys
import threading

import pagewire

KERNEL, PAGEWIRE = "10.77.0.1", "10.77.0.2"


def sockets(host):
    data = os.urandom(1 << 20) * 8
    with socket.create_server((KERNEL, 80)) as listener:
        client = host.create_connection((KERNEL, 80), timeout=20)
        server, address = listener.accept()
        with client, server:
            assert address[0] == PAGEWIRE, address
            threading.Thread(target=client.send_owned, args=(data,)).start()
            assert server.recv(len(data), socket.MSG_WAITALL) == data
            threading.Thread(target=server.sendall, args=(data,)).start()
            got = bytearray()
            while len(got) < len(data):
                for chunk in client.recv_chunks(1 << 20):
                    with chunk:
                        got += chunk.view
            assert got == data
    try:
        host.create_connection((KERNEL, 9), timeout=20)
    except ConnectionRefusedError:
        pass
    else:
        raise AssertionError("nobody refused")
    with host.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as two:
        one.settimeout(20)
        two.bind((KERNEL, 53))
        one.sendto(b"question", (KERNEL, 53))
        question, address = two.recvfrom(100)
        two.sendto(question + b" and answer", address)
        assert one.recvfrom(100) == (b"question and answer", (KERNEL, 53))


async def streams(host):
    async def echo(reader, writer):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def ask(number):
        reader, writer = await asyncio.open_connection(PAGEWIRE, 8080)
        data = str(number).encode() * 1000
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.close()

    listener = host.create_server((PAGEWIRE, 8080))
    listener.setblocking(False)
    server = await asyncio.start_server(echo, sock=listener)
    # Both ends in one loop: kernel sockets and Pagewire's in one selector.
    await asyncio.wait_for(asyncio.gather(*map(ask, range(50))), 30)
    server.close()


def main():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with pagewire.Host(f"tap=pw0,addr={PAGEWIRE}/24,host-addr={KERNEL}/24") as host:
        sockets(host)
        loop = asyncio.SelectorEventLoop(pagewire.Selector())
        asyncio.set_event_loop(loop)
        loop.run_until_complete(streams(host))
        loop.close()
        ledger = host.ledger()
        assert ledger.sent_frames > 0 and ledger.by_device > 0, ledger
    print("done")


if __name__ == "__main__":
    sys.exit(main())
