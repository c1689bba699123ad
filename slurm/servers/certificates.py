"""The deployment's own authority, and the certificates that it issues."""

import contextlib
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prorl_mq.errors import ConfigurationError

DAYS: Final = 2  # of a certificate
CA_DAYS: Final = 30  # of the authority; the next one comes at half of it, and both are trusted until the first ends
AUTHORITY: Final = "authority.pem"
TRUSTED: Final = "trusted.pem"
LAST: Final = "-----END CERTIFICATE-----\n"
KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(directory: Path) -> str:
    """The certificates in PEM that are trusted: the deployment's authority, and the one before it.

    It is kept when Redis moves, so that clients need no new one, until half of its time is over. Only the server that
    is published calls this: it would not trust what another one made.
    """
    own = directory / AUTHORITY
    if not own.exists() or _ends(own, CA_DAYS * 43_200):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = own.read_text().partition(LAST)[:2] if own.exists() and not _ends(own, 0) else ()
        with _beside(own) as (new, key, both, _):
            name = f"/CN=prorl {secrets.token_hex(8)}"
            _openssl("req", "-x509", *KEY, "-days", CA_DAYS, "-subj", name, "-keyout", key, "-out", new)
            both.write_text("".join([new.read_text(), *before]))
            both.replace(directory / TRUSTED)
            _append(new, key)
            new.replace(own)
    return trusted(directory)


def trusted(directory: Path) -> str:
    """The certificates of `authority`, without making one. Raises `OSError` where there is none."""
    return (directory / TRUSTED).read_text()


def issue(directory: Path, name: str, into: Path, *, address: str = "") -> None:
    """A file with a certificate and its key, for a server at an IP address or for a client, replaced in one step."""
    use = f"extendedKeyUsage=serverAuth\nsubjectAltName=IP:{address}" if address else "extendedKeyUsage=clientAuth"
    with _beside(into) as (certificate, key, request, more):
        more.write_text(f"{use}\n")
        _openssl("req", *KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", directory / AUTHORITY, "-CAkey", directory / AUTHORITY,
            "-set_serial", f"0x{secrets.token_hex(16)}", "-days", DAYS, "-extfile", more, "-out", certificate,
        )  # fmt: skip
        _append(certificate, key)
        certificate.replace(into)


@contextlib.contextmanager
def _beside(file: Path) -> Iterator[list[Path]]:
    """Names for new files on the same file system, which only this writer has, and nobody else reads."""
    with tempfile.TemporaryDirectory(prefix=f".{file.name}.", dir=file.parent) as made:
        yield [Path(made) / f"{number}.pem" for number in range(4)]


def _append(certificate: Path, key: Path) -> None:
    """The key to its certificate: one file, which its owner alone reads, cannot be half of another's."""
    certificate.chmod(0o600)
    with certificate.open("a") as both:
        both.write(key.read_text())
    key.unlink()


def _ends(certificate: Path, within_s: float) -> bool:
    argv = ["openssl", "x509", "-checkend", str(int(within_s)), "-noout", "-in", str(certificate)]
    return subprocess.run(argv, check=False, capture_output=True).returncode != 0


def _openssl(*words: str | int | Path) -> None:
    try:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True, umask=0o077)
    except FileNotFoundError:
        raise ConfigurationError(
            "openssl is missing on this node: TLS needs it (Debian: openssl), or set `tls = false` in [redis]"
        ) from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"openssl {words[0]} failed: {error.stderr.strip()[-300:]}") from None
