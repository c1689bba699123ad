"""The Dockerfiles that can be built, the lines that cannot, and the file that Apptainer gets."""

from pathlib import Path

import pytest

from workers.handlers.harbor.dockerfile import CopyStep, RunStep, Unbuildable, read
from workers.handlers.harbor.recipe import definition, digest, script

WHOLE = r"""
# syntax=docker/dockerfile:1
ARG TAG=12
FROM --platform=linux/amd64 debian:${TAG}
LABEL a=b
ENV OLD way of it
ENV A=1 B="two words" C=${A:-3}
ARG TAG
ARG PLACE=srv
ENV PATH=/opt/bin:$PATH D=${NONE:-${B}} E=${A:+yes} F='$A' G=\$A H="\$A"
WORKDIR /$PLACE
WORKDIR inner/../data
COPY --chmod=755 one.sh two*.sh ./
COPY ["with space", "to here"]
RUN echo \
  # between
  $A && \
  echo done
RUN ["python3", "-c", "print('a b')"]
USER nobody
ENTRYPOINT ["x"]
"""
OUTSIDE = {
    "FROM a\nFROM b": "line 2: a second FROM",
    "FROM scratch": "line 1: FROM must name an image",
    "FROM --platform=linux/arm64 a": "the platform linux/arm64",
    "RUN x": "line 1: RUN stands before FROM",
    "FROM a\n\nCOPY --from=b x y": "line 3: --from is not supported",
    "FROM a\nRUN --mount=type=cache,target=/x y": "line 2: RUN --mount=type=cache,target=/x is not supported",
    "FROM a\nRUN <<EOF\nx\nEOF": "line 2: here-documents",
    "FROM a\nADD https://example.org/x /x": "addresses and archives",
    "FROM a\nADD x.tar.gz /x": "addresses and archives",
    "FROM a\nCOPY ../x /x": "leads out of environment/",
    'FROM a\nSHELL ["bash"]': "line 2: SHELL is not supported",
    "FROM a\nONBUILD RUN x": "line 2: ONBUILD is not supported",
    "FROM a\nENV A=$CONDA": "the variable CONDA is set nowhere in it",
    "FROM a\nENV A='x": "quotes do not match",
    "FROM a\nCOPY 'x y": "line 2: No closing quotation",
    "FROM a\nCOPY": "line 2: COPY needs a source and a target",
    "# escape=`\nFROM a": "another escape character",
    "# nothing": "has no FROM",
}  # fmt: skip


def test_the_subset_is_read_with_its_variables_filled_in() -> None:
    read_file = read(WHOLE)
    assert (read_file.image, read_file.workdir) == ("debian:12", "/srv/data")
    assert read_file.environment == {
        "OLD": "way of it", "A": "1", "B": "two words", "C": "3", "D": "two words", "E": "yes",
        "F": "$A", "G": "$A", "H": "$A",
        "PATH": "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }  # fmt: skip
    copies = [step for step in read_file.steps if isinstance(step, CopyStep)]
    assert copies == [
        CopyStep(["one.sh", "two*.sh"], "/srv/data/", "755"),
        CopyStep(["with space"], "/srv/data/to here", None),
    ]
    first, second = (step for step in read_file.steps if isinstance(step, RunStep))
    assert first.command.split() == ["echo", "$A", "&&", "echo", "done"]
    assert second.command == """python3 -c 'print('"'"'a b'"'"')'"""
    assert (first.workdir, first.environment["TAG"]) == ("/srv/data", "12")


@pytest.mark.parametrize("text", OUTSIDE)
def test_a_line_outside_the_subset_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(Unbuildable) as refused:
        read(text)
    assert OUTSIDE[text] in str(refused.value)
    assert "give [environment].docker_image" in str(refused.value)


def test_no_line_of_a_dockerfile_is_in_the_file_that_apptainer_reads() -> None:
    """Some sections of that file run on the host."""
    hostile = read('FROM a\nRUN ["sh", "-c", "x\\n%setup\\ntouch /owned"]\nENV A="{{ b }}"\n')
    assert "%setup" not in definition("docker", hostile.image, Path("/context"))
    assert "\n%setup\n" in script(hostile)


def test_a_definition_names_its_base_its_context_and_its_script() -> None:
    assert definition("docker", "debian:12", Path("/c")).splitlines() == [
        "Bootstrap: docker", "From: debian:12", "%files", "    /c /.prorl-context",
        "%post", "    sh /.prorl-context/steps.sh", "    cd / && rm -rf /.prorl-context",
    ]  # fmt: skip


def test_an_image_is_named_by_all_that_goes_into_it(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a\nCOPY x .\n")
    (tmp_path / "x").write_text("1")
    first = digest(tmp_path)
    assert digest(tmp_path) == first
    (tmp_path / "x").chmod(0o755)
    executable = digest(tmp_path)
    (tmp_path / "x").write_text("2")
    assert len({first, executable, digest(tmp_path)}) == 3


def test_variables_that_double_are_refused_before_they_fill_the_memory() -> None:
    with pytest.raises(Unbuildable, match="line 20: the variables of a text come to more than 131072 characters"):
        read("FROM a\nENV A=x\n" + "ENV A=$A$A\n" * 60)


def test_a_shells_test_is_no_list_and_an_empty_line_ends_nothing() -> None:
    steps = read("FROM a\nRUN [ -d /x ] || \\\n\n mkdir /x\n").steps
    assert [step.command.split() for step in steps if isinstance(step, RunStep)] == [
        ["[", "-d", "/x", "]", "||", "mkdir", "/x"]
    ]


@pytest.mark.parametrize("name", [".dockerignore", "link", "directory"])
def test_what_a_context_may_not_have_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a\n")
    if name == "link":
        (tmp_path / "link").symlink_to("/etc/passwd")
    elif name == "directory":
        (tmp_path / name).symlink_to("/etc")
    else:
        (tmp_path / name).write_text("x")
    with pytest.raises(Unbuildable, match=name):
        digest(tmp_path)
