# ruff: noqa: INP001  (a program, not a module)
"""Builds the images of software engineering tasks from the package registry, on top of the sandboxes' base image.

    python ops/swe-images.py STATE_DIR [ROWS]

The payload of each row of ROWS (examples/swe/instances.jsonl) names a source package of the registry by version and
digest. Its image is STATE_DIR/images/swe/NAME: the base image, the packages that its tests need, and the unpacked
source as a repository of one commit in /testbed. STATE_DIR/images/swe/images.json maps rows to images; PRORL_SWE_IMAGES
names it to workers.
What is complete is kept. Files are hard links of the base image's, so an image takes little room.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MAPPING = "PRORL_SWE_IMAGES"
ROWS = ROOT / "examples" / "swe" / "instances.jsonl"
ACTIVATE = """\
export CONDA_DEFAULT_ENV="$1" CONDA_PREFIX="/opt/miniconda3/envs/$1" FROM_ACTIVATE=1
export PATH="$CONDA_PREFIX/bin:$PATH"
"""
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "swe", "EMAIL": "swe@localhost", "DATE": "2000-01-01T00:00:00Z"}.items()
}


def main() -> None:
    """Builds what is missing, and says where it is."""
    state = Path(sys.argv[1]).resolve()
    file = Path(sys.argv[2] if len(sys.argv) > 2 else ROWS)
    rows = [json.loads(line)["payload"] for line in file.read_text().splitlines()]
    base, images = state / "images" / "base", state / "images" / "swe"
    if not base.is_dir():
        sys.exit(f"there is no {base}: run `make sandbox-tools` first")
    images.mkdir(exist_ok=True, mode=0o755)
    packages = [package for row in rows for package in row["environment"]["packages"]]
    recipe = hashlib.sha256(Path(__file__).read_bytes() + (base.parent / ".complete").read_bytes())
    for row in rows:
        environment = json.dumps(row["environment"], sort_keys=True).encode()
        wanted = hashlib.sha256(recipe.digest() + environment).hexdigest()[:16]
        image = images / name_of(row["instance_id"])
        if not (image / ".complete").is_file() or (image / ".complete").read_text() != wanted:
            build(image, base, row["environment"], layer(images, base, sorted(set(packages))))
            (image / ".complete").write_text(wanted)
    mapping = {row["instance_id"]: f"{images}/{name_of(row['instance_id'])}" for row in rows}
    (images / "images.json").write_text(json.dumps(mapping, indent=1) + "\n")
    print(
        f"{len(rows)} images; `up` finds them in its state directory, other workers by {MAPPING}={images}/images.json"
    )


def name_of(instance_id: str) -> str:
    return instance_id.replace("__", "_s_").lower()


def layer(images: Path, base: Path, packages: list[str]) -> Path:
    """The directory that the tests' packages are installed in, once for all images."""
    target = images / f".packages-{hashlib.sha256(repr(packages).encode()).hexdigest()[:16]}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=images) as work:
            install(Path(work, "packages"), python_of(base), packages)
            Path(work, "packages").rename(target)
    return target


def install(target: Path, version: str, packages: list[str]) -> None:
    """Wheels for the image's Python, whatever runs this."""
    wanted = ["--target", str(target), "--python-version", version, *packages]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-warn-conflicts", "--only-binary", ":all:", *wanted],
        check=True,
    )
    subprocess.run(["chmod", "-R", "a+rX", str(target)], check=True)


def python_of(base: Path) -> str:
    return (base / "usr/bin/python3").readlink().name.removeprefix("python")


def build(image: Path, base: Path, environment: dict[str, Any], packages: Path) -> None:
    """A new image under its final name, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=image.parent) as name:
        work = Path(name)
        made = work / "image"
        subprocess.run(["cp", "-al", str(base), str(made)], check=True)
        site = made / f"usr/local/lib/python{python_of(base)}/dist-packages"
        subprocess.run(["cp", "-aln", f"{packages}/.", str(site)], check=True)
        for own in environment.get("own", ()):  # what the repository is, and the tests' packages have, too
            for path in (*site.glob(own), *site.glob(f"{own}-*.dist-info")):
                shutil.rmtree(path)
        source = unpacked(work, environment)
        left_out = shutil.ignore_patterns(*environment.get("leave_out", ()))
        shutil.copytree(source, made / "testbed", symlinks=True, ignore=left_out)
        if environment.get("copied"):  # as `pip install .` leaves it: the tests see a change once it is installed again
            shutil.copytree(source / environment["path"] / environment["copied"], site / environment["copied"])
        else:
            (site / "testbed.pth").write_text(os.path.normpath(f"/testbed/{environment['path']}") + "\n")
        if environment.get("conda"):
            conda(made)
        package, version = environment["sdist"].split("==")
        about = site / f"{package.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        shutil.copy(source / "PKG-INFO", about / "METADATA")
        commit(made / "testbed", environment.get("tag"))
        for place in (made, made / "testbed"):
            place.chmod(0o755)
        subprocess.run(["chmod", "-R", "a+rX", str(made / "testbed"), str(about)], check=True)
        if image.exists():
            image.rename(work / "former")
        made.rename(image)


def conda(image: Path) -> None:
    """A stand-in for conda and its environment `testbed`, with the paths and the command of SWE-bench's images."""
    prefix = image / "opt/miniconda3"
    for place in (prefix / "bin", prefix / "envs/testbed/bin"):
        place.mkdir(parents=True)
    (prefix / "bin/activate").write_text(ACTIVATE)
    for name in ("python", "python3"):
        (prefix / "envs/testbed/bin" / name).symlink_to("/usr/bin/python3")


def unpacked(work: Path, environment: dict[str, Any]) -> Path:
    """The source of the package, after its digest was compared."""
    requirement = work / "requirement"
    requirement.write_text(f"{environment['sdist']} --hash=sha256:{environment['sha256']}\n")
    get = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
    subprocess.run([*get, "-d", str(work), "-r", str(requirement)], check=True)
    with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
        archive.extractall(work / "source", filter="data")
    return next((work / "source").iterdir())


def commit(directory: Path, tag: str | None) -> None:
    """One commit that has the same name wherever it is made. A build may read its version from the tag."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        **IDENTITY,
    }
    for words in ("init -q -b main", "add -A -f", "commit -q -m source", *([f"tag {tag}"] if tag else [])):
        subprocess.run(["git", "-C", str(directory), *words.split()], check=True, env=environment)


if __name__ == "__main__":
    main()
