"""The Java KCL as a worker of a drill.

``JavaWorker`` runs the KCL of a wheel: its multi-language daemon runs in its own process group. It starts one record
processor per shard (tests/interop/java/record_processor.py), which writes the journal of a drill's worker. Kinesis is
the embedded server over HTTP/2 in cleartext, DynamoDB is ministack, and CloudWatch is switched off.
tests/interop/java/install.sh installs it.

The other classes run tests/interop/java/KclWorker.java, an application in one process: on the KCL of the wheel
(``WheelJavaWorker``), on the newest KCL (``NewestJavaWorker``) and on the newest KCL 2 (``OldJavaWorker``).
tests/interop/java/install-maven.sh installs the latter two and compiles the application.
"""

import contextlib
import filecmp
import os
import shutil
import signal
import subprocess
import sys
import time

from fleet import STREAM, DrillError, require, wait_for
from stores import REPOSITORY, contract_servers

HERE = REPOSITORY / "tests" / "interop" / "java"
INSTALLED = REPOSITORY / ".servers" / "kcl"
FROM_MAVEN = REPOSITORY / ".servers" / "java"
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")  # a drill runs several of them
START_LIMIT = 400.0  # it takes 50 to 140 s to start
PROPERTIES = """\
executableName = {python} {processor} {journal} {limit}
streamName = {stream}
applicationName = {table}
AwsCredentialsProvider = DefaultCredentialsProvider
processingLanguage = python
initialPositionInStream = TRIM_HORIZON
regionName = us-east-1
retrievalMode = {retrieval}
metricsLevel = NONE
workerId = {name}
idleTimeBetweenReadsInMillis = 300
"""


def require_installed():
    stamp = INSTALLED / ".stamp"
    ready = stamp.exists() and filecmp.cmp(HERE / "requirements.txt", stamp, shallow=False)
    require(ready, "the Java KCL is not installed: sh tests/interop/java/install.sh")
    require(shutil.which("java"), "java is not on the PATH: sh tests/interop/java/install.sh")


class JavaWorker:
    """The KCL as a worker of a fleet. ``limit``: each shard stops inside an aggregate after this many records.

    ``retrieval``: POLLING or FANOUT.
    """

    def __init__(self, fleet, name, *, limit="", retrieval="POLLING"):
        self.name = name
        self.journal = fleet.directory / f"{name}.journal"
        self._output = fleet.directory / f"{name}.output"
        table, _, query = fleet.store.watched_url.removeprefix("dynamodb://").partition("?")
        endpoint = query.rpartition("endpoint_url=")[2]
        java = self._command(fleet, table, limit, retrieval)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(fleet.directory),
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_DYNAMODB": endpoint,
            **fleet.kinesis.environment,
        }
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                ["sh", "-c", contract_servers().WATCHED, "sh", *java],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=fleet.directory,
                env=environment,
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        fleet.workers[name] = self

    def _command(self, fleet, table, limit, retrieval):
        require_installed()
        properties = fleet.directory / f"{self.name}.properties"
        processor = HERE / "record_processor.py"
        facts = {"python": sys.executable, "processor": processor, "journal": self.journal}
        facts |= {"limit": limit, "retrieval": retrieval}
        properties.write_text(PROPERTIES.format(stream=STREAM, table=table, name=self.name, **facts))
        daemon = "software.amazon.kinesis.multilang.MultiLangDaemon"
        return ["java", "-cp", f"{INSTALLED}/amazon_kclpy/jars/*", daemon, "--properties-file", str(properties)]

    def wait_for(self, is_so, limit, what):
        """Wait until the condition is true. Return how long the KCL has been running then."""

        def alive_and_so():
            require(self.process.poll() is None, f"the KCL ended: {self.errors}")
            return is_so()

        try:
            return wait_for(alive_and_so, limit, what, pause=0.5) - self.started_at
        except DrillError as failure:
            raise DrillError(f"{failure}; the KCL says: {self.errors}") from None

    def signal(self, number):
        """Send a signal to the daemon and its processors, and return the time."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        return time.monotonic()

    def end(self, limit=60.0):
        """Send SIGTERM to the daemon, which shuts its processors down in good order."""
        self.process.terminate()
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise DrillError(f"the KCL does not end within {limit} s of SIGTERM: {self.errors}") from None
        self.kill()

    @property
    def errors(self):
        lines = self._output.read_text(errors="replace").splitlines()
        telling = [line for line in lines if " INFO " not in line and not line.startswith("\tat ")]
        return "\n".join(telling)[-3000:]

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.stdin.close()
        self.process.wait()


class ProgramWorker(JavaWorker):
    """A KCL that runs KclWorker.java. It has no ``limit``."""

    library = "kcl"
    """The folder in ``FROM_MAVEN`` with the compiled application."""
    idle_millis = 300
    """The pause between two reads of a shard."""

    @classmethod
    def jars(cls):
        return FROM_MAVEN / cls.library / "jars"

    @classmethod
    def version(cls):
        """Return the version of the KCL, as installed."""
        names = [
            jar.stem.removeprefix("amazon-kinesis-client-") for jar in cls.jars().glob("amazon-kinesis-client-*.jar")
        ]
        [version] = [name for name in names if name[:1].isdigit()]
        return version

    def _command(self, fleet, table, limit, retrieval):  # noqa: ARG002 - the signature is the base class's
        folder = FROM_MAVEN / self.library
        require((folder / ".stamp").exists(), f"{folder} is missing: tests/interop/java/install-maven.sh")
        require(not limit, "this KCL reads without a limit")
        level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        arguments = [STREAM, table, self.name, str(self.journal), retrieval, str(self.idle_millis)]
        return [*JAVA, level, "-cp", f"{folder}/classes:{self.jars()}/*", "KclWorker", *arguments]


class NewestJavaWorker(ProgramWorker):
    """The newest KCL."""


class OldJavaWorker(ProgramWorker):
    """The newest KCL 2."""

    library = "kcl2"
    idle_millis = 1_000
    did_not_end = 0
    """How many workers of this process did not end within the limit."""

    def end(self, limit=60.0):
        """Send SIGTERM, and SIGKILL if the worker does not end: KCL 2 may wait for its last shards without end."""
        try:
            super().end(limit)
        except DrillError:
            OldJavaWorker.did_not_end += 1
            self.kill()


class WheelJavaWorker(ProgramWorker):
    """The KCL of the wheel, in one process."""

    idle_millis = 1_000

    @classmethod
    def jars(cls):
        return INSTALLED / "amazon_kclpy" / "jars"

    def _command(self, fleet, table, limit, retrieval):
        require_installed()
        return super()._command(fleet, table, limit, retrieval)


class SlowNewestJavaWorker(NewestJavaWorker):
    """The newest KCL with a longer pause, so that a fleet of several needs less CPU time."""

    idle_millis = 1_000
