"""Two workers: who shares a scope, what is handed out first, and that nobody enters while one test is alone."""

import fcntl
from pathlib import Path

from tests.kit.workers import rank, scope, turn

SPARK = "tests/wire/test_spark.py::test_sink_writes_what_others_read"
ALSO_SPARK = "tests/wire/test_matrix.py::test_no_cell_is_empty"
WIRE = "tests/wire/test_kill.py::test_a[tests/wire/test_spark.py::b]"
UNIT = "tests/unit/kit/test_workers.py::test_c"


def test_a_file_is_a_scope_and_all_with_the_spark_session_are_one() -> None:
    assert scope(SPARK) == scope(ALSO_SPARK)
    assert (scope(WIRE), scope(UNIT)) == ("tests/wire/test_kill.py", "tests/unit/kit/test_workers.py")


def test_the_longest_come_first_and_the_shortest_last() -> None:
    assert rank(SPARK) == rank(ALSO_SPARK) < rank(WIRE) < rank(UNIT)


def test_nobody_enters_while_one_is_alone(tmp_path: Path) -> None:
    with turn(tmp_path, alone=True):
        assert is_shut(tmp_path)
    with turn(tmp_path, alone=False), turn(tmp_path, alone=False):
        assert not is_shut(tmp_path)


def is_shut(folder: Path) -> bool:
    """Whether a test beside those that run would have to wait."""
    with (folder / "room").open("w") as room:
        try:
            fcntl.flock(room, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
