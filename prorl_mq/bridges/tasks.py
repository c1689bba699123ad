"""Tasks from rows of data sets as trainers have them.

| the row has | the task |
|---|---|
| `prorl` | the task itself: `{"task_id", "data_source", "payload"}` |
| `data_source` and an answer | `prompt` and `reward_model` in the payload, as the families math, code, stem and reward_service take them |
| `data_source` without an answer | `extra_info` is the payload |

An answer is `reward_model.ground_truth` (verl), `reward_spec.ground_truth` (SkyRL), or a column `ground_truth`, `answer`,
`expected_answer` or `label`. EVAL alone sees it: task families seal these fields. The hosts that the task's sandbox may
reach are a column `egress`, or `egress` of `extra_info`. Images are a column `images`, one for each `<image>` of the prompt,
or parts of its messages; those of Pillow and bytes become data: URLs.
"""  # noqa: E501 - a table

import base64
import hashlib
import io
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from prorl_mq.errors import InvalidTask
from prorl_mq.schema.images.header import ImageRefused, shape_of
from prorl_mq.schema.images.rows import FIELD, has_images
from prorl_mq.schema.messages import Task
from prorl_mq.schema.strict import Misfit, convert

PROMPTS: Final = ("raw_prompt", "prompt", "messages", "question", "problem", "input")
MODELS: Final = ("reward_model", "reward_spec")
ANSWERS: Final = ("ground_truth", "answer", "expected_answer", "label")


def task_of(row: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Task:
    """The task of a row. `sources` renames data sources to those of task families, such as {"lighteval/MATH": "math"}.

    Raises `InvalidTask` for a row that names no task.
    """
    if row.get("prorl") is not None:
        try:
            return convert(plain(row["prorl"], "prorl"), Task)
        except Misfit as error:
            raise InvalidTask(f"the column `prorl` is not a task: {error}") from error
    source = row.get("data_source")
    if not source:
        raise InvalidTask(f"the row names no `data_source`, nor a task in `prorl`; it has {', '.join(map(str, row))}")
    extra = plain(row.get("extra_info") or {}, "extra_info")
    extra = dict(extra) if isinstance(extra, dict) else {}
    hosts = egress_of(row, extra)
    model = _reward_model(row)
    if model is None:
        payload = {name: value for name, value in extra.items() if name not in {"index", "split"}}
    else:
        payload = {"prompt": _prompt(row), "reward_model": model} | ({"extra_info": extra} if extra else {})
        if row.get(FIELD) is not None and len(row[FIELD]) and not has_images(payload):
            payload[FIELD] = plain(row[FIELD], FIELD)
    source = str(source)
    name = _name(row, extra, payload)
    return Task(task_id=name, data_source=(sources or {}).get(source, source), payload=payload, egress=hosts)


def egress_of(row: Mapping[str, Any], extra: dict[str, Any]) -> list[str]:
    """Takes the hosts that a row lists out of `extra`, where the row has no column of them; none where it lists none.

    Raises `InvalidTask` for anything but a list of texts.
    """
    inner = extra.pop("egress", None)
    hosts = plain(row.get("egress"), "egress")
    hosts = inner if hosts is None else hosts
    if hosts is None:
        return []
    if not isinstance(hosts, list) or not all(isinstance(each, str) for each in hosts):
        raise InvalidTask(f"the column `egress` is no list of hosts, NAME or NAME:PORT, but {hosts!r:.200}")
    return hosts


def plain(value: Any, column: str) -> Any:
    """The value in Python's own types: arrays and scalars of numpy and torch become lists and numbers.

    Raises `InvalidTask` for anything that JSON cannot carry.
    """
    if value is None or type(value) in {str, bool, int, float}:  # no subclass: numpy's float64 is one of float
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(each, column) for name, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(each, column) for each in value]
    if isinstance(value, bytes) or hasattr(value, "getbands"):
        return _text(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist(), column)
    if isinstance(value, str | int | float):  # of an enum
        return value
    raise InvalidTask(f"the column {column!r} holds a {type(value).__name__}, which a task cannot carry")


def _text(value: Any) -> str:
    """Bytes, or an image of Pillow, as text: what begins as an image as a data: URL."""
    if not isinstance(value, bytes):
        made = io.BytesIO()
        value.save(made, "PNG")
        value = made.getvalue()
    try:
        kind = shape_of(value).kind
    except ImageRefused:
        return str(value.decode("utf-8", "replace"))
    return f"data:{kind};base64,{base64.b64encode(value).decode()}"


def _reward_model(row: Mapping[str, Any]) -> Any:
    """Finds what holds the answer, under the name by which task families know it; None where there is none."""
    for name in MODELS:
        model = plain(row.get(name), name)
        if isinstance(model, str) and model.strip():
            return model  # JSON text, which families read
        if isinstance(model, dict) and not _empty(model.get("ground_truth")):
            return model
    for name in ANSWERS:
        answer = plain(row.get(name), name)
        if not _empty(answer):
            return {"ground_truth": answer}
    return None


def _empty(answer: Any) -> bool:
    return answer is None or (isinstance(answer, str | list | dict) and not answer)


def _prompt(row: Mapping[str, Any]) -> Any:
    for name in PROMPTS:
        prompt = plain(row.get(name), name)
        if not _empty(prompt):
            return prompt
    raise InvalidTask(f"the row has an answer and no prompt: none of {', '.join(PROMPTS)}")


def _name(row: Mapping[str, Any], extra: dict[str, Any], payload: dict[str, Any]) -> str:
    """Names a row by its place in the data set, or else by what it holds, so that repeats have one name."""
    place = [str(extra[name]) for name in ("split", "index") if not _empty(extra.get(name))]
    given = [str(row[name]) for name in ("task_id", "instance_id", "uid", "id") if not _empty(row.get(name))]
    digest = hashlib.blake2b(msgspec.json.encode(payload), digest_size=8).hexdigest()
    return ("-".join(place) or next(iter(given), digest))[:256]
