"""A setting is declared once: its flag wins over its variable, and both over the default."""

import argparse
from typing import Any

import pytest

from prorl_mq.settings import KEEP, Setting, SubCommand, add, add_commands

LEASE = Setting("--lease-ms", "of a job", type=int, default=15_000, unit="ms", variable="PRORL_LEASE_MS")


def read(setting: Setting, *argv: str, **environ: str) -> object:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add(parser, [setting], environ)
    [(_, value)] = vars(parser.parse_args(argv)).items()
    return value


@pytest.mark.parametrize(
    ("setting", "variable"),
    [
        (LEASE, "PRORL_LEASE_MS"),
        (Setting("--grace-ms"), None),
        (Setting("PRORL_LOG"), "PRORL_LOG"),
        (Setting("tasks"), None),
    ],
)
def test_a_variable_is_that_of_its_flag_or_stands_alone(setting: Setting, variable: str | None) -> None:
    assert setting.environment_name == variable


def test_a_flag_wins_over_its_variable_and_that_over_the_default() -> None:
    assert read(LEASE) == 15_000
    assert read(LEASE, PRORL_LEASE_MS="2000") == 2_000
    assert read(LEASE, "--lease-ms", "1000", PRORL_LEASE_MS="2000") == 1_000


def test_a_setting_without_a_variable_reads_none() -> None:
    assert read(Setting("--grace-ms", default=1), PRORL_GRACE_MS="2") == 1


def test_a_variable_of_the_wrong_type_is_refused_as_the_flag_is() -> None:
    with pytest.raises(argparse.ArgumentError, match="--lease-ms: invalid int value: 'soon'"):
        read(LEASE, PRORL_LEASE_MS="soon")


def test_the_help_names_default_unit_and_variable() -> None:
    parser = argparse.ArgumentParser()
    add(parser, [LEASE], {})
    assert "of a job (15000 ms, PRORL_LEASE_MS)" in parser.format_help()


@pytest.mark.parametrize("kind", [{"required": True}, {"default": KEEP}, {"again": True}, {"alone": True}])
def test_the_help_names_no_default_where_there_is_none(kind: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    add(parser, [Setting("--out", "of a job", **kind)], {})
    assert parser.format_help().rstrip().endswith("of a job")


@pytest.mark.parametrize(
    ("setting", "argv", "value"),
    [
        (Setting("--json", alone=True), "", False),
        (Setting("--json", alone=True), "--json", True),
        (Setting("--watch", type=int, alone=2, nargs="?"), "", None),
        (Setting("--watch", type=int, alone=2, nargs="?"), "--watch", 2),
        (Setting("--watch", type=int, alone=2, nargs="?"), "--watch 5", 5),
        (Setting("--keep", again=True), "", []),
        (Setting("--keep", again=True), "--keep a --keep b", ["a", "b"]),
        (Setting("--limits", again=True, nargs="+"), "--limits a b --limits c", ["a", "b", "c"]),
        (Setting("names", nargs="*"), "", []),
        (Setting("names", nargs="*", type=int), "1 2", [1, 2]),
        (Setting("name", nargs="?"), "", None),
        (Setting("kind", choices=("job", "run")), "run", "run"),
    ],
)
def test_a_setting_takes_as_many_values_as_it_declares(setting: Setting, argv: str, value: object) -> None:
    assert read(setting, *argv.split()) == value


def test_a_flag_that_keeps_what_is_there_leaves_no_attribute() -> None:
    parser = argparse.ArgumentParser()
    add(parser, [Setting("--weight", type=float, default=KEEP)], {})
    assert vars(parser.parse_args([])) == {}
    assert vars(parser.parse_args(["--weight", "2"])) == {"weight": 2.0}


@pytest.mark.parametrize("argv", ["--redis a --server b", "", "--kind other"])
def test_what_a_declaration_forbids_is_refused(argv: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add(parser, [(Setting("--redis"), Setting("--server")), Setting("--kind", choices=("job",), required=True)], {})
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parser.parse_args(argv.split())


def test_commands_are_parsed_from_their_settings() -> None:
    parser = argparse.ArgumentParser()
    made = add_commands(parser, {"job": SubCommand("where a job is", [Setting("id")]), "list": SubCommand("all")}, {})
    assert vars(parser.parse_args(["job", "r:g:0"])) == {"command": "job", "id": "r:g:0"}
    assert "Where a job is." in made["job"].format_help()
