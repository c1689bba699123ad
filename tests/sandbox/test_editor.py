"""The file editor, the same in every kind of sandbox."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandbox.protocol import EditorCommand, EditorResult, Sandbox
from tests.sandbox.conftest import EVERYWHERE

Edit = Callable[..., Awaitable[EditorResult]]
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", EVERYWHERE, indirect=True)]


@pytest.fixture
async def place(sandbox: Sandbox) -> str:
    return (await sandbox.run(["pwd"])).stdout.decode().strip()


@pytest.fixture
def edit(sandbox: Sandbox, place: str) -> Edit:
    async def call(command: str, path: str = "a.txt", **options: Any) -> EditorResult:
        return await sandbox.edit(EditorCommand(command=command, path=f"{place}/{path}", **options))

    return call


async def test_a_file_is_created_once(sandbox: Sandbox, edit: Edit, place: str) -> None:
    assert (await edit("create", "new/a.txt", file_text="one\n")).ok
    assert await sandbox.read_file("new/a.txt") == b"one\n"
    refused = await edit("create", "new/a.txt", file_text="two\n")
    assert (refused.ok, "exists already" in refused.output) == (False, True)


async def test_view_numbers_lines_like_cat(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.txt", b"one\ntwo\nthree")
    assert "     1\tone\n     2\ttwo\n     3\tthree" in (await edit("view")).output


async def test_view_shows_a_range(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.txt", b"".join(b"line %d\n" % n for n in range(1, 21)))
    output = (await edit("view", view_range=(5, 6))).output
    assert output.endswith("     5\tline 5\n     6\tline 6\n")
    assert "    20\tline 20" in (await edit("view", view_range=(19, -1))).output
    assert not (await edit("view", view_range=(0, 3))).ok
    assert not (await edit("view", view_range=(9, 3))).ok


async def test_view_lists_directories_two_levels_deep(sandbox: Sandbox, edit: Edit, place: str) -> None:
    await sandbox.bash("mkdir -p d/one/two/three d/.hidden; touch d/file d/one/inner d/one/two/deep")
    lines = (await edit("view", "d")).output.splitlines()
    expected = [f"{place}/d/", f"{place}/d/file", f"{place}/d/one/", f"{place}/d/one/inner", f"{place}/d/one/two/"]
    assert [line for line in lines if line.startswith("/")] == expected


async def test_a_replacement_shows_its_surroundings(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.txt", b"".join(b"line %d\n" % n for n in range(1, 21)))
    result = await edit("str_replace", old_str="line 10\n", new_str="ten\nten and a half\n")
    assert result.ok
    assert "    10\tten\n    11\tten and a half\n    12\tline 11" in result.output
    assert b"line 9\nten\nten and a half\nline 11\n" in await sandbox.read_file("a.txt")


async def test_a_text_that_is_missing_or_not_unique_is_not_replaced(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.txt", b"same\nother\nsame\n")
    missing = await edit("str_replace", old_str="none", new_str="x")
    double = await edit("str_replace", old_str="same", new_str="x")
    assert (missing.ok, "did not appear verbatim" in missing.output) == (False, True)
    assert (double.ok, "2 times" in double.output, "[1, 3]" in double.output) == (False, True, True)
    assert await sandbox.read_file("a.txt") == b"same\nother\nsame\n"


@pytest.mark.parametrize(
    ("line", "expected"), [(0, b"new\none\ntwo\n"), (1, b"one\nnew\ntwo\n"), (2, b"one\ntwo\nnew\n")]
)
async def test_lines_are_inserted_after_a_line(sandbox: Sandbox, edit: Edit, line: int, expected: bytes) -> None:
    await sandbox.write_file("a.txt", b"one\ntwo\n")
    assert (await edit("insert", insert_line=line, new_str="new")).ok
    assert await sandbox.read_file("a.txt") == expected


async def test_an_insert_after_the_end_is_refused(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.txt", b"one\n")
    result = await edit("insert", insert_line=5, new_str="x")
    assert (result.ok, "[0, 1]" in result.output) == (False, True)


async def test_edits_are_undone_one_by_one_down_to_the_creation(sandbox: Sandbox, edit: Edit) -> None:
    await edit("create", file_text="one\n")
    await edit("str_replace", old_str="one", new_str="two")
    await edit("insert", insert_line=1, new_str="three")
    assert (await edit("undo_edit")).ok
    assert await sandbox.read_file("a.txt") == b"two\n"
    assert (await edit("undo_edit")).ok
    assert await sandbox.read_file("a.txt") == b"one\n"
    assert (await edit("undo_edit")).ok
    assert not (await edit("view")).ok
    assert not (await edit("undo_edit")).ok


async def test_bytes_that_are_no_text_survive_an_edit(sandbox: Sandbox, edit: Edit) -> None:
    await sandbox.write_file("a.txt", b"\xff\xfe one\r\ntwo\n")
    assert (await edit("str_replace", old_str="one", new_str="1")).ok
    assert await sandbox.read_file("a.txt") == b"\xff\xfe 1\r\ntwo\n"


async def test_mistakes_are_answered_with_advice(sandbox: Sandbox, edit: Edit) -> None:
    for command, path in (("view", "a/relative"), ("brew", "/tmp"), ("view", "/no/such/file")):
        result = await sandbox.edit(EditorCommand(command=command, path=path))
        assert not result.ok
        assert result.output


async def test_the_edits_of_one_file_are_undone_past_those_of_others(sandbox: Sandbox, edit: Edit) -> None:
    for name in ("a", "b"):
        await edit("create", name, file_text="one\n")
        await edit("str_replace", name, old_str="one", new_str="two")
    assert (await edit("undo_edit", "a")).ok
    assert (await sandbox.read_file("a"), await sandbox.read_file("b")) == (b"one\n", b"two\n")


async def test_what_undoing_remembers_is_bounded(sandbox: Sandbox, edit: Edit) -> None:
    """The newest edits stay undoable, the oldest of very large files do not."""
    await sandbox.write_file("a.txt", b"0" + b"x" * (20 << 20))
    for number in range(5):
        assert (await edit("str_replace", old_str=f"{number}xx", new_str=f"{number + 1}xx")).ok
    undone = [(await edit("undo_edit")).ok for _ in range(5)]
    assert undone == [True, True, True, False, False]
