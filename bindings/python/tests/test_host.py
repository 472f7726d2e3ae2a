import errno
import fcntl
import os
import select
import socket
import subprocess
import sys
import unittest

import pagewire

from .support import B, Pair, Task


class Hosts(Pair):
    def test_a_wrong_word_is_named_by_the_error(self):
        with self.assertRaisesRegex(OSError, "colour") as caught:
            pagewire.Host("pair=x,addr=10.0.0.1/24,colour=red")
        self.assertEqual(caught.exception.errno, errno.EINVAL)

    def test_ledger_counts_and_stats_tell_of_traffic(self):
        before = self.a.ledger()
        client, server = self.connected()
        client.sendall(b"x" * 10_000)
        self.assertEqual(len(server.recv(10_000, socket.MSG_WAITALL)), 10_000)
        after = self.a.ledger()
        self.assertGreater(after.sent_frames, before.sent_frames)
        self.assertGreater(after.copied, before.copied)
        counts = self.a.counts()
        self.assertEqual(counts["tx_frames"], self.a.ledger().sent_frames)
        self.assertIn("tx_frames", self.a.stats())

    def test_a_closed_host_ends_its_sockets_and_waits(self):
        client, server = self.connected()
        waiting = Task(server.recv, 10)
        accepting = Task(self.listener(81).accept)
        self.b.close()
        for task in waiting, accepting:
            with self.assertRaises(OSError) as caught:
                task.result()
            self.assertEqual(caught.exception.errno, errno.EBADF)
        self.assertEqual(server.fileno(), -1)
        for call in self.b.ledger, self.b.counts, self.b.stats, self.b.socket, server.getsockname:
            with self.assertRaises(OSError) as caught:
                call()
            self.assertEqual(caught.exception.errno, errno.EBADF)
        server.close()
        self.b.close()
        # The peer learns of it.
        client.settimeout(5)
        try:
            self.assertEqual(client.recv(10), b"")
        except ConnectionResetError:
            pass

    def test_a_number_of_a_closed_host_is_not_closed_again(self):
        sock = self.a.socket()
        number = sock.fileno()
        self.a.close()
        with socket.socket() as kernel:
            taken = fcntl.fcntl(kernel, fcntl.F_DUPFD_CLOEXEC, number)
            self.assertEqual(taken, number)
            sock.close()
            os.close(taken)

    def test_a_program_ends_with_hosts_open(self):
        program = """if True:
            import os, pagewire, sys
            a = pagewire.Host("pair=end,addr=10.0.0.1/24")
            b = pagewire.Host("pair=end,addr=10.0.0.2/24")
            listener = b.create_server(("10.0.0.2", 80))
            client = a.create_connection(("10.0.0.2", 80))
            server, _ = listener.accept()
            client.setblocking(False)
            client.send_owned(bytes(1 << 26), lambda _: print("released"))
            chunks = server.recv_chunks(1 << 16)
            child = os.fork()
            if child == 0:
                try:
                    a.socket()
                except OSError as why:
                    print(why.errno == 100, flush=True)
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        """
        folder = os.path.dirname(os.path.dirname(pagewire.__file__))
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program], cwd=folder, capture_output=True, text=True, timeout=30
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "True\n3\nreleased\n")

    def test_frames_go_through_the_program(self):
        one = self.keep(pagewire.Host("frames,mac=02:00:00:00:00:01,addr=10.0.0.1/24"))
        two = self.keep(pagewire.Host("frames,mac=02:00:00:00:00:02,addr=10.0.0.2/24"))
        with one, two:
            sender = self.keep(one.socket(type=socket.SOCK_DGRAM))
            receiver = self.keep(two.socket(type=socket.SOCK_DGRAM))
            receiver.bind((B, 53))
            receiver.settimeout(0)
            sender.sendto(b"by hand", (B, 53))
            moved = 0
            for _ in range(100):
                for from_host, to_host in (one, two), (two, one):
                    try:
                        while True:
                            to_host.frames_send(from_host.frames_receive())
                            moved += 1
                    except BlockingIOError:
                        pass
                try:
                    self.assertEqual(receiver.recv(100), b"by hand")
                    break
                except BlockingIOError:
                    numbers = [one.frames_fileno(), two.frames_fileno()]
                    select.select(numbers, [], [], 0.05)
            else:
                self.fail("the datagram did not come")
            # Asked for the address, told it, the datagram.
            self.assertGreaterEqual(moved, 3)
        with self.assertRaises(OSError):
            self.a.frames_receive()


if __name__ == "__main__":
    unittest.main()
