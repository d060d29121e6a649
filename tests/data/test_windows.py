"""Windows whose length varies: every epoch reads all of each column, in windows of the published distribution."""

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.core.files import digest
from lmrep.data.formats import plan
from lmrep.data.formats.stream import Stream, window_bounds, window_lengths
from lmrep.data.loader import batches
from tests.data.test_formats_stream import stream_of

NORMAL = Stream(order="contiguous", lengths="normal")


@pytest.mark.parametrize(("size", "length"), [(38732, 70), (26107, 70), (5000, 64), (300, 24), (150, 70), (40, 70)])
def test_the_windows_of_an_epoch_are_a_column(size, length):
    lengths = window_lengths(size, length)
    assert lengths.sum() == size and lengths.min() >= min(5, size)
    epochs = [window_bounds(size, length, 3, epoch) for epoch in range(3)]
    for bounds in epochs:
        assert (bounds[0], bounds[-1]) == (0, size)
        np.testing.assert_array_equal(np.sort(np.diff(bounds)), np.sort(lengths))
    if len(lengths) > 9:
        assert (epochs[0] != epochs[1]).any() and (epochs[0] != window_bounds(size, length, 4, 0)).any()


def test_lengths_have_the_published_distribution():
    """Of `max(5, int(normal(base, 5)))`, where base is 70 with probability .95 and 35 otherwise."""
    lengths, rng = window_lengths(10**7, 70), np.random.default_rng(0)
    expected = np.maximum(5, rng.normal(np.where(rng.random(10**6) < 0.95, 70, 35), 5).astype(int))
    for short in (False, True):
        ours, theirs = (x[(x < 52) == short] for x in (lengths, expected))
        assert len(ours) / len(lengths) == pytest.approx(len(theirs) / len(expected), abs=1e-3)
        assert ours.mean() == pytest.approx(theirs.mean(), abs=0.05)
        assert ours.std() == pytest.approx(theirs.std(), abs=0.05)
    assert min(window_lengths(10**5, 8)) == 5


def test_plans_of_a_fixed_length_keep_their_fingerprints(random_store):
    """Runs that began before lengths could vary are resumed."""
    store = random_store(0, documents=7)
    settings = {"order": "contiguous", "isolate": False, "duplicates": 1}
    before = digest([store.fingerprint, "stream-1", settings, 16, 3])[:16]
    fixed, varied = (plan("stream", Stream("contiguous", lengths), store, 16, 3) for lengths in ("fixed", "normal"))
    assert fixed.fingerprint == before != varied.fingerprint


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_batches_read_the_columns_in_order(batch_size, random_store):
    """In batches of one real length, padded to a multiple of 8, with the factor of the rate and the next token."""
    text = stream_of(store := random_store(2, 40))
    windows = plan("stream", NORMAL, store, 16, 0)
    size = len(text) // batch_size
    steps = len(window_lengths(size, 16))
    seen, lengths = [[] for _ in range(batch_size)], set()
    for step, batch in enumerate(batches(windows, batch_size=batch_size, indices=np.arange(batch_size), seed=4,
                                         first_step=0, last_step=2 * steps)):
        if step == steps:
            assert [len(row) for row in seen] == [size] * batch_size
            seen = [[] for _ in range(batch_size)]
        np.testing.assert_array_equal(batch["reset"], step % steps == 0)
        (count,) = set(batch["segment_ids"].sum(1))
        width = batch["tokens"].shape[1]
        assert width % 8 == 0 and width - count < 8
        np.testing.assert_array_equal(batch["segment_ids"], np.tile(np.arange(width) < count, (batch_size, 1)))
        np.testing.assert_array_equal(batch["rate_factor"], np.float32(count) / np.float32(16))
        for column, row in enumerate(seen):
            np.testing.assert_array_equal(batch["tokens"][column, :count],
                                          text[(at := column * size + len(row)) : at + count])
            assert batch["following"][column] == [*text, -1][at + count]
            row.extend(batch["tokens"][column, :count])
        lengths.add(width)
    assert len(lengths) > 1


def test_a_step_is_computed_from_its_number_on_any_host(random_store):
    windows = plan("stream", NORMAL, random_store(2, 40), 16, 0)

    def run(first, indices):
        return list(batches(windows, batch_size=6, indices=np.array(indices), seed=4, first_step=first, last_step=60))

    everything = run(0, range(6))
    for first, indices in ((0, [1, 4]), (37, [0, 1, 2, 3, 4, 5]), (59, [5])):
        for whole, part in zip(everything[first:], run(first, indices), strict=True):
            for name, values in part.items():
                np.testing.assert_array_equal(values, whole[name][indices])


@pytest.mark.parametrize("change", [{"order": "shuffled"}, {"isolate": True}])
def test_settings_that_do_not_fit_are_refused(change, random_store):
    with pytest.raises(UserError, match=r"needs format\.order=contiguous and format\.isolate=False"):
        plan("stream", Stream(**{"order": "contiguous", "lengths": "normal"} | change), random_store(2, 20), 16, 0)
