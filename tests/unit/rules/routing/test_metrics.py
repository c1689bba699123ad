"""The load of a vLLM, from lines of its metrics: those of 0.32 on a CPU, and what else may stand there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_mq.rules.routing.metrics import LINE_BYTES, keeps, load
from prorl_mq.rules.routing.pressure import EngineLoad

LINES = [
    b'vllm:num_requests_running{engine="0",model_name="policy"} 3.0',
    b'vllm:num_requests_waiting{engine="0",model_name="policy"} 1.0',
    b'vllm:kv_cache_usage_perc{engine="0",model_name="policy"} 0.25',
    b'vllm:num_preemptions_total{engine="0",model_name="policy"} 2.0',
    (
        b'vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto",engine="0",'
        b'kv_cache_size_tokens="2097152",kv_cache_memory_bytes="1073741824",num_gpu_blocks="65536",'
        b'num_gpu_blocks_override="None",sliding_window="None"} 1.0'
    ),
]


def test_the_load_of_a_vllm_is_read() -> None:
    assert load(LINES, 7.0) == EngineLoad(7.0, 2_097_152, 0.25, 3, 1, 2)


def test_an_older_one_tells_blocks_alone() -> None:
    older = [*LINES[:4], LINES[4].replace(b'kv_cache_size_tokens="2097152",', b"")]
    unknown = [*LINES[:4], LINES[4].replace(b'"2097152"', b'"None"')]
    assert load(older, 7.0) == load(unknown, 7.0) == EngineLoad(7.0, 32 * 65_536, 0.25, 3, 1, 2)


def test_engines_of_one_server_are_added_up() -> None:
    second = [line.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75") for line in LINES]
    assert load([*LINES, *second], 7.0) == EngineLoad(7.0, 2 * 2_097_152, 0.5, 6, 2, 4)


def test_lines_of_other_metrics_begin_otherwise() -> None:
    others = [
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1.0',
        b'vllm:num_preemptions_created{engine="0"} 1.7e+09',
        b"# TYPE vllm:num_requests_running gauge",
    ]
    assert not any(map(keeps, others))
    assert all(map(keeps, LINES))


def test_a_line_that_is_too_long_is_left_out() -> None:
    start, end = b"vllm:cache_config_info{", b"} 1.0"
    longest = start + b"a" * (LINE_BYTES - len(start) - len(end)) + end
    assert keeps(longest)
    assert not keeps(longest.replace(b"a}", b"aa}"))


def test_labels_are_looked_for_by_name_and_not_by_the_end_of_another() -> None:
    other = LINES[4].replace(b"_block_size_resolved", b"my_block_size").replace(b'kv_cache_size_tokens="2097152",', b"")
    assert load([*LINES[:4], other], 7.0) == EngineLoad(7.0, 32 * 65_536, 0.25, 3, 1, 2)


@pytest.mark.parametrize("at", range(5))
def test_whatever_is_missing_nothing_is_concluded(at: int) -> None:
    assert load(LINES[:at] + LINES[at + 1 :], 7.0) is None


@pytest.mark.parametrize("value", [b"NaN", b"-1.0", b"+Inf", b"1e99", b"many", b""])
def test_a_number_that_is_none_makes_the_whole_nothing(value: bytes) -> None:
    for at in range(4):
        assert load([*LINES[:at], LINES[at].rpartition(b" ")[0] + b" " + value, *LINES[at + 1 :]], 7.0) is None
    assert load([*LINES[:4], LINES[4].replace(b"2097152", value)], 7.0) is None


def test_a_usage_above_one_or_a_cache_that_nobody_has_is_of_another_engine() -> None:
    """A percentage, lines that end with their time, or more tokens than a limit can say, which would be news at each
    look.
    """
    assert load([*LINES[:2], LINES[2].replace(b"0.25", b"25.0"), *LINES[3:]], 7.0) is None
    assert load([line + b" 1764300000000" for line in LINES], 7.0) is None
    many = LINES[4].replace(b'kv_cache_size_tokens="2097152"', b'kv_cache_size_tokens="900000000000000"')
    assert load([*LINES[:4], *[many] * 10], 7.0) is not None
    assert load([*LINES[:4], *[many] * 11], 7.0) is None


@given(
    st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=60), st.sampled_from(LINES).map(lambda x: x[:-9])))
)
def test_whatever_a_server_sends_is_a_load_or_nothing(lines: list[bytes]) -> None:
    found = load(lines, 7.0)
    assert found is None or (found.capacity > 0 and found.usage >= 0)
