"""The table of media rows, and what may follow what in a sequence."""

from dataclasses import replace

import numpy as np
import pytest
from media_rows import grid, lines, random_rows

from localinfer.errors import LocalInferError, UsageError
from localinfer.runtime.batch_division import split_batches
from localinfer.runtime.media import media_table
from localinfer.runtime.media.media_embeddings import MediaEmbeddings
from localinfer.runtime.media.media_table import MediaTable, MissingRowsError
from localinfer.runtime.media.sequence_media import SequenceMedia

WIDTH = 8
A, B = random_rows("a", 3, WIDTH), random_rows("b", 4, WIDTH, n_positions=2, coordinates=grid(2, 2))
BOTH_WAYS = random_rows("c", 5, WIDTH, bidirectional=True)


def test_equal_digests_have_the_same_ids() -> None:
    table = MediaTable(WIDTH)
    assert table.add(A) == [-1, -2, -3]
    assert table.add(B) == [-4, -5, -6, -7]
    assert table.add(random_rows("a", 3, WIDTH)) == [-1, -2, -3]
    with pytest.raises(UsageError, match="same digest must have the same rows"):
        table.add(random_rows("a", 2, WIDTH))
    assert table.add(BOTH_WAYS)[0] == -8
    assert [table.span_of(id) is None for id in (-1, -12, -13)] == [False, False, True]


@pytest.mark.parametrize(
    "embeddings",
    [
        random_rows("a", 3, WIDTH + 1),
        MediaEmbeddings(b"a", np.zeros((3, WIDTH)), 3),  # type: ignore[arg-type]
        MediaEmbeddings(b"a", np.zeros((0, WIDTH), np.float32), 3),
        random_rows("a", 3, WIDTH, n_positions=0),
        random_rows("a", 3, WIDTH, coordinates=grid(2, 2)),
        random_rows("a", 4, WIDTH, coordinates=-grid(2, 2)),
        random_rows("a", 8, WIDTH, coordinates=lines(2, 2) - 1),
        random_rows("a", 8, WIDTH, coordinates=lines(2, 2)[:, :1]),
        random_rows("a", 8, WIDTH, coordinates=lines(2, 2)[:, 0]),
    ],
    ids=[
        "width", "type", "empty", "no positions", "number of coordinates", "negative coordinates", "negative places",
        "one coordinate", "no axes",
    ],
)
def test_rows_that_do_not_fit_are_rejected(embeddings: MediaEmbeddings) -> None:
    table = MediaTable(WIDTH)
    with pytest.raises(UsageError, match="media: "):
        table.add(embeddings)
    assert table.add(A) == [-1, -2, -3]


def test_the_oldest_rows_are_dropped_and_can_be_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_table, "MAX_BYTES", A.rows.nbytes + B.rows.nbytes)
    table = MediaTable(WIDTH)
    a, b = table.add(A), table.add(replace(B))
    assert table.add(A) == a  # B is the oldest now
    c = table.add(random_rows("d", 1, WIDTH))
    span = table.span_of(b[0])
    assert span is not None
    with pytest.raises(MissingRowsError, match="pass them to media_ids again"):
        table.embeddings_of(span)
    assert table.add(B) == b
    assert table.embeddings_of(span) is B
    assert c == [-8]


def test_the_last_id_is_an_int32(monkeypatch: pytest.MonkeyPatch) -> None:
    table = MediaTable(WIDTH)
    ids = table.add(A)
    monkeypatch.setattr(table, "_spans", [replace(span, first=(1 << 31) - 7) for span in table._spans])
    assert table.add(B)[-1] == np.iinfo(np.int32).min
    with pytest.raises(LocalInferError, match=r"numbered 2,147,483,648 rows .* load it again"):
        table.add(random_rows("d", 1, WIDTH))
    assert ids == [-1, -2, -3]


def test_rows_that_somebody_holds_are_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_table, "MAX_BYTES", 1)
    table = MediaTable(WIDTH)
    ids, held = table.hold(replace(A))
    table.add(B)
    span = table.span_of(ids[0])
    assert span is not None
    assert table.embeddings_of(span) is held
    assert table.hold(replace(A)) == (ids, held)  # not the second ones, which nobody else may hold
    table.add(B)
    assert table.embeddings_of(span) is held
    del held
    with pytest.raises(MissingRowsError):
        table.embeddings_of(span)


def test_runs_of_rows() -> None:
    table = MediaTable(WIDTH)
    a, b = table.add(A), table.add(B)
    runs = [(run.at, run.span.digest, run.row, run.n_rows) for run in table.runs([7, *a, *b, *b, 9, *a[1:]])]
    assert runs == [(1, b"a", 0, 3), (4, b"b", 0, 4), (8, b"b", 0, 4), (13, b"a", 1, 2)]
    with pytest.raises(UsageError, match="-99 is not the id of a media row"):
        list(table.runs([1, -99]))


A_IDS, B_IDS, C_IDS = [-1, -2, -3], [-4, -5, -6, -7], [-8, -9, -10, -11, -12]


@pytest.mark.parametrize(
    ("before", "after"),
    [([], [1, *A_IDS, 2, *B_IDS]), ([1, *A_IDS], [*A_IDS, *C_IDS]), ([1, -4, -5], [-6]), ([1, -4, -5], [-6, -7, 7])],
    ids=["text between", "no text between", "a part", "the rest"],
)
def test_rows_may_come_in_several_calls(before: list[int], after: list[int]) -> None:
    media_after(before).check_appended(after, len(before), 8)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([1, -4, -5], [7]),
        ([1, -4, -5], A_IDS),
        ([1, -4, -5], [7, -6, -7]),
        ([1], A_IDS[1:]),
        ([1], [-1, -2, 5]),
        ([1], [-1, -3, -2]),
        ([1], C_IDS[:2]),
    ],
    ids=["text", "another", "later", "no beginning", "no end", "disorder", "divided"],
)
def test_rows_of_an_image_are_complete(before: list[int], after: list[int]) -> None:
    with pytest.raises(UsageError, match="must be complete"):
        media_after(before).check_appended(after, len(before), 8)


def media_after(tokens: list[int]) -> SequenceMedia:
    """Return the media of a sequence with these tokens."""
    table = MediaTable(WIDTH)
    assert [*table.add(A), *table.add(B), *table.add(BOTH_WAYS)] == [*A_IDS, *B_IDS, *C_IDS]
    return SequenceMedia(table).extended(tokens, 0)


def test_a_span_that_exceeds_the_batch_names_the_option() -> None:
    table = MediaTable(WIDTH)
    with pytest.raises(UsageError, match=r"5 rows .* a batch of 4; ubatch_size \(--ubatch-size\)"):
        SequenceMedia(table).check_appended(table.add(BOTH_WAYS), 0, 4)


def test_rotary_positions_follow_the_images() -> None:
    table = MediaTable(WIDTH)
    a, b = table.add(A), table.add(B)
    media = SequenceMedia(table).extended([7, 7, *b], 0).extended([7, *a, *b, 7], 6)
    actual = media.coordinates(np.arange(15))[:, :3].tolist()
    expected = [[n, n, n] for n in (0, 1)] + [[2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3]]
    expected += [[n, n, n] for n in (4, 5, 6, 7)] + [[8, 8, 8], [8, 8, 9], [8, 9, 8], [8, 9, 9], [10, 10, 10]]
    assert actual == expected
    assert media.coordinates(np.array([12, 3]))[:, :3].tolist() == [actual[12], actual[3]]
    assert media.page_positions(np.array([1, 4, 6, 13, 14])).tolist() == [1, 2, 4, 8, 10]
    assert len(media.truncated(5).spans) == 1
    assert media.truncated(2).coordinates(np.arange(4))[:, 1].tolist() == [0, 1, 2, 3]


def test_rows_with_places_have_the_number_of_their_image() -> None:
    table = MediaTable(WIDTH)
    first, second = (random_rows(name, 8, WIDTH, coordinates=lines(2, 2)) for name in "ab")
    media = SequenceMedia(table).extended([7, *table.add(first), 7, *table.add(second), 7], 0)
    actual = media.coordinates(np.arange(19))
    assert actual[:, 0].tolist() == list(range(19))
    places = [(column, row) for row in (0, 1) for column in (0, 1, 2)]
    for number, start in enumerate((1, 10)):
        assert actual[start + 1 : start + 7, 1:].tolist() == [[*place, number] for place in places]
        assert [actual[at].tolist() for at in (start, start + 7)] == [[start] * 4, [start + 7] * 4]


@pytest.mark.parametrize(
    ("size", "lengths"),
    [(4, [2, 5, 4, 2]), (6, [2, 6, 5]), (8, [8, 5]), (20, [13]), (1, [1, 1, 5, *[1] * 6])],
)
def test_batches_do_not_divide_bidirectional_spans(size: int, lengths: list[int]) -> None:
    table = MediaTable(WIDTH)
    c, b = table.add(BOTH_WAYS), table.add(B)
    ids = np.array([1, 2, *c, *b, 3, 4], np.int32)
    batches = split_batches(ids, size, table)
    assert [len(batch) for batch in batches] == lengths
    np.testing.assert_array_equal(np.concatenate(batches), ids)
    media = SequenceMedia(table).extended(ids.tolist(), 0)
    assert [media.border(n) for n in range(14)] == [0, 1, 2, 2, 2, 2, 2, 7, 8, 9, 10, 11, 12, 13]
