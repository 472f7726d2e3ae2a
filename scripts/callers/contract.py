"""What callers take for granted of slirp4netns, pasta and passt: statuses, descriptors, files, ends. No guest's checks."""
import ctypes, json, os, re, signal, socket, struct, subprocess, sys, time


def status_of(process, limit=5):
    """As text: `0`, `1`, `SIGTERM`, `goes on`."""
    try:
        s = process.wait(limit)
    except subprocess.TimeoutExpired:
        return "goes on"
    return signal.Signals(-s).name if s < 0 else str(s)


def popen(*command, **more):
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen([str(c) for c in command], **more)


def outcome(*command, limit=5, **more):
    """Status, and whether there is output: a message is a caller's only explanation."""
    p = popen(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    try:
        out, err = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        p.kill()
        p.communicate()
        return "goes on"
    said = " with a message" if (out + err).strip() else " silent"
    return f"{status_of(p)}{said}"


def timed(f):
    began = time.monotonic()
    said = f()
    return [said, round((time.monotonic() - began) * 1000)]


def words(command, expected):
    """Which of the words that callers look for are missing."""
    p = popen(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = p.communicate(timeout=10)
    missing = [w for w in expected if w not in out.decode()]
    return [f"status {p.returncode}, lacks {' '.join(missing)}" if missing else f"ok {p.returncode}", 0]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(f, limit=5):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if f():
            return True
        time.sleep(0.01)
    return False


def end_of(pid, limit=5):
    return "ok ends" if until(lambda: not alive(pid), limit) else "goes on"


def read_pid(path):
    with open(path) as f:
        text = f.read()
    return int(text), repr(text.replace(text.strip(), "PID"))


# What is known so far, also where a step fails.
RESULTS = {}


def mode_of(path):
    return oct(os.stat(path).st_mode) if os.path.exists(path) else "none"


class Attached:
    """slirp4netns in a namespace, ready."""

    def __init__(self, ns, *options, tap="tap0", before=(), **more):
        ready, ready_w = os.pipe()
        self.exit, exit_w = os.pipe()
        self.process = popen(*before, "slirp4netns", "-r", ready_w, "-e", self.exit, *options, ns if isinstance(ns, str) else ns.pid,
                             tap, pass_fds=(ready_w, self.exit), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
        os.close(ready_w)
        os.close(self.exit)
        self.exit = exit_w
        self.began = time.monotonic()
        # Until the end: it has to be closed while the process goes on.
        self.said = b""
        while part := os.read(ready, 16):
            self.said += part
        os.close(ready)


def slirp4netns(Namespace, left):
    r = RESULTS
    r["help"] = words(["slirp4netns", "--help"], [
        "--configure", "--exit-fd", "--ready-fd", "--mtu", "--enable-ipv6", "--api-socket", "--cidr", "--disable-host-loopback",
        "--netns-type", "--userns-path", "--enable-sandbox", "--enable-seccomp", "--outbound-addr", "--disable-dns", "--macaddress"])
    r["version"] = words(["slirp4netns", "--version"], ["slirp4netns version ", "SLIRP_CONFIG_VERSION_MAX: "])
    first = subprocess.run(["slirp4netns", "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    r["version's first line"] = ["ok" if re.fullmatch(r"slirp4netns version \d+\.\d+\.\d+\S*", first) else first, 0]
    ns = Namespace()
    pid = str(ns.pid)
    for name, options in {
        "nothing": [], "an unknown option": ["--nonsense", pid, "tap0"], "no tap": [pid + "x", "tap0"], "process 0": ["0", "tap0"],
        "no such process": ["4194303", "tap0"], "mtu 0": ["-c", "-m", "0", pid, "tap0"], "mtu 65522": ["-c", "--mtu=65522", pid, "tap0"],
        "mtu text": ["-c", "--mtu=x", pid, "tap0"], "cidr text": ["-c", "--cidr=x", pid, "tap0"],
        "cidr of a host": ["-c", "--cidr=10.0.2.1/24", pid, "tap0"], "cidr /26": ["-c", "--cidr=10.0.2.0/26", pid, "tap0"],
        "cidr without -c": ["--cidr=10.0.2.0/26", pid, "tap0"], "netns-type": ["--netns-type=x", pid, "tap0"],
        "no such path": ["--netns-type=path", "/nonexistent", "tap0"], "no namespace": ["--netns-type=path", "/etc/passwd", "tap0"],
        "no such userns": ["--netns-type=path", "--userns-path=/nonexistent", f"/proc/{pid}/ns/net", "tap0"],
        "a tap's name too long": ["-c", pid, "t" * 20], "a link address": ["-c", "--macaddress=x", pid, "tap0"],
        "an outbound address": ["-c", "--outbound-addr=x", pid, "tap0"], "an api path too long": ["-a", "/mnt/tmp/" + "x" * 120, pid, "tap0"],
        "an api path without a directory": ["-a", "/nonexistent/x", pid, "tap0"], "target-type": ["--target-type=x", pid, "tap0"],
        "ready-fd text": ["-r", "x", pid, "tap0"], "too many words": ["-c", pid, "tap0", "more"],
    }.items():
        r[f"refuses {name}"] = timed(lambda options=options: outcome("slirp4netns", *options, limit=3))
    ns.end()
    for name, end in {
        "SIGTERM": lambda a, ns: a.process.terminate(), "SIGINT": lambda a, ns: a.process.send_signal(signal.SIGINT),
        "a byte to --exit-fd": lambda a, ns: os.write(a.exit, b"x"), "the end of --exit-fd": lambda a, ns: os.close(a.exit),
    }.items():
        ns = Namespace()
        a = Attached(ns, "-c")
        if "ready" not in r:
            r["ready"] = ["ok" if a.said == b"1" and a.process.poll() is None else f"{a.said!r} {a.process.poll()}", 0]
        end(a, ns)
        r[f"ends by {name}"] = timed(lambda: status_of(a.process, 3))
        a.process.kill()
        r[f"tap after {name}"] = ["gone" if until(lambda: "tap0" not in links(ns), 1) else "there", 0]
        ns.end()
    ns = Namespace()
    a = Attached(ns, "-c")
    ns.end()
    r["the namespace's process ends"] = timed(lambda: status_of(a.process, 4))
    a.process.kill()
    ns = Namespace()
    a = Attached(ns, "-c")
    a.process.kill()
    r["tap after SIGKILL"] = ["gone" if until(lambda: "tap0" not in links(ns), 1) else "there", 0]
    left(r, before={ns.pid}, limit=1)
    r["left after SIGKILL"] = r.pop("left running")
    ns.end()
    # As RootlessKit starts it: its caller's end is its own.
    ns = Namespace()
    between = popen(sys.executable, "-c", f"""
import ctypes, subprocess, time
p = subprocess.Popen(["slirp4netns", "-c", "{ns.pid}", "tap0"], preexec_fn=lambda: ctypes.CDLL(None).prctl(1, 9, 0, 0, 0))
time.sleep(60)""", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    up = until(lambda: "tap0" in links(ns))
    between.kill()
    between.wait()
    left(r, before={ns.pid})
    r["the caller is killed"] = [r.pop("left running")[0] if up else "no tap", 0]
    ns.end()
    # As RootlessKit: the tap is the caller's, so are its addresses.
    ns = Namespace()
    subprocess.run(ns.enter("ip", "tuntap", "add", "name", "tap0", "mode", "tap"), check=True)
    a = Attached(ns, "--mtu", "65520")
    again = subprocess.run(ns.enter("sh", "-c", "ip link set tap0 up mtu 65520 && ip addr add 10.0.2.100/24 dev tap0 && "
                                    "ip route add default via 10.0.2.2 && ping -n -c 1 -W 3 10.0.2.2"), capture_output=True, text=True)
    r["a tap of the caller"] = ["ok" if again.returncode == 0 else f"{a.said!r} {again.stderr.strip()}", 0]
    second = Attached(ns, "-c", "--cidr=10.0.3.0/24", tap="tap1")
    r["two at once"] = ["ok" if second.said == b"1" else "no", 0]
    r["the same tap again"] = [outcome("slirp4netns", ns.pid, "tap0", limit=3), 0]
    for one in (a, second):
        one.process.kill()
    ns.end()
    ns = Namespace()
    a = Attached(f"/proc/{ns.pid}/ns/net", "-c", "--netns-type=path", f"--userns-path=/proc/{ns.pid}/ns/user")
    r["by paths"] = ["ok" if a.said == b"1" else f"{a.said!r}", 0]
    ns.end()
    os.close(a.exit)
    ns = Namespace()
    path = "/mnt/tmp/contract-api"
    a = Attached(ns, "-c", "-a", path)
    r["api socket's mode"] = [mode_of(path), 0]
    a.process.terminate()
    a.process.wait()
    r["api socket afterwards"] = ["there" if os.path.exists(path) else "gone", 0]
    r["api socket's path is taken"] = [outcome("slirp4netns", "-a", path, ns.pid, "tap0", limit=3), 0]
    ns.end()
    left(r)
    return r


def links(ns):
    return subprocess.run(ns.enter("ip", "-br", "link"), capture_output=True, text=True).stdout


QUIET = ("-q", "--config-net", "-t", "none", "-u", "none", "-T", "none", "-U", "none")
PIDFILE = "/mnt/tmp/contract.pid"


def combined(*command, limit=10):
    """As Go's exec.Cmd.CombinedOutput: waits for the process, and until nobody has its output open."""
    p = popen(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        out, _ = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        s = status_of(p, 0.1)
        p.kill()
        return s if s == "goes on" else f"{s}, output stays open", b""
    return status_of(p), out


def pasta(Namespace, left):
    r = RESULTS
    r["help"] = words(["pasta", "--help"], ["--config-net", "--dns-forward", "--no-map-gw", "--ns-ifname", "--pid", "--netns", "--userns",
                                            "--tcp-ns", "--ipv4-only", "--no-netns-quit", "--runas", "--mtu", "--gateway"])
    r["version"] = words(["pasta", "--version"], ["pasta "])
    for option in ("--host-lo-to-ns-lo", "--conf-path=/dev/null", "--map-guest-addr=none", "--nonsense"):
        r[f"probe {option}"] = [outcome("pasta", option, "--version"), 0]
    ns = Namespace()
    pid = str(ns.pid)
    for name, options in {
        "an unknown option": ["--nonsense", pid], "no such process": ["4194303"], "a port": ["-t", "70000", pid],
        "port text": ["-t", "x", pid], "a range backwards": ["-t", "20-10", pid], "an address": ["-a", "x", pid],
        "a netmask": ["-a", "10.0.0.1", "-n", "99", pid], "a router": ["-g", "x", pid], "no such path": ["--netns", "/nonexistent"],
        "mtu": ["-m", "999999", pid], "4 and 6": ["-4", "-6", pid], "quiet and debug": ["-q", "-d", pid],
        "no such interface": ["-i", "nonsense", pid], "no such user": ["--runas", "nonsense", pid],
        "a port twice": ["-t", "none", "-t", "80", pid], "a pid file": ["--pid", "/nonexistent/x", *QUIET, pid],
        "a name server": ["--dns-forward", "x", pid], "a link address": ["--ns-mac-addr", "x", pid],
        "a port that is taken": [*QUIET[:2], "-t", "198.51.100.77/9999,8000", pid],
    }.items():
        r[f"refuses {name}"] = timed(lambda options=options: outcome("pasta", *options, limit=4))
    ns.end()

    for name, end in {"SIGTERM": lambda p, ns: os.kill(p, 15), "SIGINT": lambda p, ns: os.kill(p, 2), "SIGQUIT": lambda p, ns: os.kill(p, 3),
                      "the namespace's end": lambda p, ns: ns.end()}.items():
        ns = Namespace()
        began = time.monotonic()
        said, out = combined("pasta", *QUIET, "--pid", PIDFILE, ns.pid)
        r.setdefault("returns once ready", [f"ok {said}" if said == "0" and not out else f"{said} {out.decode()[:200]!r}",
                                            round((time.monotonic() - began) * 1000)])
        if said != "0" or not os.path.exists(PIDFILE):
            ns.end()
            continue
        p, form = read_pid(PIDFILE)
        r.setdefault("pid file", [f"{form} {mode_of(PIDFILE)}", 0])
        r.setdefault("interface", [" ".join(links(ns).split()[3:4]) and ("ok" if alive(p) else "ended"), 0])
        r.setdefault("descriptors", [" ".join(sorted(os.readlink(f"/proc/{p}/fd/{n}") for n in range(3) if os.path.exists(f"/proc/{p}/fd/{n}"))), 0]
                     if os.access(f"/proc/{p}/fd", os.R_OK) else ["not to be seen", 0])
        end(p, ns)
        r[f"ends by {name}"] = timed(lambda: end_of(p, 5))
        if alive(p):
            os.kill(p, 9)
        r[f"pid file after {name}"] = ["there" if os.path.exists(PIDFILE) else "gone", 0]
        ns.end()
        if os.path.exists(PIDFILE):
            os.unlink(PIDFILE)

    # Podman's way: the namespace is a file, and its end is the gateway's.
    inner = """
set -e; mkdir -p /mnt/tmp/nsdir; mount -t tmpfs x /mnt/tmp/nsdir; touch /mnt/tmp/nsdir/ns
unshare --net=/mnt/tmp/nsdir/ns ip link set lo up
pasta -q --config-net -t none -u none -T none -U none --pid /mnt/tmp/nsdir/pid $1 --netns /mnt/tmp/nsdir/ns
p=$(cat /mnt/tmp/nsdir/pid)
nsenter --net=/mnt/tmp/nsdir/ns ip -4 -br addr | grep -q 198.51.100.77 && echo -n "ok configured, "
umount -l /mnt/tmp/nsdir/ns; rm /mnt/tmp/nsdir/ns
for i in $(seq 50); do kill -0 $p 2>/dev/null || { echo ends; exit; }; sleep .1; done; echo goes on; kill -9 $p
"""
    for option in ("", "--no-netns-quit"):
        def by_file():
            p = popen("unshare", "-Urm", "sh", "-c", inner, "-", option, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return p.communicate(timeout=20)[0].decode().strip()
        r[f"the namespace's file goes {option}".strip()] = timed(by_file)

    # A command of its own.
    def command(*words, options=("-q", "--config-net"), **more):
        return outcome("pasta", *options, "--", *words, limit=10, **more)

    r["command's status 0"] = [command("true"), 0]
    r["command's status 7"] = [command("sh", "-c", "exit 7"), 0]
    r["command killed by SIGTERM"] = [command("sh", "-c", "kill -TERM $$"), 0]
    r["command killed by SIGKILL"] = [command("sh", "-c", "kill -KILL $$"), 0]
    r["command that does not exist"] = [command("/nonexistent/program"), 0]
    r["command's output"] = [subprocess.run(["pasta", "-q", "--config-net", "--", "sh", "-c", "id -u; cat; echo $A; pwd; cat /proc/sys/kernel/hostname"],
                                            input="in\n", env=dict(os.environ, A="given"), cwd="/mnt/tmp", capture_output=True, text=True)
                             .stdout.replace("\n", "|"), 0]
    p = popen("pasta", "-q", "--config-net", "--", "sleep", "60", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1)
    p.terminate()
    r["command: SIGTERM to pasta"] = timed(lambda: status_of(p, 3))
    p.kill()
    left(r, limit=1)
    r["command: left after SIGTERM"] = r.pop("left running")
    for pid in [int(x) for x in subprocess.run(["pgrep", "-x", "sleep"], capture_output=True, text=True).stdout.split()]:
        os.kill(pid, 9)
    ns = Namespace()
    said, _ = combined("pasta", *QUIET, "--pid", PIDFILE, ns.pid)
    if said == "0":
        os.kill(read_pid(PIDFILE)[0], 9)
        left(r, before={ns.pid}, limit=1)
        r["left after SIGKILL"] = r.pop("left running")
    ns.end()
    ns = Namespace()
    p = popen("pasta", *QUIET, "-f", "--pid", PIDFILE, ns.pid, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    r["in the foreground"] = ["ok" if until(lambda: "up0" in links(ns), 5) and p.poll() is None else f"{p.poll()}", 0]
    r["in the foreground, pid file"] = ["ok" if until(lambda: os.path.exists(PIDFILE) and str(p.pid) in open(PIDFILE).read(), 1) else "another", 0]
    p.terminate()
    r["in the foreground, SIGTERM"] = timed(lambda: status_of(p, 3))
    ns.end()
    left(r)
    return r


# passt: a guest of a few frames.

MAC = bytes.fromhex("525400123456")


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ipv4(source, to, protocol, body):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0, source, to)
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + body


def udp(source, to, ports, body):
    head = struct.pack(">HHHH", *ports, 8 + len(body), 0)
    pseudo = source + to + struct.pack(">BBH", 0, 17, 8 + len(body))
    return head[:6] + struct.pack(">H", checksum(pseudo + head + body)) + body


class Frames:
    """A guest's end of a stream of frames."""

    def __init__(self, stream):
        self.stream, self.got = stream, b""

    def send(self, frame):
        self.stream.sendall(struct.pack(">I", len(frame)) + frame)

    def frames(self, limit=3):
        end = time.monotonic() + limit
        while (left := end - time.monotonic()) > 0:
            while len(self.got) >= 4 and len(self.got) >= 4 + (size := struct.unpack(">I", self.got[:4])[0]):
                yield self.got[4:4 + size]
                self.got = self.got[4 + size:]
            self.stream.settimeout(left)
            try:
                part = self.stream.recv(65536)
            except OSError:
                return
            if not part:
                return
            self.got += part

    def arp(self, address):
        mine = socket.inet_aton("198.51.100.77")
        asked = socket.inet_aton(address)
        self.send(b"\xff" * 6 + MAC + struct.pack(">HHHBBH", 0x806, 1, 0x800, 6, 4, 1) + MAC + mine + b"\0" * 6 + asked)
        for f in self.frames():
            if f[12:14] == b"\x08\x06" and f[20:22] == b"\0\x02" and f[28:32] == asked:
                return f[22:28]
        return None

    def dhcp(self):
        options = b"\x63\x82\x53\x63\x35\x01\x01\x37\x04\x01\x03\x06\x1a\xff"
        body = struct.pack(">BBBBIHH", 1, 1, 6, 0, 0x12345678, 0, 0x8000) + b"\0" * 16 + MAC + b"\0" * 202 + options
        zero, all_ = b"\0" * 4, b"\xff" * 4
        self.send(b"\xff" * 6 + MAC + b"\x08\0" + ipv4(zero, all_, 17, udp(zero, all_, (68, 67), body)))
        for f in self.frames():
            if f[12:14] == b"\x08\0" and f[23] == 17 and f[34:36] == b"\0\x43":
                d = f[42:]
                said = {"address": socket.inet_ntoa(d[16:20])}
                o = d[240:]
                while o and o[0] != 255:
                    if o[0] in (1, 3, 6):
                        said[{1: "mask", 3: "router", 6: "dns"}[o[0]]] = socket.inet_ntoa(o[2:6])
                    if o[0] == 26:
                        said["mtu"] = struct.unpack(">H", o[2:4])[0]
                    o = o[2 + o[1]:] if o[0] else o[1:]
                return " ".join(f"{k} {v}" for k, v in sorted(said.items()))
        return "none"

    def ping(self, link, address):
        mine, to = socket.inet_aton("198.51.100.77"), socket.inet_aton(address)
        body = struct.pack(">BBHHH", 8, 0, 0, 7, 1) + b"0123456789abcdef"
        body = body[:2] + struct.pack(">H", checksum(body)) + body[4:]
        self.send(link + MAC + b"\x08\0" + ipv4(mine, to, 1, body))
        for f in self.frames():
            if f[12:14] == b"\x08\0" and f[23] == 1 and f[34] == 0:
                return "ok" if checksum(f[34:14 + struct.unpack(">H", f[16:18])[0]]) == 0 else "bad checksum"
        return "none"


def passt(Namespace, left):
    r = RESULTS
    r["help"] = words(["passt", "--help"], ["--socket", "--fd", "--one-off", "--pid", "--tcp-ports", "--udp-ports", "--quiet"])
    r["version"] = words(["passt", "--version"], ["passt "])
    for name, options in {"an unknown option": ["--nonsense"], "a socket's path": ["-f", "-s", "/nonexistent/x"], "no descriptor": ["-f", "--fd", "99"],
                          "a port": ["-f", "-t", "70000"]}.items():
        r[f"refuses {name}"] = timed(lambda options=options: outcome("passt", *options, limit=4))

    def by_fd(*more):
        ours, theirs = socket.socketpair()
        if os.path.exists(PIDFILE):
            os.unlink(PIDFILE)
        p = popen("passt", "-q", *more, "--pid", PIDFILE, "--fd", theirs.fileno(), pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE,
                  stderr=subprocess.STDOUT)
        theirs.close()
        out, _ = p.communicate(timeout=10)
        return ours, p.returncode, out

    # QEMU's way.
    ours, code, out = by_fd("--tcp-ports", "18080:80")
    r["--fd: returns"] = [f"ok {code}" if code == 0 and not out else f"{code} {out.decode()[:100]!r}", 0]
    if code == 0:
        p, _ = read_pid(PIDFILE)
        g = Frames(ours)
        r["--fd: dhcp"] = [f"ok {g.dhcp()}", 0]
        router = g.arp("198.51.100.1")
        r["--fd: arp for the router"] = ["ok" if router else "none", 0]
        for a in ("198.51.100.9", "203.0.113.77"):
            r[f"--fd: arp for {a}"] = ["answered" if g.arp(a) else "silent", 0]
        if router:
            r["--fd: ping"] = [g.ping(router, "203.0.113.77"), 0]
            r["--fd: ping the router"] = [g.ping(router, "198.51.100.1"), 0]
        ours.close()
        r["--fd: ends with the stream"] = timed(lambda: end_of(p, 3))
    for name, number in (("SIGTERM", 15), ("SIGINT", 2)):
        ours, code, out = by_fd()
        if code == 0:
            p, _ = read_pid(PIDFILE)
            os.kill(p, number)
            r[f"--fd: {name}"] = timed(lambda: end_of(p, 3))
            r[f"--fd: pid file after {name}"] = ["there" if os.path.exists(PIDFILE) else "gone", 0]
            ours.settimeout(1)
            try:
                while part := ours.recv(65536):
                    pass
                r[f"--fd: stream after {name}"] = ["ok closed", 0]
            except TimeoutError:
                r[f"--fd: stream after {name}"] = ["open", 0]
    # libvirt's way.
    for options in ((), ("--one-off",)):
        name = "socket" + " ".join(("",) + options)
        path = "/mnt/tmp/passt.socket"
        if os.path.exists(path):
            os.unlink(path)
        said, out = combined("passt", "-q", *options, "--socket", path, "--pid", PIDFILE)
        r[f"{name}: returns"] = [f"ok {said}" if said == "0" else f"{said} {out.decode()[:100]}", 0]
        if said != "0":
            continue
        p, _ = read_pid(PIDFILE)
        r[f"{name}: mode"] = [mode_of(path), 0]
        for time_ in ("first", "second"):
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(path)
                r[f"{name}: {time_} guest"] = ["ok" if Frames(s).arp("198.51.100.1") else "silent", 0]
            except OSError as e:
                r[f"{name}: {time_} guest"] = [type(e).__name__, 0]
            s.close()
            time.sleep(0.3)
        r[f"{name}: afterwards"] = timed(lambda: end_of(p, 1))
        if alive(p):
            os.kill(p, 15)
            r[f"{name}: SIGTERM"] = timed(lambda: end_of(p, 3))
        r[f"{name}: socket's file afterwards"] = ["there" if os.path.exists(path) else "gone", 0]
    left(r)
    return r
