"""The deployment's own authority, and the certificates that it issues."""

import os
import secrets
import subprocess
from pathlib import Path
from typing import Final

from prorl_mq.errors import ConfigurationError

DAYS: Final = 2  # of a certificate
CA_DAYS: Final = 30  # of the authority; the next one comes at half of it, and both are trusted until the first ends
AUTHORITY: Final = "authority.pem"
LAST: Final = "-----END CERTIFICATE-----\n"
KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(directory: Path) -> str:
    """The certificates in PEM that are trusted: the deployment's authority, and the one before it.

    It is kept when Redis moves, so that clients need no new one, until half of its time is over.
    """
    own, trusted = directory / AUTHORITY, directory / "trusted.pem"
    if not own.exists() or _ends(own, CA_DAYS * 43_200):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = own.read_text().partition(LAST)[:2] if own.exists() and not _ends(own, 0) else ()
        new, key = directory / "new.pem", directory / "new.key"
        name = f"/CN=prorl {secrets.token_hex(8)}"
        _openssl("req", "-x509", *KEY, "-days", CA_DAYS, "-subj", name, "-keyout", key, "-out", new)
        trusted.write_text("".join([new.read_text(), *before]))
        _append(new, key)
        new.replace(own)
    return trusted.read_text()


def issue(directory: Path, name: str, into: Path, *, address: str = "") -> None:
    """A file with a certificate and its key, for a server at an IP address or for a client, replaced in one step."""
    key, request, certificate, more = (into.with_name(f".{into.name}.{each}") for each in ("key", "req", "crt", "ext"))
    use = f"extendedKeyUsage=serverAuth\nsubjectAltName=IP:{address}" if address else "extendedKeyUsage=clientAuth"
    more.write_text(f"{use}\n")
    try:
        _openssl("req", *KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", directory / AUTHORITY, "-CAkey", directory / AUTHORITY,
            "-set_serial", f"0x{secrets.token_hex(16)}", "-days", DAYS, "-extfile", more, "-out", certificate,
        )  # fmt: skip
        _append(certificate, key)
        certificate.replace(into)
    finally:
        for each in (key, request, certificate, more):
            each.unlink(missing_ok=True)


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
    umask = os.umask(0o077)
    try:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigurationError(
            "openssl is missing on this node: TLS needs it (Debian: openssl), or set `tls = false` in [redis]"
        ) from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"openssl {words[0]} failed: {error.stderr.strip()[-300:]}") from None
    finally:
        os.umask(umask)
