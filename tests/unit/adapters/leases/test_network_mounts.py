"""Which files are on a network file system?"""

from pathlib import Path

import pytest

from shardline.adapters.leases import network_mounts as mounts
from shardline.adapters.leases.network_mounts import network_file_system, read_mount_table

TABLE = """\
rootfs / rootfs rw 0 0
/dev/sda1 / ext4 rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/me/local xfs rw 0 0
//nas/share /mnt/my\\040share cifs rw 0 0
me@host:/ /mnt/ssh fuse.sshfs rw 0 0
tmpfs /over tmpfs rw 0 0
server:/x /over nfs rw 0 0
short line

"""


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/leases.db", None),
        ("/homework/leases.db", None),
        ("/home/leases.db", "nfs4"),
        ("/home/me/leases.db", "nfs4"),
        ("/home/me/local/leases.db", None),
        ("/home/me/local/deep/er/leases.db", None),
        ("/mnt/my share/leases.db", "cifs"),
        ("/mnt/my", None),
        ("/mnt/ssh/leases.db", "fuse.sshfs"),
        ("/over/leases.db", "nfs"),
    ],
)
def test_the_innermost_and_latest_mount_decides(path, found):
    assert network_file_system(Path(path), TABLE) == found


def test_where_the_system_does_not_say_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(mounts, "MOUNT_TABLE", tmp_path / "missing")
    assert read_mount_table() == ""
    assert network_file_system(tmp_path, "") is None
