"""Directories and files are not accessible to other users, whatever the umask of the process is."""

import os
import stat
from pathlib import Path

import pytest

from duolog.store.files import RealFiles
from duolog.store.options import StoreOptions
from duolog.store.store import Store
from tests.unit.store.model import Notes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_all_in_the_data_directory_is_readable_by_its_owner_only(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "data"
    before = os.umask(umask)
    try:
        files = RealFiles(str(root))
        store = Store.open(files, StoreOptions(reserve_bytes=0), Notes(), 1)
        files.make_directory("index/1/0")
        files.close(files.open("index/1/0/rows", create=True))
        store.close(1)
    finally:
        os.umask(before)
    found = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]
    }
    directories = {"data", "data/log", "data/index", "data/index/1", "data/index/1/0"}
    assert found.keys() > directories | {"data/lock", "data/checkpoint"}
    assert found == {path: 0o700 if path in directories else 0o600 for path in found}


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    RealFiles(str(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
