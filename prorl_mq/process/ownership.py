"""Check that each of our top-level packages has one owner: others may claim `workers` and `api` as names too."""

from collections.abc import Mapping, Sequence
from importlib.metadata import packages_distributions

from prorl_mq.errors import ConfigurationError

PACKAGES = ("prorl_mq", "workers", "api", "sandbox", "slurm")
OURS = "prorl-mq"


def check(owners: Mapping[str, Sequence[str]] | None = None) -> None:
    """Raises `ConfigurationError` naming every package that another distribution installs as well."""
    found = packages_distributions() if owners is None else owners
    clashes = {name: sorted(set(found.get(name, ())) - {OURS}) for name in PACKAGES}
    told = [f"{name} ({', '.join(others)})" for name, others in clashes.items() if others]
    if told:
        raise ConfigurationError(
            f"other packages are installed under names of this service: {'; '.join(told)}; uninstall them"
        )
