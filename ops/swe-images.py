# ruff: noqa: INP001  (a program, not a module)
"""Builds the images of software engineering tasks from the package registry, on top of the sandboxes' base image.

    python ops/swe-images.py STATE_DIR [ROWS]

The payload of each row of ROWS (examples/swe/instances.jsonl) names a source package of the registry by version and
digest. Its image is STATE_DIR/images/swe/NAME: the base image, the packages that its tests need, and the unpacked
source as a repository of one commit in /testbed. STATE_DIR/images/swe/images.json maps rows to images; PRORL_SWE_IMAGES
names it to workers.
A row may name another Python than the base image's. That is copied into the image as conda's environment `testbed` from
an installation of pyenv's or uv's on this machine; a row whose Python is not there is left out, and named.
What is complete is kept. Files are hard links of the base image's, so an image takes little room.
"""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MAPPING = "PRORL_SWE_IMAGES"
ROWS = ROOT / "examples" / "swe" / "instances.jsonl"
CONDA = "opt/miniconda3"
ACTIVATE = """\
export CONDA_DEFAULT_ENV="$1" CONDA_PREFIX="/opt/miniconda3/envs/$1" FROM_ACTIVATE=1
export PATH="$CONDA_PREFIX/bin:$PATH"
"""
IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "swe", "EMAIL": "swe@localhost", "DATE": "2000-01-01T00:00:00Z"}.items()
}
NOT_OF_PYTHON = ("test", "tests", "idlelib", "tkinter", "turtledemo", "config-*", "*.a", "__pycache__", "site-packages")
FOR_BUILDS = ("pip", "pip-*", "setuptools*", "pkg_resources", "_distutils_hack", "distutils-precedence.pth", "wheel*")
BACKENDS = ("setuptools/build_meta", "flit_core/buildapi", "hatchling/build", "poetry/core/masonry/api")
BACKEND = """
import email, pathlib, shutil, sys

def get_requires_for_build_wheel(settings=None):
    return []

def prepare_metadata_for_build_wheel(directory, settings=None):
    about = email.message_from_bytes(pathlib.Path("PKG-INFO").read_bytes())
    place = pathlib.Path(directory, "{}-{}.dist-info".format(about["Name"].replace("-", "_"), about["Version"]))
    place.mkdir()
    shutil.copy("PKG-INFO", place / "METADATA")
    return place.name

__legacy__ = sys.modules[__name__]
"""


def main() -> None:
    """Builds what is missing, and says where it is."""
    state = Path(sys.argv[1]).resolve()
    file = Path(sys.argv[2] if len(sys.argv) > 2 else ROWS)
    rows = [json.loads(line)["payload"] for line in file.read_text().splitlines()]
    base, images = state / "images" / "base", state / "images" / "swe"
    if not base.is_dir():
        sys.exit(f"there is no {base}: run `make sandbox-tools` first")
    images.mkdir(exist_ok=True, mode=0o755)
    shared = sorted({package for row in rows for package in packages_of(row) if not python_of(row)})
    mapping = built_before(images)
    for row in rows:
        image = images / name_of(row["instance_id"])
        mapping.pop(row["instance_id"], None)
        if missing := lacking(row):
            print(missing)
            continue
        wanted = recipe(base, row)
        if not (image / ".complete").is_file() or (image / ".complete").read_text() != wanted:
            build(image, base, row["environment"], packages_of(row) if python_of(row) else shared)
            (image / ".complete").write_text(wanted)
        mapping[row["instance_id"]] = str(image)
    (images / "images.json").write_text(json.dumps(mapping, indent=1) + "\n")
    made = sum(row["instance_id"] in mapping for row in rows)
    print(
        f"{made} of {len(rows)} images; `up` finds them in its state directory, other workers by "
        f"{MAPPING}={images}/images.json"
    )


def built_before(images: Path) -> dict[str, str]:
    """Those of other files of rows, if they are still there."""
    file = images / "images.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    return {name: image for name, image in known.items() if Path(image, ".complete").is_file()}


def recipe(base: Path, row: dict[str, Any]) -> str:
    """A digest of everything that an image is made of."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + (base.parent / ".complete").read_bytes())
    digest.update(f"{tree_of(python_of(row))}".encode() if python_of(row) else b"")
    digest.update(json.dumps(row["environment"], sort_keys=True).encode())
    return digest.hexdigest()[:16]


def packages_of(row: dict[str, Any]) -> list[str]:
    packages: list[str] = row["environment"]["packages"]
    return packages


def python_of(row: dict[str, Any]) -> str:
    """A version like 3.9, or nothing where the base image's Python serves."""
    return str(row["environment"].get("python", ""))


def lacking(row: dict[str, Any]) -> str | None:
    version = python_of(row)
    if not version or tree_of(version):
        return None
    return f"{row['instance_id']} is left out: it needs Python {version}; get it with `pyenv install {version}`"


@functools.cache
def tree_of(version: str) -> Path | None:
    """The newest installation of a version by pyenv or uv."""
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv", "versions")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    found = [*pyenv.glob(f"{version}.*"), *uv.glob(f"cpython-{version}.*")]
    usable = [tree for tree in found if (tree / "bin" / f"python{version}").is_file()]
    return max(
        usable, key=lambda tree: int("".join(filter(str.isdigit, tree.name.split(".")[2][:2])) or 0), default=None
    )


def name_of(instance_id: str) -> str:
    return instance_id.replace("__", "_s_").lower()


def layer(images: Path, version: str, program: list[str], packages: list[str]) -> Path:
    """The directory that the tests' packages are installed in, once for all images of a version of Python."""
    target = images / f".packages-{hashlib.sha256(repr((version, packages)).encode()).hexdigest()[:16]}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=images) as work:
            wanted = ["--target", str(Path(work, "packages")), "--only-binary", ":all:", *packages]
            subprocess.run([*program, "-m", "pip", "install", "-q", "--no-warn-conflicts", *wanted], check=True)
            subprocess.run(["chmod", "-R", "a+rX", work], check=True)
            Path(work, "packages").rename(target)
    return target


def debian_python(base: Path) -> str:
    return (base / "usr/bin/python3").readlink().name.removeprefix("python")


def program_of(environment: dict[str, Any]) -> list[str]:
    """The Python that fetches the source, and builds what its metadata needs."""
    version = environment.get("python", "")
    tree = tree_of(version) if version else None
    return [str(tree / "bin" / f"python{version}")] if tree is not None else [sys.executable]


def build(
    image: Path, base: Path, environment: dict[str, Any], packages: list[str], *, beside: Path | None = None
) -> None:
    """A new image under its final name, whole or not at all. What images share is in the directory `beside`."""
    version, shared = environment.get("python", ""), beside or image.parent
    program = program_of(environment)
    with tempfile.TemporaryDirectory(dir=shared) as name:
        work = Path(name)
        made = work / "image"
        subprocess.run(["cp", "-al", str(base), str(made)], check=True)
        if version:
            tree = tree_of(version)
            assert tree is not None
            added = layer(shared, version, program, packages)
            site = made / CONDA / f"envs/testbed/lib/python{version}/site-packages"
            subprocess.run(["cp", "-al", f"{interpreter(shared, tree, version)}/.", str(envs(made))], check=True)
        else:
            version = debian_python(base)
            added = layer(shared, version, [*program, "-W", "ignore"], ["--python-version", version, *packages])
            site = made / f"usr/local/lib/python{version}/dist-packages"
        subprocess.run(["cp", "-aln", f"{added}/.", str(site)], check=True)
        repository(work, made, site, environment, program)
        if image.exists():
            image.rename(work / "former")
        made.rename(image)


def repository(work: Path, made: Path, site: Path, environment: dict[str, Any], program: list[str]) -> None:
    """The source in /testbed, and what makes it importable."""
    for own in environment.get("own", ()):  # what the repository is, and the tests' packages have, too
        for path in (*site.glob(own), *site.glob(f"{own}-*.dist-info")):
            shutil.rmtree(path)
    source = unpacked(work, environment)
    left_out = shutil.ignore_patterns(*environment.get("leave_out", ()))
    shutil.copytree(source, made / "testbed", symlinks=True, ignore=left_out)
    if environment.get("wheel"):
        lay_compiled(work, environment, program, made / "testbed" / environment["path"])
    if environment.get("copied"):  # as `pip install .` leaves it: the tests see a change once it is installed again
        shutil.copytree(source / environment["path"] / environment["copied"], site / environment["copied"])
    else:
        (site / "testbed.pth").write_text(os.path.normpath(f"/testbed/{environment['path']}") + "\n")
    if environment.get("conda") or environment.get("python"):
        conda(made)
    package, version = environment["sdist"].split("==")
    about = site / f"{package.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    shutil.copy(source / "PKG-INFO", about / "METADATA")
    commit(made / "testbed", environment.get("tag"))
    for place in (made, made / "testbed"):
        place.chmod(0o755)
    subprocess.run(["chmod", "-R", "a+rX", str(made / "testbed"), str(about)], check=True)


def envs(image: Path) -> Path:
    place = image / CONDA / "envs/testbed"
    place.mkdir(parents=True, exist_ok=True)
    return place


def interpreter(images: Path, tree: Path, version: str) -> Path:
    """A copy that runs wherever it is put: its library is found beside it. Once for all images."""
    target = images / f".python-{tree.name}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=images) as work:
            made = Path(work, "python")
            library = f"lib/python{version}"
            left_out = shutil.ignore_patterns(*NOT_OF_PYTHON)
            shutil.copytree(tree / library, made / library, symlinks=True, ignore=left_out)
            (made / library / "site-packages").mkdir()
            for pattern in FOR_BUILDS:
                for path in (tree / library / "site-packages").glob(pattern):
                    subprocess.run(["cp", "-a", str(path), str(made / library / "site-packages")], check=True)
            (made / "bin").mkdir()
            for file in (*(tree / "lib").glob("libpython*.so*"), tree / f"bin/python{version}"):
                copy = made / file.relative_to(tree)
                shutil.copy(file, copy, follow_symlinks=False)
                if not file.is_symlink():
                    copy.write_bytes(without_path(file.read_bytes(), f"{tree}/lib"))
            for name in ("python", "python3"):
                (made / "bin" / name).symlink_to(f"python{version}")
            subprocess.run(["chmod", "-R", "a+rX", work], check=True)
            made.rename(target)
    return target


def without_path(program: bytes, path: str) -> bytes:
    """Instead of an absolute path, where programs look for their library: the directory beside their own."""
    absolute, relative = f"\0{path}\0".encode(), b"\0$ORIGIN/../lib"
    return program.replace(absolute, relative.ljust(len(absolute), b"\0"))


def conda(image: Path) -> None:
    """A stand-in for conda and its environment `testbed`, with the paths and the command of SWE-bench's images."""
    prefix = image / CONDA
    for place in (prefix / "bin", envs(image) / "bin"):
        place.mkdir(exist_ok=True)
    (prefix / "bin/activate").write_text(ACTIVATE)
    for name in ("python", "python3"):
        if not (envs(image) / "bin" / name).exists():
            (envs(image) / "bin" / name).symlink_to("/usr/bin/python3")


def fetched(work: Path, program: list[str], requirement: str, digest: str, *form: str) -> Path:
    """A file of the package, after its digest was compared."""
    target = work / f"fetched-{digest[:16]}"
    target.mkdir()
    (target / "requirement").write_text(f"{requirement} --hash=sha256:{digest}\n")
    get = [*program, "-m", "pip", "download", "-q", "--no-deps", *form, "--require-hashes", "-d", str(target)]
    given = {**os.environ, "PYTHONPATH": str(stand_ins(target))}
    subprocess.run([*get, "-r", str(target / "requirement")], check=True, env=given)
    return next(file for file in target.iterdir() if file.name.endswith((".tar.gz", ".whl")))


def stand_ins(target: Path) -> Path:
    """Build backends that answer pip with the source's own PKG-INFO.

    pip asks a source for its metadata before it gives it; real backends compile for minutes, or are too new.
    """
    for name in BACKENDS:
        module = target / "backends" / f"{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(BACKEND)
        for package in module.relative_to(target / "backends").parents[:-1]:
            (target / "backends" / package / "__init__.py").touch()
    return target / "backends"


def unpacked(work: Path, environment: dict[str, Any]) -> Path:
    """The source of the package."""
    form = ["--no-binary", ":all:", "--no-build-isolation", "--ignore-requires-python"]
    with tarfile.open(fetched(work, [sys.executable], environment["sdist"], environment["sha256"], *form)) as archive:
        archive.extractall(work / "source", filter="data")
    return next((work / "source").iterdir())


def lay_compiled(work: Path, environment: dict[str, Any], program: list[str], root: Path) -> None:
    """What the wheel of the same release has and the source has not: compiled modules, and what builds generate."""
    file = fetched(work, program, environment["sdist"], environment["wheel"], "--only-binary", ":all:")
    with zipfile.ZipFile(file) as wheel:
        for name in wheel.namelist():
            if not (root / name).exists() and ".dist-info/" not in name:
                wheel.extract(name, root)


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
