"""Reports of where a prompt diverged from an earlier one: the positions, the log and `/slots`."""

from collections.abc import Sequence

import numpy as np
import pytest
from server_process import ServerProcess, wait_until

from localinfer.server.prompt_history import LIMIT, MIN_REPEATED, PromptHistory, diverge, window_hashes

RANDOM = np.random.default_rng(0)
HEAD, BODY = RANDOM.integers(0, 50_000, 100).tolist(), RANDOM.integers(0, 50_000, 2000).tolist()


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


@pytest.mark.parametrize(
    ("change", "earlier_change"), [([1, 2, 3], [4]), ([1], [4, 5, 6]), ([], [4, 5]), ([1, 2], [])]
)
def test_replaced_tokens(change: list[int], earlier_change: list[int]) -> None:
    history = PromptHistory()
    assert history.add("m", [*HEAD, *earlier_change, *BODY], "editor/1") is None
    found = history.add("m", [*HEAD, *change, *BODY, 7, 8, 9], "agent/2\x1b[31m")
    assert found
    assert (found.n_shared, found.n_repeated) == (100, 2000)
    assert (list(found.ids), list(found.earlier_ids)) == (change, earlier_change)
    assert found.as_fields(decode) | {"text": "", "earlier_text": ""} == {
        "n_prompt": len(HEAD) + len(change) + 2003, "n_shared": 100, "n_repeated": 2000, "text": "", "earlier_text": "",
        "client": "agent/2\\x1b[31m", "earlier_client": "editor/1",
    }  # fmt: skip


def test_several_differences() -> None:
    history = PromptHistory()
    history.add("m", [*HEAD, 1, *BODY[:1000], 2, *BODY[1000:]], "")
    found = history.add("m", [*HEAD, 3, *BODY[:1000], 4, *BODY[1000:]], "")
    assert found
    assert (found.n_shared, found.n_repeated, found.ids, found.earlier_ids) == (100, 2000, (3,), (1,))
    assert found.describe(decode).startswith(
        'a prompt with 2102 tokens begins like an earlier one for 100 tokens; then it has "3" instead of "1". '
    )


@pytest.mark.parametrize(
    "prompt",
    [
        [*HEAD, *BODY],  # again
        [*HEAD, *BODY, *HEAD],  # continued
        HEAD,  # shorter
        [*HEAD, *RANDOM.integers(0, 50_000, 2000).tolist()],  # another conversation
        [*HEAD, 1, *BODY[: MIN_REPEATED - 1]],  # a short repetition
        [],
    ],
)
def test_prompts_without_a_costly_divergence(prompt: list[int]) -> None:
    history = PromptHistory()
    history.add("m", [*HEAD, *BODY], "")
    assert history.add("m", prompt, "") is None
    assert history.add("other", [*HEAD, 1, *BODY], "") is None


def test_number_of_prompts_is_limited() -> None:
    history = PromptHistory()
    history.add("m", [*HEAD, *BODY], "")
    for number in range(LIMIT):
        for n_tokens in (1, 2):  # the second prompt continues the first one, and replaces it
            history.add("m", [number] * n_tokens, "")
    assert history.add("m", [*HEAD, 1, *BODY], "") is None


def test_the_most_similar_prompt_is_named() -> None:
    history = PromptHistory()
    history.add("m", [*HEAD[:50], 1, *BODY], "near")
    history.add("m", [*HEAD, *RANDOM.integers(0, 50_000, 2000).tolist()], "shares more")
    found = history.add("m", [*HEAD[:50], 2, *BODY], "")
    assert found
    assert found.earlier_client == "near"


def test_windows_equal_a_search_of_each_window() -> None:
    for seed in range(30):
        random = np.random.default_rng(seed)
        new, old = (random.integers(0, 2, random.integers(1, 120)).astype(np.int32) for _ in range(2))
        windows = {tuple(new[start : start + 16]) for start in range(len(new) - 15)}
        covered = set()
        for start in range(len(old) - 15):
            if tuple(old[start : start + 16]) in windows:
                covered.update(range(start, start + 16))
        history = PromptHistory()
        history.add("m", old.tolist(), "")
        assert diverge(new, "", history._prompts["m"][0], 0).n_repeated == len(covered)
    assert len(window_hashes(np.zeros(15, np.int32))) == 0


def test_log_and_slots_name_the_text_and_the_client(server: ServerProcess) -> None:
    rules = "Answer in one word and never explain anything. " * 40

    def ask(time: str, client: str) -> None:
        messages = [{"role": "system", "content": f"It is {time}. {rules}"}, {"role": "user", "content": "Hello"}]
        body = {"messages": messages, "max_tokens": 1}
        assert server.request("POST", "/v1/chat/completions", body, user_agent=client).status == 200

    ask("16:29", "agent/1.0")
    assert server.get("/slots").body[0]["prompt_divergence"] is None
    ask("17:45", "editor/2.0")
    found = server.get("/slots").body[0]["prompt_divergence"]
    assert found["n_shared"] < found["n_prompt"] - found["n_repeated"]
    assert (found["client"], found["earlier_client"]) == ("editor/2.0", "agent/1.0")
    assert "7:45" in found["text"]
    assert "6:29" in found["earlier_text"]
    wanted = "warning: a prompt of editor/2.0 with"
    assert wait_until(lambda: any(line.startswith(wanted) for line in server.lines), 5)
    assert "an earlier one of agent/1.0 for" in " ".join(server.lines)
