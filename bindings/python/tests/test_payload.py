import errno
import os
import sys
import time
import unittest
import weakref

from .support import Pair, Task


class Payload(Pair):
    def assert_nothing_copied(self):
        for host in self.a, self.b:
            self.assertEqual(host.ledger().copied, 0, host.stats())

    def wait_for(self, condition):
        deadline = time.monotonic() + 10
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)

    def test_a_large_transfer_copies_nothing(self):
        client, server = self.connected()
        data = os.urandom(1 << 20) * 32
        released = []
        task = Task(client.send_owned, data, released.append)
        got, pieces = 0, 0
        while got < len(data):
            for chunk in server.recv_chunks(1 << 20):
                with chunk:
                    self.assertTrue(chunk.view.readonly)
                    self.assertEqual(chunk.view, data[got : got + len(chunk)])
                    got += len(chunk)
                    pieces += 1
        self.assertEqual(task.result(), len(data))
        self.wait_for(lambda: released)
        self.assertIs(released[0], data)
        self.assertGreater(pieces, 1)
        self.assert_nothing_copied()
        client.close()
        self.assertEqual(server.recv_chunks(100), [])

    def test_a_buffer_is_locked_until_its_release(self):
        client, server = self.connected()
        data = bytearray(b"0123456789" * 1000)
        released = []
        self.assertEqual(client.send_owned(data, released.append), len(data))
        with self.assertRaises(BufferError):
            data.clear()
        got = []
        while sum(map(len, got)) < len(data):
            got += server.recv_chunks(len(data))
        self.assertEqual(b"".join(map(bytes, got)), bytes(data))
        # Over a pair, the chunks are the sender's memory.
        self.assertEqual(released, [])
        with self.assertRaises(BufferError):
            data.clear()
        for chunk in got:
            chunk.release()
        self.wait_for(lambda: released)
        self.assertEqual(len(released), 1)
        data.clear()
        self.assert_nothing_copied()

    def test_a_buffer_without_another_owner_stays(self):
        class Buffer(bytearray):
            pass

        client, server = self.connected()
        data = Buffer(b"kept" * 5000)
        watch = weakref.ref(data)
        client.send_owned(data)
        del data
        self.assertIsNotNone(watch())
        got = b""
        while len(got) < 20_000:
            got += server.recv(1 << 16)
        self.assertEqual(got, b"kept" * 5000)
        self.wait_for(lambda: watch() is None)

    def test_views_keep_the_pages_of_a_released_chunk(self):
        client, server = self.connected()
        data = b"page" * 1000
        client.send_owned(data)
        chunk = server.recv_chunks(1 << 16)[0]
        length = len(chunk)
        view = chunk.view[4:8]
        with self.assertRaises(TypeError):
            view[0] = 0
        with self.assertRaises(BufferError):
            client.send_chunk(chunk)
        chunk.release()
        self.assertFalse(chunk.released)
        self.assertEqual(view, b"page")
        with self.assertRaises(ValueError):
            chunk.view
        del view
        self.assertTrue(chunk.released)
        self.assertEqual(len(chunk), 0)
        self.assertGreater(length, 0)

    @unittest.skipIf(sys.version_info < (3, 12), "Python has __buffer__ from 3.12 on")
    def test_a_chunk_is_a_buffer(self):
        client, server = self.connected()
        client.send_owned(b"buffer")
        (chunk,) = server.recv_chunks(100)
        with chunk:
            self.assertEqual(memoryview(chunk), b"buffer")
            self.assertTrue(memoryview(chunk).readonly)

    def test_a_chunk_is_sent_on(self):
        client, server = self.connected()
        sent = b"echo" * 2000
        task = Task(client.send_owned, sent)
        left = len(sent)
        while left:
            for chunk in server.recv_chunks(left):
                left -= len(chunk)
                while len(chunk):
                    self.assertGreater(server.send_chunk(chunk), 0)
                self.assertTrue(chunk.released)
        task.result()
        got = b""
        while len(got) < len(sent):
            for chunk in client.recv_chunks(1 << 16):
                with chunk:
                    got += bytes(chunk)
        self.assertEqual(got, sent)
        self.assert_nothing_copied()

    def test_a_part_is_queued_without_a_wait(self):
        client, server = self.connected()
        client.setblocking(False)
        data = bytes(256 << 20)
        released = []
        sent = client.send_owned(data, released.append)
        self.assertTrue(0 < sent < len(data))
        with self.assertRaises(BlockingIOError):
            while True:
                client.send_owned(data, lambda _: None)
        self.assertEqual(released, [])
        server.settimeout(10)
        got = 0
        while got < sent:
            got += sum(map(len, server.recv_chunks(1 << 24)))
        self.wait_for(lambda: released)

    def test_nothing_is_released_after_an_error(self):
        sock = self.keep(self.a.socket())
        released = []
        data = bytearray(b"mine")
        with self.assertRaises(BrokenPipeError):
            sock.send_owned(data, released.append)
        data.clear()
        self.assertEqual(released, [])
        client, _ = self.connected()
        with self.assertRaises(OSError) as caught:
            client.send_owned(b"", released.append)
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        self.assertEqual(released, [])

    def test_a_closed_host_gives_buffers_back(self):
        client, server = self.connected()
        released = []
        client.send_owned(bytes(100_000), released.append)
        self.a.close()
        self.b.close()
        self.wait_for(lambda: released)

    def test_a_release_may_send(self):
        client, server = self.connected()
        done = []

        def again(_):
            done.append(client.send_owned(b"second"))

        client.send_owned(b"first ", again)
        got = b""
        server.settimeout(10)
        while got != b"first second":
            got += server.recv(100)
        self.wait_for(lambda: done)
        self.assertEqual(done, [6])


if __name__ == "__main__":
    unittest.main()
