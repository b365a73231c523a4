"""Detects whether a file is on a network file system.

SQLite's write-ahead log needs shared memory and reliable file locks. On a network file system, it corrupts the file.
The mount table is read from ``/proc``, which only Linux has. Elsewhere, every file counts as local.
"""

import re
from pathlib import Path
from typing import Final

MOUNT_TABLE: Final = Path("/proc/self/mounts")

_NETWORK: Final = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.blobfuse",
        "fuse.blobfuse2",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.moosefs",
        "fuse.mount-s3",
        "fuse.mountpoint-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.seaweedfs",
        "fuse.sshfs",
        "fuse.weed",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
    }
)
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path, mount_table: str) -> str | None:
    """Return the type of the network file system of ``path`` (absolute, resolved), or ``None`` if ``path`` is local."""
    best = -1
    found = ""
    for line in mount_table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:  # noqa: PLR2004 - device, mount point, type
            continue
        mounted_at = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[1]))
        depth = len(mounted_at.parts)
        if depth >= best and path.is_relative_to(mounted_at):  # a later mount at the same place hides an earlier one
            best, found = depth, fields[2]
    return found if found in _NETWORK else None


def read_mount_table() -> str:
    """Return the text of the mount table, or an empty string if the system has no mount table. This blocks."""
    try:
        return MOUNT_TABLE.read_text(errors="surrogateescape")
    except OSError:
        return ""
