"""What `packaging/release.py check` asks for is true at any time, so that a release needs no other changes."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "packaging" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_has_changes_and_is_the_tag_of_the_image_in_the_manifests(release: ModuleType) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert [*release.unprepared(version)] == []


def test_a_version_that_is_not_prepared_is_refused_with_each_reason(release: ModuleType) -> None:
    assert [*release.unprepared("99.next")] == [
        "pyproject.toml: '99.next' is not a version such as 1.2.3 or 1.2.3rc1",
        "CHANGELOG.md: no section '## 99.next' with text",
        "packaging/kubernetes/duolog.yaml: the image has not the tag 99.next",
    ]


def test_git_sees_no_variable_that_names_another_repository_or_configuration(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "duolog.seen")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "yes")
    assert release.git("config", "--default", "no", "--get", "duolog.seen") == "no"
