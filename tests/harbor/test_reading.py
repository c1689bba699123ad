"""A task's directory becomes a row, or every reason why it cannot is named."""

import json
from pathlib import Path

import pytest

from prorl_mq.schema.task_schema import split
from tests.harbor.tasks import toml, write
from workers.handlers.harbor import dataset, files
from workers.handlers.harbor.__main__ import main
from workers.handlers.harbor.family import Harbor, told
from workers.handlers.harbor.reading import BadTask, read_task
from workers.handlers.harbor.row import row_of
from workers.handlers.rows import BadRow
from workers.rehearsal.stages import task_of


def hosts(table: str, listed: str) -> str:
    return toml(table, f'network_mode = "allowlist"\nallowed_hosts = [{listed}]')


REFUSED = {
    "an unknown table": (toml("extras", "a = 1"), "unknown field extras"),
    "an unknown field": (toml("agent", "timeout = 5"), "unknown field agent.timeout"),
    "an unknown field of a list": (toml("", 'artifacts = [{source = "/x", kind = "a"}]'), "artifacts[0].kind"),
    "a type": (toml("agent", 'timeout_sec = "soon"'), "Expected `float | null`, got `str`"),
    "a schema of tomorrow": (toml("", "").replace('"1.4"', '"2.0"'), "schema_version '2.0' is not known here"),
    "steps": (toml("", 'steps = [{name = "one"}]'), "tasks of several steps"),
    "a network": (toml("environment", 'network_mode = "public"'), "sandboxes have no network"),
    "an old network": (toml("environment", "allow_internet = true"), "environment.network_mode = 'public'"),
    "a network of the agent's": (toml("agent", 'network_mode = "public"'), "agent.network_mode"),
    "hosts of the verifier's, too": (
        hosts("environment", '"a.org"'), "reach a.org, and EVAL has no network",
    ),
    "hosts of the verifier's alone": (hosts("verifier", '"a.org"'), "the verifier may reach a.org"),
    "hosts of an environment of the verifier's": (
        toml("verifier.environment", 'docker_image = "a"\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]'),
        "the verifier may reach a.org",
    ),
    "a pattern": (hosts("agent", '"a.org", "*.b.org"'), "agent.allowed_hosts: '*.b.org': only exact names"),
    "an address": (hosts("agent", '"192.0.2.1"'), "agent.allowed_hosts: '192.0.2.1'"),
    "addresses": (hosts("agent", '"192.0.2.0/24"'), "agent.allowed_hosts: '192.0.2.0/24'"),
    "a new address": (hosts("agent", '"2001:db8::1"'), "agent.allowed_hosts: '2001:db8::1'"),
    "a port": (hosts("agent", '"a.org:8443"'), "agent.allowed_hosts: 'a.org:8443'"),
    "many hosts": (hosts("agent", ", ".join(f'"a{at}.org"' for at in range(65))), "a task lists at most 64 hosts"),
    "hosts without a mode": (toml("agent", "allowed_hosts = []"), "agent.allowed_hosts needs agent.network_mode"),
    "hosts in another mode": (
        toml("environment", 'network_mode = "no-network"\nallowed_hosts = ["a.org"]'),
        "environment.allowed_hosts needs",
    ),
    "a GPU": (toml("environment", "gpus = 1"), "environment.gpus: sandboxes have no GPU"),
    "a TPU": (toml("environment", 'tpu = {type = "v4", topology = "2x2"}'), "environment.tpu"),
    "Windows": (toml("environment", 'os = "Windows"'), "environment.os = 'windows'"),
    "MCP servers": (toml("environment", 'mcp_servers = [{name = "a", url = "b"}]'), "environment.mcp_servers"),
    "skills": (toml("environment", 'skills_dir = "/skills"'), "environment.skills_dir"),
    "a user": (toml("agent", 'user = "bob"'), "agent.user = 'bob'"),
    "a verifier's user": (toml("verifier", "user = 0"), "verifier.user = 0"),
    "no memory": (toml("environment", "memory_mb = 0"), "environment.memory_mb = 0: it must be above 0"),
    "two sizes": (toml("environment", 'memory = "2G"\nmemory_mb = 5'), "tell different sizes"),
    "an endless size": (toml("environment", 'storage = "infG"'), "environment.storage = 'infG' is no size"),
    "no time": (toml("agent", "timeout_sec = nan"), "agent.timeout_sec = nan: it must be a number of seconds above 0"),
    "an endless time": (toml("verifier", "timeout_sec = inf"), "verifier.timeout_sec = inf: it must be"),
    "a time before": (toml("verifier", 'collect = [{command = "x", timeout_sec = -1}]'), "collect[0].timeout_sec = -1"),
    "a pause of no length": (
        toml("environment", 'healthcheck = {command = "x", interval_sec = nan}'), "healthcheck.interval_sec = nan",
    ),
    "no size": (toml("environment", 'storage = "much"'), "environment.storage = 'much' is no size"),
    "a sidecar's artifact": (toml("", 'artifacts = [{source = "/d", service = "db"}]'), "the service 'db'"),
    "a relative artifact": (toml("", 'artifacts = ["out"]'), "must be an absolute path"),
    "a sidecar's command": (toml("verifier", 'collect = [{command = "x", service = "db"}]'), "for the service 'db'"),
    "an environment that is shared": (
        toml("verifier", 'environment_mode = "shared"\nenvironment = {docker_image = "a"}'), "contradicts"),
    "no variable": (toml("environment", 'env = {A = "${NOT_HERE}"}'), "environment.env.A wants the variable NOT_HERE"),
    "a place of the system": (toml("metadata.prorl_mq", 'writable = ["/etc"]'), "/etc holds what a sandbox"),
    "the whole image": (toml("", "").replace('"/srv"', '"/"'), "name a directory below"),
    "a place of the verifier's": (toml("metadata.prorl_mq", 'writable = ["/tests"]'), "a place of Harbor's own"),
    "no TOML": ("schema_version =", "task.toml cannot be read"),
    "much TOML": ("#" * (files.TASK_BYTES + 1), "task.toml has more than 8 MiB"),
    "a time without an end": (toml("verifier", "timeout_sec = 1e308"), "verifier.timeout_sec = 1e+308: it must be"),
    "a memory without an end": (toml("environment", f"memory_mb = {10**400}"), "environment.memory_mb"),
    "a way up": (toml("", "").replace('"/srv"', '"/srv/../etc"'), "must be a path without `..`"),
    "a way up to the tests": (toml("metadata.prorl_mq", 'writable = ["/srv/../tests"]'), "a path without `..`"),
    "a way up of the verifier's": (
        toml("verifier.environment", 'docker_image = "a"\nworkdir = "/a/../tests"'), "verifier.environment.workdir: ",
    ),
    "a place on two lines": (toml("", "").replace('"/srv"', '"/a\\nb"'), "and control characters"),
    "a name that is none of Harbor's": (toml("task", 'name = "a/b\\u0000"'), "it must be ORG/NAME of letters"),
    "a name that leads up": (toml("task", 'name = "a/b..c"'), "task.name = 'a/b..c'"),
    "a long name": (toml("task", f'name = "a/{"b" * 300}"'), "have 256 characters at most"),
}  # fmt: skip


def test_a_directory_whose_name_cannot_be_printed_is_refused_and_the_others_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "fine", {})
    write(tmp_path / "caf\udce9", {})
    assert main(["rows", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert [json.loads(line)["task_id"] for line in printed.out.splitlines()] == ["fine"]
    assert "must be printable" in printed.err


@pytest.mark.parametrize("case", REFUSED)
def test_each_wish_that_cannot_be_met_is_refused_by_name(tmp_path: Path, case: str) -> None:
    text, said = REFUSED[case]
    with pytest.raises(BadTask) as refused:
        read_task(write(tmp_path / "task", {"task.toml": text}))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("environment/docker-compose.yaml", "services beside the main container are not supported; start what they do"),
        ("tests/Dockerfile", "give [verifier.environment].docker_image"),
        ("trajectory.json", "a history before the task"),
    ],
)
def test_each_file_that_asks_for_more_is_refused_by_name(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(BadTask, match="task: ") as refused:
        read_task(write(tmp_path / "task", {name: "x"}))
    assert said in str(refused.value)


def test_all_problems_of_a_task_are_told_at_once(tmp_path: Path) -> None:
    wrong = toml("environment", "gpus = 2\nspeed = 9")
    with pytest.raises(BadTask) as refused:
        read_task(write(tmp_path / "task", {"task.toml": wrong, "instruction.md": ""}))
    assert len(refused.value.problems) == 3


def test_a_task_that_says_little_gets_harbors_defaults_and_no_network_is_asked_for(tmp_path: Path) -> None:
    task = read_task(write(tmp_path / "some-task", {}))
    assert (task.name, task.row.workdir, task.row.writable, task.row.empty) == (
        "some-task",
        "/srv",
        ["/srv"],
        ["/logs"],
    )
    assert (task.hidden.timeout_s, task.row.agent_timeout_s, task.row.memory_mb) == (600.0, None, None)


OFFLINE = '[verifier]\nnetwork_mode = "no-network"\n'


@pytest.mark.parametrize(
    ("text", "egress"),
    [
        (hosts("agent", '"PyPI.org.", "a.org", "a.org"'), ["pypi.org", "a.org"]),
        (hosts("environment", '"a.org"') + OFFLINE, ["a.org"]),
        (hosts("environment", '"a.org"') + OFFLINE
         + '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["b.org"]\n', ["b.org"]),
        (hosts("environment", '"a.org"') + OFFLINE
         + '[agent]\nnetwork_mode = "no-network"\n', []),
        (hosts("agent", ""), []),
    ],
    ids=["the agent's", "the environment's", "the agent's before it", "the agent without", "none"],
)  # fmt: skip
def test_hosts_of_the_agents_are_the_tasks_egress_and_it_is_told(tmp_path: Path, text: str, egress: list[str]) -> None:
    task = read_task(write(tmp_path / "task", {"task.toml": text}))
    assert dataset.line(task).get("egress", []) == egress
    said = told(task.row, egress)
    assert ("There is no network." in said, *(each in said for each in egress)) == (not egress, *[True] * len(egress))


def test_old_spellings_are_read(tmp_path: Path) -> None:
    old = 'version = "1.0"\n[environment]\ndocker_image = "a"\nworkdir = "/srv"\nmemory = "2G"\nstorage = "512M"\n'
    task = read_task(write(tmp_path / "task", {"task.toml": old + "allow_internet = false\n"}))
    assert (task.row.memory_mb, task.row.storage_mb, task.config.schema_version) == (2048, 512, "1.0")
    assert task.config.environment.network_mode == "no-network"


def test_templates_are_filled_from_who_makes_the_rows_and_only_as_whole_values(tmp_path: Path) -> None:
    text = toml("environment.env", 'A = "${HERE}"\nB = "${AWAY:-other}"\nC = "x${HERE}"\nD = "${HERE:-other}"')
    task = read_task(write(tmp_path / "task", {"task.toml": text}), {"HERE": "1"})
    assert task.row.environment == {"A": "1", "B": "other", "C": "x${HERE}", "D": "1"}


def test_canary_lines_in_front_of_an_instruction_are_not_shown(tmp_path: Path) -> None:
    text = "<!-- a canary GUID -->\n# another CANARY\n\nDo it.\n# canary of the task\n"
    assert (
        read_task(write(tmp_path / "task", {"instruction.md": text})).row.instruction
        == "Do it.\n# canary of the task\n"
    )


def test_neither_tests_nor_solution_are_in_what_run_sees(tmp_path: Path) -> None:
    directory = write(tmp_path / "task", {"tests/answers.txt": "forty-two", "solution/note": "fortytwo"})
    line = dataset.line(read_task(directory))
    opened, sealed = split(Harbor.schema, task_of(Harbor(), {**line["payload"], **line["sealed"]}))
    assert "forty" not in json.dumps(opened)
    assert "test.sh" not in json.dumps(opened)
    assert {"verifier", "solution"} == sealed.keys()


def test_a_row_names_the_image_that_is_to_be_fetched_and_none_that_is_built_or_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRORL_SANDBOX_TOOLS", str(tmp_path))
    (tmp_path / "images" / "harbor").mkdir(parents=True)
    (tmp_path / "images" / "harbor" / "images.json").write_text(
        '{"here:1": "/here", "far:1": "docker://mirror/{name}"}'
    )
    payload = {"instruction": "x", "workdir": "/srv"}
    for name, wanted in (
        ("docker://a/b:1", ["docker://a/b:1"]), ("docker://far:1", ["docker://mirror/far:1"]),
        ("docker://here:1", []), ("built:0123", []),
    ):  # fmt: skip
        assert Harbor().images({**payload, "image": name}) == wanted


def test_files_that_are_no_text_come_back_as_they_were(tmp_path: Path) -> None:
    directory = write(tmp_path / "task", {"tests/inner/a.txt": "ä\r\n"})
    (directory / "tests" / "data.bin").write_bytes(bytes(range(256)))
    packed = {file.path: file for file in files.packed(directory / "tests", directory)}
    assert packed["data.bin"].data() == bytes(range(256))
    assert packed["inner/a.txt"].text == "ä\r\n"
    assert packed["test.sh"].mode == 0o755


def test_a_link_out_of_the_task_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "task", {})
    (tmp_path / "secret").write_text("x")
    (directory / "tests" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(BadTask, match="leads out of the task"):
        read_task(directory)


@pytest.mark.parametrize("name", ["instruction.md", "task.toml", "environment", "tests", "solution"])
def test_a_part_that_is_a_link_out_of_the_task_is_refused(tmp_path: Path, name: str) -> None:
    """Else an instruction could be any file of who makes the rows."""
    directory = write(tmp_path / "task", {})
    (directory / name).rename(tmp_path / name)
    (directory / name).symlink_to(tmp_path / name)
    with pytest.raises(BadTask, match=f"{name} leads out of the task"):
        read_task(directory)


def test_a_link_to_itself_and_a_name_that_is_no_text_are_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "task", {})
    (directory / "tests" / "again").symlink_to("again")
    with pytest.raises(BadTask):
        read_task(directory)
    (directory / "tests" / "again").unlink()
    (directory / "tests" / "\udcff").write_text("x")
    with pytest.raises(BadTask, match="is no UTF-8: rename it"):
        read_task(directory)


def test_a_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "task", {"tests/inner/file": "x"})
    (directory / "tests" / "inner" / "again").symlink_to(directory / "tests" / "inner")
    with pytest.raises(BadTask, match="leads back"):
        read_task(directory)


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TASK_BYTES", 100)
    with pytest.raises(BadTask, match="put large files into the image"):
        read_task(write(tmp_path / "task", {"tests/large": "x" * 200}))


@pytest.mark.parametrize("payload", [{"image": 5}, {"writable": "x"}])
def test_a_row_of_another_shape_names_its_field(payload: dict[str, object]) -> None:
    with pytest.raises(BadRow, match=next(iter(payload))):
        row_of({"instruction": "a", "image": "b", "workdir": "c", **payload})


class TestDataSets:
    """Directories and registries' files."""

    def test_a_directory_of_tasks_and_one_task_are_both_sets(self, tmp_path: Path) -> None:
        one, two = (write(tmp_path / name, {}) for name in ("one", "two"))
        assert dataset.directories(str(tmp_path)) == [one, two]
        assert dataset.directories(str(one)) == [one]

    def test_a_directory_without_tasks_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(dataset.NoTasks, match=r"has no task\.toml"):
            dataset.directories(str(tmp_path))

    def test_two_tasks_of_one_name_are_refused(self, tmp_path: Path) -> None:
        named = toml("task", 'name = "a/b"')
        paths = [write(tmp_path / name, {"task.toml": named}) for name in ("one", "two")]
        first, second = dataset.read_all(paths)
        assert not isinstance(first, BadTask)
        assert "is named 'a/b', too" in str(second)

    def test_a_registry_names_its_local_tasks(self, tmp_path: Path) -> None:
        one = write(tmp_path / "one", {})
        sets = [{"name": n, "version": "1.0", "description": "", "tasks": [{"name": "x", "path": "one"}]} for n in "ab"]
        file = tmp_path / "registry.json"
        file.write_text(json.dumps(sets))
        assert dataset.directories(f"{file}:a") == [one] == dataset.directories(f"{file}:b@1.0")
        with pytest.raises(dataset.NoTasks, match=r"several data sets; name one as .*known are: a@1\.0, b@1\.0"):
            dataset.directories(str(file))

    def test_a_registry_whose_tasks_are_in_git_says_what_to_clone(self, tmp_path: Path) -> None:
        entry = {"name": "x", "path": "tasks/x", "git_url": "https://example.org/x.git", "git_commit_id": "abc"}
        file = tmp_path / "registry.json"
        file.write_text(json.dumps([{"name": "a", "version": "1", "description": "", "tasks": [entry]}]))
        with pytest.raises(dataset.NoTasks, match=r"clone https://example\.org/x\.git at abc and name tasks/x there"):
            dataset.directories(str(file))
