"""Resuming a job: completed requests, pending requests, and output files of other jobs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_llama

from localinfer.batch import job, output_file
from localinfer.batch.input_file import Request, parse_requests
from localinfer.batch.job import Job, Response, job_digest, require_model
from localinfer.errors import LocalInferError, UsageError
from localinfer.gguf.reader import open_gguf
from localinfer.options import Options

LINES = b'"b"\n"a"\n{"prompt": "c", "custom_id": "third"}\n'
DIGEST = "01234567"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def requests(lines: bytes = LINES) -> list[Request]:
    return parse_requests(lines, "in", "jsonl")


def resumed(path: Path, *answers: int, lines: bytes = LINES, digest: str = DIGEST, failing: int = 0) -> Job:
    """Return a job with these requests that resumed from the output file."""
    work = Job(requests(lines), digest)
    with output_file.open_output(path, restart=False) as out:
        work.resume(out)
        for number in answers:
            [request] = [each for each in work.requests if each.number == number]
            problem = {"error": {"message": "bad", "type": "server_error", "code": None}}
            fails = number == failing
            work.add(Response(request, 500 if fails else 200, problem if fails else {"answer": number}), out)
    return work


def pending(work: Job) -> list[int]:
    return [each.number for each in work.pending()]


def custom_ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def test_resumes_with_pending_requests(path: Path) -> None:
    assert pending(resumed(path)) == [2, 1, 3], "sorted by what they begin with"
    assert pending(resumed(path, 3, 1)) == [2]
    work = resumed(path)
    assert pending(work) == [2]
    assert custom_ids(path) == ["third", "line-1"]


def test_line_has_openai_format(path: Path) -> None:
    resumed(path, 1, 3, failing=3)
    good, bad = (json.loads(line) for line in path.read_bytes().splitlines())
    assert list(good) == list(bad) == ["id", "custom_id", "response", "error"]
    assert good["response"] == {"status_code": 200, "request_id": good["id"], "body": {"answer": 1}}
    assert good["error"] is None
    assert bad["response"]["status_code"] == 500
    assert bad["response"]["body"]["error"]["message"] == "bad"
    assert bad["error"] == {"code": "server_error", "message": "bad"}


def test_output_is_sorted_by_input_at_the_end(path: Path) -> None:
    work = resumed(path, 3, 2, 1)
    with output_file.open_output(path, restart=False) as out:
        work.sort_output(out)
    assert custom_ids(path) == ["line-1", "line-2", "third"]
    assert pending(resumed(path)) == []


def test_failed_requests_are_retried(path: Path) -> None:
    work = resumed(path, 2, 3, 1, failing=3)
    assert work.failed == {3}
    work = resumed(path)
    assert (work.failed, pending(work)) == ({3}, [])
    with output_file.open_output(path, restart=False) as out:
        assert work.remove_failed(out) == 1
        assert pending(work) == [3]
        work.add(Response(work.requests[2], 200, {}), out)
        work.sort_output(out)
    assert custom_ids(path) == ["line-1", "line-2", "third"]
    assert resumed(path).failed == set()


def test_requests_can_be_added(path: Path) -> None:
    resumed(path, 1, 2, 3)
    assert pending(resumed(path, lines=LINES + b'"d"')) == [4]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"lines": b'"b"\n"other"\n"c"\n'}, "the response to line-2 belongs to another or a changed input"),
        ({"digest": "76543210"}, "the response to line-2 was made with another model or other options"),
    ],
)
def test_output_of_another_job_is_rejected(path: Path, how: dict[str, Any], message: str) -> None:
    resumed(path, 2)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"{message}.*--restart"):
        resumed(path, **how)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"my diary\n", b'{"id": 5}\n', b"[" * 100_000 + b"\n", b'{"id": "a", "b": "c"}\n'])
def test_foreign_file_is_not_modified(path: Path, content: bytes) -> None:
    path.write_bytes(content + b"and more")
    with pytest.raises(UsageError, match="has lines that are not batch responses"):
        resumed(path)
    assert path.read_bytes() == content + b"and more"


@pytest.mark.parametrize(
    "content",
    [b"my diary", b'["a", "JSON", "array"]', b"\0" * 5000, b'{"id": 5', b'{"id": "batch_req_76543210', b" "],
)
def test_foreign_file_without_a_newline_is_not_modified(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError, match="does not end with a batch response; --restart"):
        resumed(path)
    assert path.read_bytes() == content
    resumed(path.with_name("own"), 2)
    own = path.with_name("own").read_bytes()
    if content.strip(b"\0"):
        path.write_bytes(own + content)
        with pytest.raises(UsageError, match="does not end with a batch response"):
            resumed(path)
        assert path.read_bytes() == own + content


@pytest.mark.parametrize("n_bytes", [*range(60), 100])
def test_incomplete_response_is_truncated(path: Path, n_bytes: int) -> None:
    resumed(path, 2)
    line = path.read_bytes()
    path.write_bytes(line[:n_bytes])
    assert pending(resumed(path)) == [2, 1, 3]
    assert path.read_bytes() == b""


@pytest.mark.parametrize("zeros", [slice(0, 1), slice(0, 50), slice(20, 40), slice(30, None)])
def test_zeros_of_a_power_failure_are_truncated(path: Path, zeros: slice) -> None:
    resumed(path, 2)
    first = path.read_bytes()
    resumed(path, 1, 3)
    damaged = bytearray(path.read_bytes()[len(first) :])
    damaged[zeros] = bytes(len(damaged[zeros]))
    path.write_bytes(first + damaged)
    assert pending(resumed(path)) == [1, 3]
    assert path.read_bytes() == first


def test_duplicate_response(path: Path) -> None:
    resumed(path, 2)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(LocalInferError, match="two responses to line 2"):
        resumed(path)


class TestDigest:
    def test_depends_on_model_and_options(self, tmp_path: Path) -> None:
        f = open_gguf(tiny_llama(tmp_path / "a.gguf"))
        first = job_digest(f, Options())
        assert len(first) == 2 * job.DIGEST_BYTES
        same = Options(threads=2, ubatch_size=64, mmap=False, tune=False, prefix_store=False, cache_prompt=False)
        assert job_digest(f, same) == job_digest(f, Options(memory="8G")) == first
        assert job_digest(f, Options(temp=0.5)) != first
        assert job_digest(f, replace(Options(), system_prompt="a")) != first
        assert job_digest(open_gguf(tiny_llama(tmp_path / "b.gguf", n_layer=3)), Options()) != first
        assert job_digest(open_gguf((tmp_path / "a.gguf").rename(tmp_path / "c.gguf")), Options()) == first

    def test_depends_on_content_of_option_files(self, tmp_path: Path) -> None:
        f, schema = open_gguf(tiny_llama(tmp_path / "a.gguf")), tmp_path / "schema.json"
        options = Options(json_schema_file=str(schema))
        actual = {job_digest(f, options)}
        for text in ("{}", '{"type": "object"}'):
            schema.write_text(text)
            actual.add(job_digest(f, options))
        assert len(actual) == 3


def test_another_model() -> None:
    request = requests(b'{"prompt": "a", "model": "smollm2:latest"}\n{"prompt": "b", "model": "gpt"}\n"c"')
    require_model([request[0], request[2]], ["smollm2"], "in")
    with pytest.raises(LocalInferError, match=r"^in: line 2 requests the model gpt, not smollm2; --any-model"):
        require_model(request, ["smollm2"], "in")
