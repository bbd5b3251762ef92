"""Settings: file and environment, and errors that name the key and the remedy."""

from pathlib import Path

import pytest
from leyden.infra.errors import SettingsError
from leyden.infra.settings import RoleSettings


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "leyden.toml"
    file.write_text(text)
    return file


def test_the_environment_outranks_the_file_and_the_command_line_outranks_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, 'policy = "file"\nprefix = "file."\n[kafka]\nbootstrap = "file:1"\npartitions = 3\n')
    monkeypatch.setenv("LEYDEN_KAFKA__BOOTSTRAP", "env:1")
    monkeypatch.setenv("LEYDEN_PREFIX", "env.")
    settings = RoleSettings.load(file, prefix="line.")
    seen = (settings.policy, settings.prefix, settings.kafka.bootstrap, settings.kafka.partitions)
    assert seen == ("file", "line.", "env:1", 3)


def test_an_unknown_key_is_an_error_that_suggests_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown setting kafka.bootstrp; did you mean bootstrap\?"):
        RoleSettings.load(written(tmp_path, '[kafka]\nbootstrp = "x"\n'))


def test_a_value_of_the_wrong_type_names_file_and_key(tmp_path: Path) -> None:
    file = written(tmp_path, '[kafka]\npartitions = "many"\n')
    with pytest.raises(SettingsError, match=rf"{file}: kafka.partitions: "):
        RoleSettings.load(file)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"leyden.toml"):
        RoleSettings.load(written(tmp_path, "policy ="))


def test_variables_of_other_roles_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_SPOOL_BYTES", "1")
    assert RoleSettings.load().policy == "policy"


def test_a_secret_does_not_show_when_settings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_OBJECTS__SECRET_KEY", "hush-hush")
    assert "hush-hush" not in str(RoleSettings.load())
