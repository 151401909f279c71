"""Which commit is the last release: the newest tag, or, without one, the first commit with the present data format."""

from pathlib import Path

import pytest

from tests.kit.release import FORMAT_FILE, ROOT, git_output, last_release

AS = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    return git_output(folder, *AS, *words).decode().strip()


def commit(folder: Path, line: str, tag: str = "") -> str:
    path = folder / FORMAT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "a change")
    if tag:
        git(folder, "tag", "-a", "-m", tag, tag)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    git(made, "init", "-q")
    return made


def test_the_line_that_is_searched_for_is_in_the_source() -> None:
    assert "FORMAT_VERSION: Final = " in (ROOT / FORMAT_FILE).read_text()


def test_the_newest_tag_of_another_commit_is_the_last_release(repository: Path) -> None:
    for tag in ("v0.9.0", "v0.10.0", "v0.2.0"):
        commit(repository, f"FORMAT_VERSION: Final = 1  # {tag}", tag)
    commit(repository, "FORMAT_VERSION: Final = 1  # now", "v0.11.0")
    git(repository, "tag", "v9-candidate", "HEAD~1")
    assert last_release(repository, 1) == ("v0.10.0", git(repository, "rev-parse", "v0.10.0^{commit}"))


def test_tag_of_another_branch_is_not_the_last_release(repository: Path) -> None:
    first = commit(repository, "FORMAT_VERSION: Final = 1  # one", "v0.1.0")
    git(repository, "checkout", "-q", "-b", "other")
    commit(repository, "FORMAT_VERSION: Final = 1  # other", "v0.2.0")
    git(repository, "checkout", "-q", "-")
    commit(repository, "FORMAT_VERSION: Final = 1  # now")
    assert last_release(repository, 1) == ("v0.1.0", first)


def test_git_hook_that_runs_the_tests_keeps_its_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    head = commit(outer, "FORMAT_VERSION: Final = 1", "v0.1.0")
    for name, path in (("GIT_DIR", ".git"), ("GIT_WORK_TREE", "."), ("GIT_INDEX_FILE", ".git/index")):
        monkeypatch.setenv(name, str(outer / path))
    inner = commit(repository, "FORMAT_VERSION: Final = 1  # inner")
    commit(repository, "FORMAT_VERSION: Final = 1  # now")
    assert last_release(repository, 1).commit == inner
    assert (git(outer, "rev-parse", "HEAD"), git(outer, "status", "--porcelain")) == (head, "")


def test_without_a_tag_it_is_the_first_commit_with_the_format(repository: Path) -> None:
    commit(repository, "FORMAT_VERSION: Final = 1")
    second = commit(repository, "FORMAT_VERSION: Final = 2")
    commit(repository, "FORMAT_VERSION: Final = 2  # now")
    assert last_release(repository, 2).commit == second


@pytest.mark.parametrize("lacking", ["repository", "own repository", "commits", "depth"])
def test_missing_history_is_said_and_never_replaced(
    repository: Path, tmp_path: Path, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kit.lacking.IN_CI", True)
    commit(repository, "FORMAT_VERSION: Final = 1")
    if lacking == "repository":
        repository = tmp_path
    elif lacking == "own repository":
        commit(repository, "FORMAT_VERSION: Final = 1  # released", "v0.1.0")
        commit(repository, "FORMAT_VERSION: Final = 1  # now")
        repository /= "store"
    elif lacking == "depth":
        commit(repository, "FORMAT_VERSION: Final = 1  # now")
        git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
        repository = tmp_path / "shallow"
    with pytest.raises(pytest.skip.Exception, match="no history: "):
        last_release(repository, 1)
