"""What a sandbox shares with its host when it asks for it, and the parts of its image that it may write to."""

import asyncio
import os
from pathlib import Path

import pytest

from sandbox.errors import SandboxError
from sandbox.isolators import socket_dir
from sandbox.lifetime import label
from sandbox.protocol import SandboxProvider
from tests.sandbox.conftest import ISOLATED, Create, require_apptainer

pytestmark = pytest.mark.anyio
PLACE = "/usr/share/base-files"
CLIENT = """
import socket
with socket.socket(socket.AF_UNIX) as client:
    client.connect("/opt/prorl-door/socket")
    client.sendall(b"from inside")
    print(client.recv(64).decode())
"""


@pytest.fixture(params=ISOLATED)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "apptainer":
        require_apptainer()
    return str(request.param)


async def test_a_program_inside_reaches_a_server_of_the_host_through_the_door(create: Create) -> None:
    box = await create(door=True)
    assert box.handle.door
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(64))
        writer.write(b"from outside")
        writer.close()

    with label.listen(Path(box.handle.door)) as sock:
        (Path(box.handle.door) / label.SOCKET).chmod(0o666)
        async with await asyncio.start_unix_server(answer, sock=sock):
            done = await box.run(["python3", "-c", CLIENT], timeout_s=60)
    assert (done.stdout, heard) == (b"from outside\n", [b"from inside"]), done.stderr


async def test_the_door_is_read_only_inside_and_goes_with_the_sandbox(create: Create) -> None:
    box = await create(door=True)
    assert (await box.run(["touch", f"{socket_dir.INSIDE}/x"])).exit_code != 0
    # Other users of the machine cannot list the names, which are what keeps them from its sockets.
    door = Path(box.handle.door)
    assert [place.stat().st_mode & 0o777 for place in (door.parent, door)] == [0o711, 0o711]
    await box.close()
    assert not os.path.exists(box.handle.door)  # noqa: ASYNC240, PTH110


async def test_a_directory_of_the_image_can_be_written_to_and_the_image_stays(create: Create) -> None:
    box, other = await create(writable=[PLACE]), await create(owner="job:2")
    before = await box.run(["ls", PLACE])
    assert before.stdout
    assert (await box.run(["touch", f"{PLACE}/mine"])).exit_code == 0
    assert (await other.run(["ls", PLACE])).stdout == before.stdout
    assert (await other.run(["touch", f"{PLACE}/mine"])).exit_code != 0


async def test_a_writable_directory_that_the_image_lacks_is_refused(create: Create, provider: SandboxProvider) -> None:
    with pytest.raises(SandboxError, match="has no directory /usr/nowhere"):
        await create(writable=["/usr/nowhere"])
