import asyncio
import os
import signal
import socket
import sys
import tempfile
import unittest

from .support import A, B, Pair


class Loops(Pair):
    def bound(self, port=80, backlog=200):
        listener = self.b.create_server((B, port), backlog=backlog)
        listener.setblocking(False)
        self.addCleanup(listener.close)
        return listener

    def fresh(self, kind=socket.SOCK_STREAM):
        sock = self.a.socket(type=kind)
        sock.setblocking(False)
        self.addCleanup(sock.close)
        return sock

    async def received(self, give):
        """All that a client of a server with this handler reads."""
        server = await self.serve(give)
        reader, writer = await self.open()
        data = await reader.read()
        writer.close()
        server.close()
        return data

    async def open(self, port=80):
        sock = self.fresh()
        await asyncio.get_running_loop().sock_connect(sock, (B, port))
        return await asyncio.open_connection(sock=sock)

    async def serve(self, handler, port=80):
        async def handle(reader, writer):
            try:
                await handler(reader, writer)
            except asyncio.CancelledError:
                # The test is over.
                pass
            finally:
                writer.close()

        return await asyncio.start_server(handle, sock=self.bound(port))

    def test_calls_on_sockets(self):
        async def main():
            loop = asyncio.get_running_loop()
            listener, client = self.bound(), self.fresh()
            accepting = asyncio.ensure_future(loop.sock_accept(listener))
            await loop.sock_connect(client, (B, 80))
            server, address = await accepting
            with server:
                self.assertEqual(address, client.getsockname())
                receiving = asyncio.ensure_future(loop.sock_recv(server, 100))
                await asyncio.sleep(0.02)
                await loop.sock_sendall(client, b"hello")
                self.assertEqual(await receiving, b"hello")
                data = os.urandom(8 << 20)
                sending = asyncio.ensure_future(loop.sock_sendall(server, data))
                into, got = bytearray(1 << 18), bytearray()
                while len(got) < len(data):
                    got += into[: await loop.sock_recv_into(client, into)]
                await sending
                self.assertEqual(got, data)

        self.run_async(main())

    def test_a_refused_connection(self):
        async def main():
            with self.assertRaises(ConnectionRefusedError):
                await asyncio.get_running_loop().sock_connect(self.fresh(), (B, 9))

        self.run_async(main())

    def test_an_echo_server_with_100_connections(self):
        async def echo(reader, writer):
            while True:
                data = await reader.read(1 << 16)
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        async def ask(number):
            reader, writer = await self.open()
            for at in range(5):
                data = f"{number}-{at} ".encode() * (100 * at + 1)
                writer.write(data)
                await writer.drain()
                self.assertEqual(await reader.readexactly(len(data)), data)
            writer.write_eof()
            self.assertEqual(await reader.read(), b"")
            writer.close()
            await writer.wait_closed()
            return number

        async def main():
            server = await self.serve(echo)
            done = await asyncio.gather(*(ask(number) for number in range(100)))
            self.assertEqual(done, list(range(100)))
            server.close()
            await server.wait_closed()

        self.run_async(main())

    def test_large_streams(self):
        data = os.urandom(1 << 20) * 24

        async def give(_, writer):
            writer.write(data)
            await writer.drain()

        async def main():
            self.assertEqual(await self.received(give), data)

        self.run_async(main())

    def test_timeouts_and_cancellation(self):
        async def silent(reader, _):
            await reader.read()

        async def main():
            server = await self.serve(silent)
            reader, writer = await self.open()
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.05)
            task = asyncio.ensure_future(reader.read(1))
            await asyncio.sleep(0.02)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            loop, client = asyncio.get_running_loop(), self.fresh()
            await loop.sock_connect(client, (B, 80))
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(loop.sock_recv(client, 1), 0.05)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(loop.sock_connect(self.fresh(), ("10.0.0.77", 80)), 0.05)
            accepting = asyncio.ensure_future(loop.sock_accept(self.bound(81)))
            await asyncio.sleep(0.02)
            accepting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await accepting
            writer.close()
            server.close()

        self.run_async(main())

    def test_datagrams(self):
        class Echo(asyncio.DatagramProtocol):
            def connection_made(self, transport):
                self.transport = transport

            def datagram_received(self, data, address):
                self.transport.sendto(data.upper(), address)

        class Collect(asyncio.DatagramProtocol):
            def __init__(self):
                self.queue = asyncio.Queue()

            def datagram_received(self, data, address):
                self.queue.put_nowait((data, address))

        async def main():
            loop = asyncio.get_running_loop()
            with self.b.socket(type=socket.SOCK_DGRAM) as server, self.fresh(socket.SOCK_DGRAM) as client:
                server.bind((B, 53))
                server.setblocking(False)
                client.bind((A, 0))
                one, _ = await loop.create_datagram_endpoint(Echo, sock=server)
                two, protocol = await loop.create_datagram_endpoint(Collect, sock=client)
                for number in range(50):
                    two.sendto(f"datagram {number}".encode(), (B, 53))
                    self.assertEqual(await protocol.queue.get(), (f"DATAGRAM {number}".encode(), (B, 53)))
                one.close()
                two.close()
                await asyncio.sleep(0)

        self.run_async(main())

    def test_subprocesses_threads_and_signals_beside_streams(self):
        async def upper(reader, writer):
            # A program of the system's, through pipes of the kernel's.
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "print(input().upper())",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await child.communicate(await reader.readline())
            self.assertEqual(child.returncode, 0)
            writer.write(out)
            await writer.drain()

        async def main():
            loop = asyncio.get_running_loop()
            server = await self.serve(upper)
            reader, writer = await self.open()
            writer.write(b"through a child\n")
            self.assertEqual(await reader.readline(), b"THROUGH A CHILD\n")
            self.assertEqual(await loop.run_in_executor(None, lambda: 7), 7)
            rang = asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, rang.set)
            os.kill(os.getpid(), signal.SIGUSR1)
            await rang.wait()
            loop.remove_signal_handler(signal.SIGUSR1)
            writer.close()
            server.close()

        self.run_async(main())

    def test_a_kernel_server_and_a_pagewire_server_in_one_loop(self):
        async def main():
            async def to_pagewire(reader, writer):
                inner, out = await self.open()
                out.write(await reader.readline())
                writer.write(await inner.readline())
                out.close()
                writer.close()

            async def answer(reader, writer):
                writer.write(b"echo " + await reader.readline())

            inner = await self.serve(answer)
            outer = await asyncio.start_server(to_pagewire, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*outer.sockets[0].getsockname())
            writer.write(b"from the kernel\n")
            self.assertEqual(await reader.readline(), b"echo from the kernel\n")
            writer.close()
            for server in inner, outer:
                server.close()

        self.run_async(main())

    def test_a_file_is_sent(self):
        async def give(_, writer):
            await asyncio.get_running_loop().sendfile(writer.transport, file)

        async def main():
            self.assertEqual(await self.received(give), data)

        data = os.urandom(500_000)
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            self.run_async(main())


if __name__ == "__main__":
    unittest.main()
