import os
import select
import selectors
import socket
import threading
import time
import unittest

import pagewire

from .support import B, Pair, Task

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Selectors(Pair):
    def setUp(self):
        super().setUp()
        self.selector = self.keep(pagewire.Selector())

    def kernel_pair(self):
        return [self.keep(each) for each in socket.socketpair()]

    def test_descriptors_of_both_kinds_are_ready_together(self):
        client, server = self.connected()
        one, two = self.kernel_pair()
        self.selector.register(server, READ, "pagewire")
        self.selector.register(one, READ, "kernel")
        self.assertEqual(self.selector.select(0), [])
        two.send(b"x")
        self.assertEqual([key.data for key, _ in self.selector.select(5)], ["kernel"])
        client.send(b"x")
        found = set()
        deadline = time.monotonic() + 5
        while len(found) < 2 and time.monotonic() < deadline:
            found |= {(key.data, events) for key, events in self.selector.select(5)}
        self.assertEqual(found, {("pagewire", READ), ("kernel", READ)})
        one.recv(1)
        server.recv(1)
        self.assertEqual(self.selector.select(0.01), [])

    def test_hosts_share_a_selector(self):
        client, server = self.connected()
        self.selector.register(server, READ)
        self.selector.register(client, READ | WRITE)
        self.assertEqual([(key.fileobj, events) for key, events in self.selector.select(5)], [(client, WRITE)])
        self.selector.modify(client, READ)
        self.assertEqual(self.selector.select(0), [])
        server.send(b"x")
        self.assertEqual([key.fileobj for key, _ in self.selector.select(5)], [client])
        self.selector.unregister(client)
        self.assertEqual(self.selector.select(0), [])

    def test_other_event_loops_can_wait_for_its_number(self):
        client, server = self.connected()
        self.selector.register(server, READ)
        self.assertEqual(select.select([self.selector.fileno()], [], [], 0)[0], [])
        threading.Timer(0.05, client.send, [b"x"]).start()
        self.assertEqual(select.select([self.selector], [], [], 5)[0], [self.selector])
        self.assertEqual([key.fileobj for key, _ in self.selector.select(0)], [server])
        # A selector of the standard library's that contains this one.
        with selectors.DefaultSelector() as outer:
            outer.register(self.selector, READ)
            self.assertEqual(len(outer.select(5)), 1)
            server.recv(1)
            self.selector.select(0)
            self.assertEqual(outer.select(0.05), [])

    def test_a_wait_ends_by_another_thread_and_in_time(self):
        client, server = self.connected()
        self.selector.register(server, READ)
        start = time.monotonic()
        self.assertEqual(self.selector.select(0.1), [])
        self.assertGreaterEqual(time.monotonic() - start, 0.09)
        threading.Timer(0.05, client.close).start()
        self.assertEqual(len(self.selector.select(10)), 1)
        self.assertLess(time.monotonic() - start, 5)
        self.assertEqual(server.recv(1), b"")

    def test_members_come_during_a_wait(self):
        client, server = self.connected()
        # The first member of a network, and the first of a second network.
        for member, peer in (server, client), (client, server):
            task = Task(self.selector.select, 10)
            time.sleep(0.1)
            self.selector.register(member, READ)
            peer.send(b"x")
            self.assertEqual([key.fileobj for key, _ in task.result()], [member])
            member.recv(1)

    def test_keys_are_those_of_a_standard_selector(self):
        sock = self.keep(self.a.socket())
        key = self.selector.register(sock, READ, "data")
        self.assertEqual(key, (sock, sock.fileno(), READ, "data"))
        self.assertIs(self.selector.get_key(sock), key)
        self.assertEqual(list(self.selector.get_map()), [sock.fileno()])
        self.assertIn(sock, self.selector.get_map())
        self.assertIn(sock.fileno(), self.selector.get_map())
        self.assertIsNone(self.selector.get_map().get(9999))
        with self.assertRaises(KeyError):
            self.selector.register(sock, READ)
        with self.assertRaises(ValueError):
            self.selector.modify(sock, 0)
        self.assertEqual(self.selector.modify(sock, READ, "other").data, "other")
        self.assertEqual(self.selector.unregister(sock).data, "other")
        for call in self.selector.unregister, self.selector.get_key:
            with self.assertRaises(KeyError):
                call(sock)
        with self.assertRaises(ValueError):
            self.selector.register(object(), READ)

    def test_closed_sockets_leave(self):
        sock = self.a.socket()
        self.selector.register(sock, READ)
        sock.close()
        self.assertEqual(self.selector.unregister(sock).fileobj, sock)
        client, server = self.connected()
        self.selector.register(server, READ)
        self.b.close()
        self.assertEqual(self.selector.select(0), [])
        self.selector.unregister(server)

    def test_a_closed_selector(self):
        self.selector.close()
        self.assertIsNone(self.selector.get_map())
        with self.assertRaises(RuntimeError):
            self.selector.get_key(0)
        with self.assertRaises(OSError):
            self.selector.register(self.kernel_pair()[0], READ)
        with self.assertRaises(OSError):
            self.selector.select(0)

    def test_many_sockets_are_reported(self):
        listener = self.listener(backlog=200)
        clients, servers = [], []
        for _ in range(100):
            clients.append(self.keep(self.a.create_connection((B, 80))))
            servers.append(self.keep(listener.accept()[0]))
            self.selector.register(servers[-1], READ)
        for client in clients:
            client.send(b"x")
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        self.addCleanup(os.close, write)
        self.selector.register(read, READ)
        os.write(write, b"x")
        left = {*servers, read}
        deadline = time.monotonic() + 10
        while left and time.monotonic() < deadline:
            for key, _ in self.selector.select(1):
                left.discard(key.fileobj)
                self.selector.unregister(key.fileobj)
        self.assertEqual(left, set())


if __name__ == "__main__":
    unittest.main()
