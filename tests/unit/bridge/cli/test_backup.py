"""A backup of a whole core, and its restoring: the copy has what was acknowledged, and damage is refused."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from duolog.bridge.cli.common import reason_of
from duolog.bridge.cli.data_directory.backup import _plan_of
from duolog.bridge.config import HttpOptions, Options
from duolog.store.backup.directory import copy_to_directory
from duolog.store.backup.manifest import BackupFailed, CopiedFile
from duolog.store.backup.new_directory import make_directories
from duolog.store.backup.sources import BackupPlan, FilesChanged, Sources
from duolog.store.log.format import POSITION_MAX
from tests.kit.core import ManualCore
from tests.kit.damage import flip
from tests.kit.http import HttpBench
from tests.kit.rows import first_in_unit
from tests.unit.bridge.cli.test_log_repair import SMALL, core_on, readable, readable_by_others, segments
from tests.unit.bridge.cli.test_main import run


def publish(core: ManualCore, start: int, end: int) -> None:
    core.publish(core.topic("orders", queues=1), *[b"%d" % offset for offset in range(start, end)])


def copied(core: ManualCore, data: Path, target: Path) -> BackupPlan:
    """Make a backup as the command does; messages are published while it is made."""
    bench = HttpBench(core)
    status, answer = bench.ask("POST", "/api/backups")
    assert status == 201
    assert core.store.retention.dead_segments.held_from == 0
    sources = Sources(_plan_of(answer, data))
    count = core.topic("orders").queues[0].end_offset
    publish(core, count, count + 30)
    copy_to_directory(sources, str(target), lambda _: None)
    sources.close()
    assert bench.ask("DELETE", f"/api/leases/{answer['lease']}")[0] == 200
    assert core.store.retention.dead_segments.held_from == POSITION_MAX
    return _plan_of(answer, data)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Return a backup of 40 messages of a broker that goes on with others."""
    core = core_on(tmp_path / "data")
    publish(core, 0, 40)
    copied(core, tmp_path / "data", tmp_path / "backup")
    return tmp_path / "backup"


def test_a_restored_copy_has_what_was_there_when_the_backup_began(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(f"restore {backup} --data {tmp_path / 'new'}", capsys)
    assert status == 0
    assert "has the log up to position" in out
    assert readable_by_others(backup) == readable_by_others(tmp_path / "new") == []
    core = core_on(tmp_path / "new")
    assert readable(core) == {offset: b"%d" % offset for offset in range(40)}
    publish(core, 40, 41)
    assert readable(core)[40] == b"40"


def test_clients_that_read_records_after_the_backup_notice_that_they_are_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets that have other records than before have another leader epoch, however often the broker was started."""
    core = core_on(tmp_path / "data")
    publish(core, 0, 40)
    copied(core, tmp_path / "data", tmp_path / "backup")
    for _ in range(3):
        core.store.close(core.clock.now_ms())
        core = core_on(tmp_path / "data")
    end, epoch = core.topic("orders").queues[0].end_offset, core.store.epoch
    assert end > 40
    assert run(f"restore {tmp_path / 'backup'} --data {tmp_path / 'new'}", capsys)[0] == 0
    restored = core_on(tmp_path / "new")
    publish(restored, 40, end)
    topic = restored.topic("orders")
    assert topic.epoch_end(0, epoch) == (0, 40)
    assert topic.leader_epoch(0) > epoch


def test_segments_that_were_removed_stay_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    core = core_on(tmp_path / "data")
    publish(core, 0, 60)
    core.store.checkpoint(0)
    core.settle()
    queue = core.topic("orders").queues[0]
    core.store.retention.trim(queue, 50, core.clock.now_ms())
    for _ in core.store.retention.dead_segments.find():
        pass
    core.store.checkpoint(0)
    core.settle()
    assert segments(tmp_path / "data")[0].name != f"{0:020}.log"
    copied(core, tmp_path / "data", tmp_path / "backup")
    assert run(f"restore {tmp_path / 'backup'} --data {tmp_path / 'new'}", capsys)[0] == 0
    restored = core_on(tmp_path / "new")
    assert readable(restored) == {offset: b"%d" % offset for offset in range(50, 60)}


def test_a_table_that_is_removed_before_it_is_opened_asks_for_another_plan(tmp_path: Path) -> None:
    core = core_on(tmp_path)
    publish(core, 0, 1)
    plan = _plan_of(HttpBench(core).ask("POST", "/api/backups")[1], tmp_path)
    with pytest.raises(FilesChanged):
        Sources(plan._replace(tables=[CopiedFile("timers/0000000001.table", 4096)]))


def test_only_a_token_that_may_read_everything_may_make_a_backup(tmp_path: Path) -> None:
    readers = tmp_path / "readers.toml"
    readers.write_text('"some" = ["orders*"]\n"all" = ["*"]\n')
    options = Options(http=HttpOptions(readers_file=str(readers)))
    bench = HttpBench(ManualCore(options, store=SMALL))
    statuses = {
        token: bench.ask("POST", "/api/backups", None, {"Authorization": f"Bearer {token}"})[0]
        for token in ("none", "some", "all")
    }
    assert statuses == {"none": 401, "some": 403, "all": 201}


# -- Damage


def flip_a_bit(backup: Path) -> None:
    flip(segments(backup)[1], 100, 0x10)


def truncate(backup: Path) -> None:
    path = segments(backup)[1]
    path.write_bytes(path.read_bytes()[:-8])


def remove_a_segment(backup: Path) -> None:
    segments(backup)[1].unlink()


def remove_the_manifest(backup: Path) -> None:
    (backup / "backup.json").unlink()


def truncate_the_manifest(backup: Path) -> None:
    path = backup / "backup.json"
    path.write_bytes(path.read_bytes()[:-8])


def empty_the_manifest(backup: Path) -> None:
    (backup / "backup.json").write_bytes(b"{}")


def make_it_a_file(backup: Path) -> None:
    shutil.rmtree(backup)
    backup.write_bytes(b"")


def name_a_file_outside(backup: Path) -> None:
    content = json.loads((backup / "backup.json").read_text())
    content["files"].append(["log/../../outside", 0])
    (backup / "backup.json").write_text(json.dumps(content))


def future_format(backup: Path) -> None:
    content = json.loads((backup / "backup.json").read_text())
    (backup / "backup.json").write_text(json.dumps(content | {"format": 2}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flip_a_bit, "the log is damaged: log/"),
        (truncate, "were expected"),
        (remove_a_segment, "is missing"),
        (remove_the_manifest, "it is no finished backup"),
        (truncate_the_manifest, "bytes, which are cut off or no JSON; restore another backup"),
        (empty_the_manifest, "it lacks a field, or has another value than a backup writes ('format')"),
        (shutil.rmtree, "backup is no directory: name the directory that `duolog backup` has made"),
        (make_it_a_file, "backup is no directory: name the directory that `duolog backup` has made"),
        (name_a_file_outside, "which is no file of a backup"),
        (future_format, "has format 2; this version knows 1"),
    ],
)
def test_a_damaged_backup_is_not_restored(
    backup: Path, damage: Callable[[Path], None], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(backup)
    status, out, err = run(f"restore {backup} --data {tmp_path / 'new'}", capsys)
    assert (status, out) == (1, "")
    assert err.startswith("duolog: nothing was restored: ")
    assert says in err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("seed", first_in_unit(range(10), 5))
def test_a_flipped_bit_anywhere_in_the_log_is_found(
    backup: Path, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(seed)
    path = choose.choice(segments(backup))
    flip(path, choose.randrange(path.stat().st_size), 0x10)
    status, _, err = run(f"restore {backup} --data {tmp_path / 'new'}", capsys)
    assert status == 1
    assert "the log is damaged: log/" in err


def test_a_directory_that_cannot_be_created_is_named(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says = "cannot be created: No such file or directory; name a directory that this user may create"
    status, _, err = run(f"restore {backup} --data /proc/no/data", capsys)
    assert (status, err) == (1, f"duolog: nothing was restored: /proc/no/data.restoring {says}\n")
    with pytest.raises(BackupFailed, match=f"/proc/no/backup {says}"):
        make_directories("/proc/no/backup")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", "data/log"), "data/log cannot be used: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (BackupFailed("it is damaged"), "it is damaged"),
    ],
)
def test_an_error_of_the_system_is_a_sentence_without_its_number(error: Exception, says: str) -> None:
    assert reason_of(error) == says


def test_a_directory_with_files_is_not_replaced(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = tmp_path / "used"
    used.mkdir()
    (used / "file").write_text("in the way")
    status, _, err = run(f"restore {backup} --data {used}", capsys)
    assert (status, err) == (1, f"duolog: nothing was restored: {used} is not empty\n")
    shutil.rmtree(used)
    used.mkdir()
    assert run(f"restore {backup} --data {used}", capsys)[0] == 0


def test_a_backup_needs_a_running_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(f"backup {tmp_path / 'backup'} --http 127.0.0.1:1", capsys)
    assert status == 1
    assert "no broker answers on 127.0.0.1:1" in err
    assert not (tmp_path / "backup").exists()
