"""Certificates for a Redis that speaks TLS: the deployment's own authority, and one for the server's address."""

import subprocess
from pathlib import Path
from typing import Final

from prorl_mq.errors import ConfigurationError

DAYS: Final = "3650"
KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(directory: Path) -> str:
    """The deployment's authority in PEM. It is kept when Redis moves, so that clients need no new one."""
    key, certificate = directory / "ca.key", directory / "ca.pem"
    if not certificate.exists():
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _openssl("req", "-x509", *KEY, "-days", DAYS, "-subj", "/CN=prorl", "-keyout", key, "-out", certificate)
    return certificate.read_text()


def issue(directory: Path, address: str, into: Path) -> list[str]:
    """A key and a certificate for an IP address, on this node, as options of the server."""
    into.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, request, certificate, more = (into / name for name in ("key", "request", "pem", "extensions"))
    more.write_text(f"subjectAltName=IP:{address}\n")
    _openssl("req", *KEY, "-subj", "/CN=redis", "-keyout", key, "-out", request)
    _openssl(
        "x509", "-req", "-in", request, "-CA", directory / "ca.pem", "-CAkey", directory / "ca.key",
        "-CAcreateserial", "-CAserial", into / "serial", "-days", DAYS, "-extfile", more, "-out", certificate,
    )  # fmt: skip
    options = {"cert-file": certificate, "key-file": key, "ca-cert-file": directory / "ca.pem"}
    return [word for name, path in options.items() for word in (f"--tls-{name}", str(path))] + [
        "--tls-auth-clients", "no",
    ]  # fmt: skip


def _openssl(*words: str | Path) -> None:
    try:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigurationError("openssl is missing on this node: TLS needs it (Debian: openssl)") from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"openssl {words[0]} failed: {error.stderr.strip()[-300:]}") from None
