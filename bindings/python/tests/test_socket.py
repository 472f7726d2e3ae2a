import errno
import os
import signal
import socket
import struct
import tempfile
import time
import unittest

import pagewire

from .support import A, A6, B, B6, Pair, Task

# The standard library has no name for it in every version.
IP_PKTINFO = 8


class Streams(Pair):
    def test_a_stream_has_addresses_and_properties(self):
        client, server = self.connected(port=8080)
        self.assertEqual(client.getpeername(), (B, 8080))
        self.assertEqual(server.getsockname(), (B, 8080))
        self.assertEqual(server.getpeername(), client.getsockname())
        self.assertEqual((client.family, client.type), (socket.AF_INET, socket.SOCK_STREAM))
        self.assertIs(client.host, self.a)
        self.assertIsNone(client.timeout)
        self.assertGreaterEqual(client.fileno(), 0)

    def test_ipv6_addresses_have_four_parts(self):
        listener = self.keep(self.b.socket(socket.AF_INET6))
        listener.bind(("::", 80))
        listener.listen()
        client = self.keep(self.a.create_connection((B6, 80)))
        server, address = listener.accept()
        with server:
            self.assertEqual(address, (A6, client.getsockname()[1], 0, 0))
            self.assertEqual(client.getpeername(), (B6, 80, 0, 0))
            client.send(b"six")
            self.assertEqual(server.recv(10), b"six")

    def test_a_large_transfer_arrives_as_it_was_sent(self):
        client, server = self.connected()
        data = os.urandom(1 << 20) * 16
        task = Task(client.sendall, data)
        got = bytearray()
        while len(got) < len(data):
            got += server.recv(1 << 18)
        task.result()
        self.assertEqual(got, data)
        client.shutdown(socket.SHUT_WR)
        self.assertEqual(server.recv(1), b"")

    def test_send_of_a_stream_that_blocks_takes_everything(self):
        client, server = self.connected()
        data = bytes(8 << 20)
        task = Task(server.recv, len(data), socket.MSG_WAITALL)
        self.assertEqual(client.send(data), len(data))
        self.assertEqual(len(task.result()), len(data))
        task = Task(server.recv, len(data), socket.MSG_WAITALL)
        self.assertEqual(client.sendmsg([data[1:], b"", b"1"]), len(data))
        self.assertEqual(task.result()[-1:], b"1")

    def test_recv_into_peek_and_memoryviews(self):
        client, server = self.connected()
        client.sendall(memoryview(bytearray(b"0123456789"))[2:])
        self.assertEqual(server.recv(3, socket.MSG_PEEK), b"234")
        into = bytearray(b"........")
        self.assertEqual(server.recv_into(memoryview(into)[1:], 4), 4)
        self.assertEqual(into, b".2345...")
        with self.assertRaises((TypeError, BufferError)):
            server.recv_into(b"read-only")
        with self.assertRaises(TypeError):
            client.send("text")
        with self.assertRaises(ValueError):
            server.recv(-1)

    def test_messages_of_several_buffers(self):
        client, server = self.connected()
        self.assertEqual(client.sendmsg([b"one", bytearray(b"two"), b"three"]), 11)
        parts = [bytearray(4), bytearray(7)]
        self.assertEqual(server.recvmsg_into(parts)[0], 11)
        self.assertEqual(b"".join(parts), b"onetwothree")
        client.send(b"rest")
        data, ancillary, flags, _ = server.recvmsg(100, 100)
        self.assertEqual((data, ancillary, flags), (b"rest", [], 0))

    def test_options_as_numbers_and_bytes(self):
        client, _ = self.connected()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.assertTrue(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7))
        found = client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
        self.assertEqual(struct.unpack("ii", found), (1, 7))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        with self.assertRaises(OSError) as caught:
            client.getsockopt(socket.IPPROTO_TCP, 9999)
        self.assertEqual(caught.exception.errno, errno.ENOPROTOOPT)

    def test_a_file_is_sent(self):
        client, server = self.connected()
        with tempfile.TemporaryFile() as file:
            data = os.urandom(300_000)
            file.write(data)
            file.flush()
            task = Task(client.sendfile, file, 1000)
            self.assertEqual(server.recv(len(data) - 1000, socket.MSG_WAITALL), data[1000:])
            self.assertEqual(task.result(), len(data) - 1000)

    def test_files_over_a_socket(self):
        client, server = self.connected()
        with client.makefile("w", encoding="utf-8", newline="\n") as writer:
            print("first", "sécond", file=writer)
            print("third", file=writer)
        with server.makefile("rb") as reader:
            self.assertEqual(reader.readline(), "first sécond\n".encode())
            self.assertEqual(reader.readline(), b"third\n")
        reader = server.makefile("r")
        server.close()
        self.assertGreaterEqual(server.fileno(), 0)
        client.sendall(b"last\n")
        self.assertEqual(reader.readline(), "last\n")
        reader.close()
        self.assertEqual(server.fileno(), -1)
        self.assertTrue(server._closed)

    def test_a_context_closes(self):
        with self.a.socket() as sock:
            self.assertIn("fd=", repr(sock))
        self.assertEqual(sock.fileno(), -1)
        with self.assertRaises(OSError) as caught:
            sock.recv(1)
        self.assertEqual(caught.exception.errno, errno.EBADF)

    def test_a_forgotten_socket_is_closed_with_a_warning(self):
        with self.assertWarns(ResourceWarning):
            sock = self.a.socket()
            del sock

    def test_dup_and_detach(self):
        client, server = self.connected()
        second = self.keep(client.dup())
        client.close()
        second.send(b"by the second")
        self.assertEqual(server.recv(100), b"by the second")
        number = second.detach()
        self.assertEqual(second.fileno(), -1)
        again = self.keep(pagewire.Socket(self.a, second._family, second._type, 0, number))
        again.send(b"again")
        self.assertEqual(server.recv(100), b"again")


class Errors(Pair):
    def test_a_refused_connection(self):
        sock = self.keep(self.a.socket())
        with self.assertRaises(ConnectionRefusedError):
            sock.connect((B, 9))
        sock = self.keep(self.a.socket())
        self.assertEqual(sock.connect_ex((B, 9)), errno.ECONNREFUSED)
        sock = self.keep(self.a.socket())
        sock.settimeout(5)
        self.assertEqual(sock.connect_ex((B, 9)), errno.ECONNREFUSED)

    def test_calls_without_a_wait(self):
        listener = self.listener()
        listener.setblocking(False)
        with self.assertRaises(BlockingIOError):
            listener.accept()
        client = self.keep(self.a.socket())
        client.setblocking(False)
        with self.assertRaises(BlockingIOError) as caught:
            client.connect((B, 80))
        self.assertEqual(caught.exception.errno, errno.EINPROGRESS)
        listener.settimeout(5)
        server = self.keep(listener.accept()[0])
        server.setblocking(False)
        with self.assertRaises(BlockingIOError) as caught:
            server.recv(1)
        self.assertEqual(caught.exception.errno, errno.EAGAIN)
        with self.assertRaises(BlockingIOError):
            while True:
                client.send(bytes(1 << 20))
        server.setblocking(True)
        self.assertTrue(server.getblocking())
        with self.assertRaises(BlockingIOError):
            while True:
                server.recv(1 << 24, socket.MSG_DONTWAIT)

    def test_errors_have_the_librarys_text_and_number(self):
        one, two = self.keep(self.b.socket()), self.keep(self.b.socket())
        one.bind((B, 80))
        with self.assertRaises(OSError) as caught:
            two.bind((B, 80))
        self.assertEqual(caught.exception.errno, errno.EADDRINUSE)
        self.assertEqual(caught.exception.strerror, os.strerror(errno.EADDRINUSE))
        with self.assertRaises(OSError) as caught:
            two.bind(("198.51.100.1", 80))
        self.assertEqual(caught.exception.errno, errno.EADDRNOTAVAIL)
        with self.assertRaises(OSError) as caught:
            self.a.socket(socket.AF_UNIX)
        self.assertEqual(caught.exception.errno, errno.EAFNOSUPPORT)
        with self.assertRaises(OverflowError):
            two.bind((B, 70000))
        with self.assertRaises(TypeError):
            two.bind(B)

    def test_a_reset_and_a_broken_pipe(self):
        client, server = self.connected()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        with self.assertRaises(ConnectionResetError):
            client.recv(1)
        with self.assertRaises(BrokenPipeError):
            client.send(b"x")

    def test_python_keeps_no_memory_for_msg_zerocopy(self):
        client, _ = self.connected()
        with self.assertRaises(OSError) as caught:
            client.send(b"x", 0x4000000)
        self.assertEqual(caught.exception.errno, errno.EOPNOTSUPP)


class Waits(Pair):
    def test_timeouts_end_waits(self):
        client, server = self.connected()
        listener = self.listener(81)
        for sock, call in (
            (server, lambda: server.recv(1)),
            (server, lambda: server.recv_into(bytearray(1))),
            (server, lambda: server.recv_chunks(1)),
            (listener, listener.accept),
            (client, lambda: client.sendall(bytes(64 << 20))),
        ):
            sock.settimeout(0.1)
            self.assertEqual(sock.gettimeout(), 0.1)
            start = time.monotonic()
            with self.assertRaisesRegex(socket.timeout, "timed out"):
                call()
            self.assertTrue(0.09 < time.monotonic() - start < 5, call)

    def test_a_connection_to_nobody_times_out(self):
        sock = self.keep(self.a.socket())
        sock.settimeout(0.2)
        with self.assertRaises(socket.timeout):
            sock.connect(("10.0.0.77", 80))
        sock = self.keep(self.a.socket())
        sock.settimeout(0.1)
        self.assertEqual(sock.connect_ex(("10.0.0.77", 80)), errno.EAGAIN)

    def test_a_wait_ends_in_time_by_another_thread(self):
        client, server = self.connected()
        server.settimeout(20)
        task = Task(server.recv, 10)
        time.sleep(0.05)
        client.send(b"now")
        self.assertEqual(task.result(5), b"now")

    def test_the_limit_of_an_option_counts_without_a_timeout(self):
        _, server = self.connected()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        with self.assertRaises(BlockingIOError):
            server.recv(1)

    def test_a_signal_ends_a_wait_by_its_exception(self):
        class Rang(Exception):
            pass

        def ring(*_):
            raise Rang

        _, server = self.connected()
        before = signal.signal(signal.SIGALRM, ring)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with self.assertRaises(Rang):
            server.recv(1)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        server.settimeout(0.2)
        start = time.monotonic()
        with self.assertRaises(socket.timeout):
            server.recv(1)
        self.assertGreater(time.monotonic() - start, 0.19)

    def test_a_wrong_timeout(self):
        sock = self.keep(self.a.socket())
        for wrong in -1, float("nan"):
            with self.assertRaises(ValueError):
                sock.settimeout(wrong)

    def test_threads_share_hosts(self):
        listener = self.listener()

        def echo():
            while True:
                with listener.accept()[0] as server:
                    server.sendall(server.recv(1 << 16))

        def ask(number):
            for at in range(10):
                with self.a.create_connection((B, 80), timeout=20) as client:
                    text = f"{number} {at}".encode()
                    client.sendall(text)
                    self.assertEqual(client.recv(100), text)

        servers = [Task(echo) for _ in range(4)]
        for task in [Task(ask, number) for number in range(8)]:
            task.result(60)
        self.b.close()
        for task in servers:
            with self.assertRaises(OSError):
                task.result(10)


class Datagrams(Pair):
    def sockets(self, family=socket.AF_INET, addresses=(A, B)):
        made = []
        for host, address in zip((self.a, self.b), addresses):
            sock = self.keep(host.socket(family, socket.SOCK_DGRAM))
            sock.bind((address, 5000))
            sock.settimeout(10)
            made.append(sock)
        return made

    def test_datagrams_have_addresses(self):
        one, two = self.sockets()
        self.assertEqual(one.sendto(b"hello", (B, 5000)), 5)
        self.assertEqual(two.recvfrom(100), (b"hello", (A, 5000)))
        two.sendto(b"back", 0, (A, 5000))
        into = bytearray(10)
        self.assertEqual(one.recvfrom_into(into), (4, (B, 5000)))
        self.assertEqual(into[:4], b"back")
        one.connect((B, 5000))
        one.send(b"")
        self.assertEqual(two.recv(100), b"")
        self.assertEqual(one.type, socket.SOCK_DGRAM)

    def test_datagrams_of_ipv6(self):
        one, two = self.sockets(socket.AF_INET6, (A6, B6))
        one.sendto(b"six", (B6, 5000))
        self.assertEqual(two.recvfrom(100), (b"six", (A6, 5000, 0, 0)))

    def test_a_cut_datagram_says_so(self):
        one, two = self.sockets()
        one.sendto(b"0123456789", (B, 5000))
        data, _, flags, address = two.recvmsg(4)
        self.assertEqual((data, address), (b"0123", (A, 5000)))
        self.assertTrue(flags & socket.MSG_TRUNC)

    def test_ancillary_data_both_ways(self):
        one, two = self.sockets()
        two.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        # struct in_pktinfo: the link, the address of this side, the address of the packet.
        own = (socket.IPPROTO_IP, IP_PKTINFO, struct.pack("=i4s4s", 0, socket.inet_aton(A), b""))
        self.assertEqual(one.sendmsg([b"with ", b"its source"], [own], 0, (B, 5000)), 15)
        data, ancillary, flags, address = two.recvmsg(100, socket.CMSG_SPACE(12) + 64)
        self.assertEqual((data, address), (b"with its source", (A, 5000)))
        self.assertEqual(flags & socket.MSG_CTRUNC, 0)
        ((level, kind, info),) = ancillary
        self.assertEqual((level, kind), (socket.IPPROTO_IP, IP_PKTINFO))
        self.assertEqual(socket.inet_ntoa(info[8:12]), B)
        _, ancillary, flags, _ = self._again(one, two).recvmsg(100, socket.CMSG_LEN(4))
        self.assertTrue(flags & socket.MSG_CTRUNC)

    def _again(self, one, two):
        one.sendto(b"again", (B, 5000))
        return two


if __name__ == "__main__":
    unittest.main()
