"""Two cameras on one host, a detector on another one, and a bridge for each camera.

python examples/two_hosts/run.py [IMAGES]       needs gpuring[bridge]

As root, the two hosts are network namespaces with a /dev/shm of their own, and a cable between
them.  Otherwise both are this host, and the rings of the detector have other names.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from camera import count

import gpuring

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("images", nargs="?", type=count, default=120, help="images per camera (120)")

HERE, PORT = Path(__file__).parent, 9760
# A program that is started like this ends with this one, also if this one ends before they are
# tied.
ALIVE = '[ $PPID = $0 ] && exec "$@"'
TIED = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", ALIVE, str(os.getpid())]
HOST = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && echo up && exec sleep infinity"
ADDRESSES = "10.77.1.1", "10.77.1.2"


class Host:
    """A place for commands: the namespaces of a process, or this host itself."""

    def __init__(self, stack, pid=None, address="127.0.0.1"):
        self.stack, self.address = stack, address
        self.enter = ["nsenter", f"--target={pid}", "--net", "--mount", "--"] if pid else []

    def run(self, command):
        subprocess.run([*self.enter, *command.split()], check=True, stderr=subprocess.PIPE)

    def start(self, *command, **pipes):
        """Runs a Python program until it ends, or until everything does."""
        # It inherits that Ctrl-C is blocked: that is for this process, which ends the others.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        process = subprocess.Popen(
            [*TIED, *self.enter, sys.executable, *map(str, command)], text=True, **pipes
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        self.stack.callback(process.wait, 60)
        self.stack.callback(process.terminate)
        return process


def two_hosts(stack):
    """Two hosts, each with its namespaces.  Raises CalledProcessError if there can be none."""
    hosts, pids = [], []
    for address in ADDRESSES:
        holder = subprocess.Popen(
            [*TIED, "unshare", "--net", "--mount", "sh", "-c", HOST],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        stack.callback(holder.wait, 60)
        stack.callback(holder.kill)
        if not holder.stdout.readline():
            raise subprocess.CalledProcessError(1, "unshare", stderr=holder.stderr.read().encode())
        pids.append(holder.pid)
        hosts.append(Host(stack, holder.pid, address))
    hosts[0].run(f"ip link add wire type veth peer name wire netns {pids[1]}")
    for host in hosts:
        host.run(f"ip address add {host.address}/24 dev wire")
        host.run("ip link set wire up")
    return hosts


def main(images):
    with contextlib.ExitStack() as stack:
        names = [("cam0", "cam0"), ("cam1", "cam1")]
        try:
            near, far = two_hosts(stack)
            print(f"two hosts: {near.address} has the cameras, {far.address} the detector")
        except (subprocess.CalledProcessError, OSError) as error:
            why = (getattr(error, "stderr", None) or str(error).encode()).decode().strip()
            print(f"one host with two names for each ring ({why.splitlines()[-1]})")
            near = far = Host(stack)
            names = [("cam0", "seen0"), ("cam1", "seen1")]
        cameras = []
        for port, (name, as_name) in enumerate(names, PORT):
            # A network that only the two hosts are in needs no key.
            offer = ("export", name, "--listen", f"{near.address}:{port}", "--insecure")
            source = ("import", f"{near.address}:{port}/{name}", "--as", as_name)
            camera = (HERE / "camera.py", images, name)
            cameras.append(near.start(*camera, stdin=subprocess.PIPE))
            for host, what in ((near, offer), (far, (*source, "--device", "host"))):
                host.start("-m", "gpuring", "bridge", *what, stderr=subprocess.DEVNULL)
        seen = [as_name for _, as_name in names]
        detector = far.start(HERE / "detector.py", images, *seen, stdout=subprocess.PIPE)
        print("detector", detector.stdout.readline().strip(), flush=True)
        for camera in cameras:
            camera.stdin.close()  # it begins, and ends by itself
        print(detector.stdout.read(), end="")
        return max(process.wait(60) for process in (detector, *cameras))


if __name__ == "__main__":
    asked = parser.parse_args()
    if not importlib.util.find_spec("zmq"):
        sys.exit("pyzmq is missing: pip install 'gpuring[bridge]'")
    if not shutil.which("setpriv"):
        sys.exit("setpriv is missing: it is a part of util-linux")
    gpuring.exit_on_sigterm()
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))  # Ctrl-C leaves no traceback
    sys.exit(main(asked.images))
