import os
import shutil
import subprocess
import sys
import unittest

from .support import skip

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Tap(unittest.TestCase):
    def test_the_kernel_is_the_peer(self):
        if os.geteuid() != 0:
            skip(self, "a tap needs root")
        if not shutil.which("unshare") or not shutil.which("ip") or not os.path.exists("/dev/net/tun"):
            skip(self, "unshare, ip or /dev/net/tun is not here")
        inside = ["unshare", "--net"]
        probe = subprocess.run([*inside, "ip", "tuntap", "add", "pw0", "mode", "tap"], capture_output=True, text=True)
        if probe.returncode != 0:
            skip(self, f"no tap in a namespace: {probe.stderr.strip()}")
        done = subprocess.run(
            [*inside, sys.executable, "-m", "tests.over_tap"], cwd=FOLDER, capture_output=True, text=True, timeout=100
        )
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
