"""A setting is declared once: its variable is derived from its flag, and a flag wins over it."""

import argparse

import pytest

from prorl_mq.process.settings import Setting, add

LEASE = Setting("--lease-ms", "of a job", type=int, default=15_000, unit="ms")


def read(setting: Setting, *argv: str, **environ: str) -> object:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add(parser, [setting], environ)
    [(_, value)] = vars(parser.parse_args(argv)).items()
    return value


@pytest.mark.parametrize(
    ("setting", "variable"),
    [
        (Setting("--lease-ms"), "PRORL_LEASE_MS"),
        (Setting("--host", variable="PRORL_API_HOST"), "PRORL_API_HOST"),
        (Setting("--grace-ms", variable=None), None),
        (Setting("PRORL_LOG"), "PRORL_LOG"),
    ],
)
def test_the_variable_is_derived_from_the_flag(setting: Setting, variable: str | None) -> None:
    assert setting.environment_name == variable


def test_a_flag_wins_over_its_variable_and_that_over_the_default() -> None:
    assert read(LEASE) == 15_000
    assert read(LEASE, PRORL_LEASE_MS="2000") == 2_000
    assert read(LEASE, "--lease-ms", "1000", PRORL_LEASE_MS="2000") == 1_000


def test_a_setting_without_a_variable_reads_none() -> None:
    assert read(Setting("--grace-ms", default=1, variable=None), PRORL_GRACE_MS="2") == 1


def test_a_variable_of_the_wrong_type_is_refused_as_the_flag_is() -> None:
    with pytest.raises(argparse.ArgumentError, match="--lease-ms: invalid int value: 'soon'"):
        read(LEASE, PRORL_LEASE_MS="soon")


def test_the_help_names_default_unit_and_variable() -> None:
    parser = argparse.ArgumentParser()
    add(parser, [LEASE], {})
    assert "of a job (15000 ms, PRORL_LEASE_MS)" in parser.format_help()
