"""Runs local Kinesis servers side by side, and measures their CPU and memory.

The peers are those that `make setup` installs for the tests. Each server leads a process group, which ends with the
`with` block. Its CPU and memory are those of the whole group, as Linux reports them. As a script, this file runs our
own server.

    python benchmarks/emulators.py PORT
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
INSTALLED = HERE.parent / ".servers"
START_LIMIT = 60.0
POLL = 0.002
OUTPUT_SHOWN = 2_000


@dataclass(frozen=True)
class Launch:
    command: list[str]
    environment: dict[str, str]


@dataclass(frozen=True)
class RunningServer:
    name: str
    port: int
    group: int  # the process group
    took: float  # seconds from the launch to the first answer

    def cpu(self) -> float:
        """Seconds of user and system time that the server has used so far, in all its processes."""
        # The CPU clock of another process, as clock_getcpuclockid(3) computes it: /proc is accurate only to 10 ms.
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in processes_of(self.group))

    def memory(self) -> int:
        """Bytes of resident memory, in all its processes."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes_of(self.group)]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def processes_of(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has ended since it was listed
                # The name is in parentheses and may contain anything; state, parent and group follow it.
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                    found.append(int(entry.name))
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def shardline_launch(port: int, _: Path) -> Launch:
    return Launch([sys.executable, str(HERE / "emulators.py"), str(port)], {})


def command_line_launch(port: int, _: Path) -> Launch:
    script = Path(sys.executable).with_name("shardline")
    run_main = [sys.executable, "-c", "from shardline.cli.main import main; main()"]
    return Launch([*([str(script)] if script.exists() else run_main), "local", "--port", str(port)], {})


def ministack_launch(port: int, directory: Path) -> Launch:
    environment = {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "kinesis",
        # MiniStack removes the containers of other MiniStacks when it starts. A missing socket keeps it from Docker.
        "DOCKER_HOST": f"unix://{directory}/no-docker.sock",
    }
    return Launch([str(INSTALLED / "python/bin/python"), "-m", "ministack.app"], environment)


def kinesalite_launch(port: int, _: Path) -> Launch:
    cli = INSTALLED / "node/node_modules/kinesalite/cli.js"
    command = [shutil.which("node") or "node", str(cli), "--port", str(port), "--shardLimit", "10000"]
    return Launch([*command, "--createStreamMs", "50"], {})


LAUNCHES: dict[str, Callable[[int, Path], Launch]] = {
    "shardline": shardline_launch,
    "shardline local": command_line_launch,
    "ministack": ministack_launch,
    "kinesalite": kinesalite_launch,
}


@contextlib.contextmanager
def running(name: str, answers: Callable[[int], bool]) -> Iterator[RunningServer]:
    """Start a server and wait until it `answers` on its port; kill its whole group at the end of the block."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        port = free_port()
        launch = LAUNCHES[name](port, directory)
        # A minimal environment, because variables such as AWS_REGION change what the servers do.
        environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory)}
        output = stack.enter_context((directory / "output.txt").open("wb"))
        started_at = time.perf_counter()
        process = subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment | launch.environment,
            start_new_session=True,
        )
        stack.callback(end, process)
        while not answers(port):
            if process.poll() is not None or time.perf_counter() - started_at > START_LIMIT:
                printed = (directory / "output.txt").read_text(errors="replace")[-OUTPUT_SHOWN:]
                raise SystemExit(f"{name} did not start (are the peers installed? make setup). Its output:\n{printed}")
            time.sleep(POLL)
        yield RunningServer(name, port, process.pid, time.perf_counter() - started_at)


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def serve() -> None:
    from shardline.testing.local_kinesis import LocalKinesis

    with LocalKinesis(port=int(sys.argv[1]), limits=False):
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    serve()
