"""Proves that Duolog occupies one import name: a script beside files named like Duolog's folders uses both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OWN_PACKAGES = ("bridge", "delay", "protocol", "store", "txn")
OWN_MODULES = ("spark", "bridge_options", "log_source")

SCRIPT = """
import bridge, delay, protocol, spark, store, txn
from store import orders
from duolog.spark import messages as module
from duolog.spark.log_source import DuologLog
from duolog.spark.messages import messages
from duolog.protocol.names import kafka_name

assert {m.OWNER for m in (bridge, delay, protocol, spark, store, txn, orders)} == {"the user"}
assert messages is module.messages and DuologLog.name() == "duolog-log"
print(kafka_name("%RETRY%group"))
"""


def write_user_files(folder: Path) -> None:
    for name in OWN_PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('OWNER = "the user"\n')
    (folder / "store" / "orders.py").write_text('OWNER = "the user"\n')
    for name in OWN_MODULES:
        (folder / f"{name}.py").write_text('OWNER = "the user"\n')


@pytest.mark.slow
def test_script_beside_files_with_the_names_of_duologs_folders_imports_both(tmp_path: Path) -> None:
    write_user_files(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "..RETRY..group\n"), done.stderr
