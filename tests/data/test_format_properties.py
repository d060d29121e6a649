"""Properties of every input format, over the rows of `FORMATS` and the settings that change what an example holds."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np
import pytest

from lmrep.config import record
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.data import formats
from lmrep.data.formats import FIELDS, FORMATS, batch_struct
from lmrep.data.formats.base import BACKWARD
from lmrep.data.formats.packed import Packed
from lmrep.data.loader import batches, evaluation_batches
from lmrep.data.mixture import Mixture, Sources
from lmrep.data.records.examples import arrange, mix
from tests.data.conftest import SPECIALS
from tests.data.test_mixed_examples import units
from tests.tasks import tiny

# --- What a batch holds; tokens of the tests' stores are consecutive numbers after the special ids ---


def documents_of(store, positions):
    return np.searchsorted(store.sentences[store.documents], positions, side="right") - 1


def texts(batch, columns=slice(None)):
    """(example, segment, token type, positions in the store) of each text: the ordinary tokens between special ones."""
    segments, types = batch["segment_ids"], batch.get("token_type_ids", np.zeros_like(batch["tokens"]))
    for example, row in enumerate(batch["tokens"][:, columns]):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row >= len(SPECIALS), [0]])))
        for first, last in edges.reshape(-1, 2):
            yield example, segments[example, first], types[example, first], row[first:last] - len(SPECIALS)


def all_texts(batch, plan):
    return [positions for *_, positions in texts(batch)]


def both_streams(batch, plan):
    backward = [positions for *_, positions in texts(batch["backward"])]
    assert sorted(np.concatenate(backward)) == sorted(np.concatenate(all_texts(batch, plan)))
    return all_texts(batch, plan)


def first_texts(batch, plan):
    return [positions for _, _, type_, positions in texts(batch) if type_ == 0]


def texts_of_the_document(batch, plan):
    """Those of the document that the first text of an example comes from."""
    for _, pair in itertools.groupby(texts(batch), key=lambda text: text[0]):
        several = [positions for *_, positions in pair]
        document = documents_of(plan.store, several[0][0])
        yield from (positions for positions in several if documents_of(plan.store, positions[0]) == document)


def reused(batch, plan):
    """The tokens of windows that the next window follows, of the examples that read forward."""
    forward = {name: array[batch["reversed"] == 0] for name, array in batch.items()}
    return [positions for *_, positions in texts(forward, columns=slice(plan.reuse))]


# --- Which tokens a pass shows ---


def every_token(plan):
    return np.arange(plan.store.tokens)


def beginnings_of_sentences(plan):
    bounds = plan.store.sentences
    return np.concatenate([np.arange(first, min(last, first + plan.length - 2))
                           for first, last in itertools.pairwise(bounds)])


def beginnings_of_documents(plan):
    bounds = plan.store.sentences[plan.store.documents]
    return np.concatenate([np.arange(a, min(b, a + plan.length - 2)) for a, b in itertools.pairwise(bounds)])


def ends_of_documents(plan):
    bounds = plan.store.sentences[plan.store.documents]
    return np.concatenate([np.arange(max(a, b - plan.length + 2), b) for a, b in itertools.pairwise(bounds)])


def sentences_with_a_next_one(plan):
    store = plan.store
    last = np.isin(np.arange(len(store.sentences) - 1), store.documents[1:] - 1)
    return np.concatenate([np.arange(*store.sentences[i : i + 2]) for i in np.flatnonzero(~last)])


def full_windows(plan):
    end = plan.rows * plan.reuse  # in the stream, where each document is followed by its end
    return np.arange(min(plan.store.tokens, end - (plan.begins[1:] <= end).sum()))


class Case(NamedTuple):
    """A format with some settings.

    Attributes:
      name: in `FORMATS`.
      example: a pattern of an example, with C for [CLS], S for [SEP] and w for any other token.
      settings: of its config.
      documents: how many documents a segment may hold; 0: any number.
      lengths: of examples.
      shown, expected: the texts of a batch that a pass shows once, and the tokens that it thereby shows.
      seeded: whether the seed decides what examples hold; it always decides the order of shuffled ones.
    """

    name: str
    example: str
    settings: Mapping = {}
    documents: int = 1
    lengths: tuple[int, ...] = (7, 24, 60)
    shown: Callable = all_texts
    expected: Callable = every_token
    seeded: bool = False


PAIR = {"example": "Cw+Sw+S", "documents": 2, "lengths": (4000,), "seeded": True}  # long: nothing is truncated
WINDOW = {"example": "[wS]+S[wS]+SC", "documents": 0, "lengths": (16, 41), "shown": reused, "expected": full_windows,
          "seeded": True}
SENTENCES = {"example": "[Cw]+", "documents": 0, "shown": both_streams, "seeded": True}
CASES = {
    "packed": Case("packed", "(Cw+S)+"),
    "lines": Case("lines", "Cw+S", expected=beginnings_of_sentences),
    "documents": Case("documents", "Cw+S", expected=beginnings_of_documents),
    "documents, last": Case("documents", "Cw+S", {"keep": "last"}, expected=ends_of_documents),
    "full_sentences": Case("full_sentences", "Cw+(Sw+)*S", documents=0),
    "doc_sentences": Case("doc_sentences", "(Cw+S)+"),
    "doc_sentences alone": Case("doc_sentences", "Cw+S", {"pack": False}),
    "stream": Case("stream", "[wS]+", documents=0),
    "stream in order": Case("stream", "[wS]+", {"order": "contiguous"}, documents=0),
    "stream in windows": Case("stream", "[wS]+", {"order": "contiguous", "lengths": "normal"}, documents=0),
    "stream isolated": Case("stream", "[wS]+", {"order": "contiguous", "isolate": True}),
    "sentence_stream": Case("sentence_stream", **SENTENCES),
    "sentence_stream same": Case("sentence_stream", settings={"order": "same"}, **SENTENCES),
    "segment_pair": Case("segment_pair", shown=texts_of_the_document, **PAIR),
    "segment_pair sop": Case("segment_pair", settings={"pairs": "sop"}, shown=texts_of_the_document, **PAIR),
    "sentence_pair": Case("sentence_pair", shown=first_texts, expected=sentences_with_a_next_one, **PAIR),
    "stream_pair": Case("stream_pair", **WINDOW),
    "stream_pair shuffled": Case("stream_pair", settings={"order": "shuffled", "bidirectional": False}, **WINDOW)}
TABLES = [name for name, case in CASES.items() if case.name not in ("sentence_stream", "stream_pair")]  # of spans


def config_of(case, **settings):
    return record.read(FORMATS[case.name].config, case.settings | settings)


def make(name, store, length=24, seed=1, cache_dir=None, **settings):
    case = CASES[name]
    return formats.plan(case.name, config_of(case, **settings), store, length, seed, cache_dir)


def everything(plan):
    return plan.gather(np.arange(plan.examples))


def test_every_format_has_a_case():
    assert {case.name for case in CASES.values()} == set(FORMATS)


@pytest.mark.parametrize("name", CASES)
def test_a_pass_shows_the_tokens_of_the_format_once(name, random_store):
    case = CASES[name]
    for length in case.lengths:
        plan = make(name, random_store(length, 25), length, duplicates=2)
        shown = np.concatenate([*case.shown(everything(plan), plan)])
        times = np.bincount(shown, minlength=plan.store.tokens)
        np.testing.assert_array_equal(times, 2 * np.bincount(case.expected(plan), minlength=plan.store.tokens))


@pytest.mark.parametrize("name", CASES)
def test_texts_are_consecutive_tokens_of_the_documents_that_a_segment_may_hold(name, random_store):
    case, most = CASES[name], 0
    for length in (min(case.lengths), 60):
        plan = make(name, random_store(length, 40, sentences=4, tokens=12), length)
        batch = everything(plan)
        for direction in (batch, *([batch["backward"]] if "backward" in batch else [])):
            together = {}
            for example, segment, _, positions in texts(direction):
                backward = direction is not batch or ("reversed" in batch and batch["reversed"][example])
                assert (np.diff(positions) == (-1 if backward else 1)).all()
                together.setdefault((example, segment), set()).update(documents_of(plan.store, positions).tolist())
            most = max(most, *map(len, together.values()))
    assert most > 2 if case.documents == 0 else most == case.documents


@pytest.mark.parametrize("name", CASES)
def test_special_tokens_segments_positions_and_types_are_those_of_the_format(name, random_store):
    case = CASES[name]
    names = {SPECIALS["cls"]: "C", SPECIALS["sep"]: "S"}
    for length in (min(case.lengths), 45):
        batch = everything(make(name, random_store(length, 12), length))
        for tokens, segments, positions, types in zip(*(batch[field] for field in (
                "tokens", "segment_ids", "positions", "token_type_ids")), strict=True):
            size = np.count_nonzero(segments)
            assert re.fullmatch(case.example, "".join(names.get(token, "w") for token in tokens[:size].tolist()))
            assert (tokens[:size] != SPECIALS["pad"]).all() and (tokens[size:] == SPECIALS["pad"]).all()
            begins = np.flatnonzero(np.diff(segments[:size], prepend=0))
            assert segments[begins].tolist() == list(range(1, len(begins) + 1))
            np.testing.assert_array_equal(positions[:size], np.arange(size) - begins[segments[:size] - 1])
            separators = np.cumsum(tokens == SPECIALS["sep"]) - (tokens == SPECIALS["sep"])
            if case.name != "stream_pair":  # where documents end with a separator, too
                np.testing.assert_array_equal(types[:size], separators[:size] * (case.documents == 2))
            assert not positions[size:].any() and not types[size:].any() and not segments[size:].any()


@pytest.mark.parametrize("name", CASES)
def test_a_batch_has_the_fields_shapes_and_dtypes_of_the_definition(name, random_store):
    case, plan = CASES[name], make(name, random_store(0, 9), length=32)
    definition, config = FORMATS[case.name], config_of(case)
    batch = flatten(plan.gather(np.array([-1, 3, 0, -1, 1, 2])))
    struct = flatten(batch_struct(definition.fields(config), False, b=6, t=32))
    assert sorted(batch) == sorted(struct) == sorted(definition.fields(config))
    assert plan.contiguous == definition.contiguous(config)
    assert definition.packed(config) == (everything(make(name, random_store(0, 9), 60))["segment_ids"].max() > 1)
    for field, array in batch.items():
        name = field.removeprefix(BACKWARD)
        assert array.dtype == FIELDS[name].dtype
        assert array.shape == tuple({"b": 6, "t": 32}[axis] for axis in FIELDS[name].axes)
        assert (struct[field].shape, struct[field].dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(batch["example"], [-1, 3, 0, -1, 1, 2])
    for field, array in flatten(plan.gather(np.array([3]))).items():
        np.testing.assert_array_equal(batch[field][1:2], array)
        if field != "example":
            padding = {"tokens": SPECIALS["pad"], "following": -1}.get(field.removeprefix(BACKWARD), 0)
            assert (batch[field][[0, 3]] == padding).all()
    with pytest.raises(IndexError, match="of a plan"):
        plan.gather(np.array([0, -2]))


@pytest.mark.parametrize("name", CASES)
def test_the_seeds_decide_the_examples_and_their_order(name, random_store):
    store = random_store(1, 20)

    def shown(seed, order):
        plan = make(name, store, seed=seed)
        numbers = plan.numbers(np.arange(36), 6, order)
        return numbers, plan.gather(numbers)["tokens"]

    numbers, tokens = shown(1, 1)
    for one, other in zip((numbers, tokens), shown(1, 1), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (shown(2, 1)[1] != tokens).any() == CASES[name].seeded
    assert (shown(1, 2)[0] != numbers).any() == (CASES[name].name != "sentence_stream")  # whose plan has the order


@pytest.mark.parametrize("name", CASES)
def test_a_further_pass_has_its_own_choices_and_leaves_the_first_as_it_was(name, random_store):
    once, twice = (everything(make(name, random_store(1, 20), duplicates=count))["tokens"] for count in (1, 2))
    first, second = np.split(twice, [len(once)])
    np.testing.assert_array_equal(first, once)
    if CASES[name].seeded and CASES[name].name != "sentence_stream":  # whose passes are of training alone
        assert len({row.tobytes() for row in second} & {row.tobytes() for row in first}) < len(second) / 2
    else:
        np.testing.assert_array_equal(second, first)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("sentence_", "stream in w"))])
def test_an_epoch_shows_every_example_once_and_the_next_in_another_order(name, random_store):
    """Those of sentence streams are endless; `test_sentence_stream.py` follows their sentences, and `test_windows.py`
    the windows of a stream."""
    plan, size = make(name, random_store(2, 20)), 6
    count = plan.rows * getattr(plan, "directions", 1) if plan.contiguous else plan.examples
    positions = -(-count // size) * size if plan.contiguous else count
    epochs = plan.numbers(np.arange(2 * positions), size, 3).reshape(2, positions)
    for epoch in epochs:
        assert sorted(epoch[epoch >= 0].tolist()) == list(range(count))
    assert (epochs[0] != epochs[1]).any()


@pytest.mark.parametrize("name", CASES)
def test_statistics_match_the_gathered_batch(name, random_store):
    plan = make(name, random_store(2, 20), duplicates=2)
    batch, statistics = everything(plan), plan.statistics()
    real = batch["segment_ids"] > 0
    assert statistics["examples"] == plan.examples
    assert statistics["padding"] == pytest.approx(1 - real.mean(), abs=1e-9)
    assert statistics["tokens_per_example"] == pytest.approx(real.sum(axis=1).mean())
    for column in {"pair_label", "reversed"} & set(batch):
        assert statistics[column] == pytest.approx(batch[column].mean())


def test_different_plans_have_different_fingerprints(make_store, random_store):
    store = random_store(0, 9)
    plans = [make(name, store, **change) for name in CASES for change in ({}, {"duplicates": 3})]
    plans += [make("packed", store, length=25), make("packed", store, seed=2), make("packed", make_store([[3, 4]]))]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert make("packed", store).fingerprint == plans[0].fingerprint


@pytest.mark.parametrize("name", TABLES)
def test_a_table_reports_its_progress_and_is_loaded_from_its_cache(name, random_store, tmp_path):
    store, seen = random_store(0, 9), []
    in_memory = formats.plan(CASES[name].name, config_of(CASES[name]), store, 24, 1,
                             progress=lambda *work: seen.append(work))
    assert seen and seen[-1][0] == seen[-1][1] > 0
    assert seen == sorted(seen) and len({total for _, total in seen}) == 1
    saved = make(name, store, cache_dir=tmp_path)
    loaded = make(name, dataclasses.replace(store, sentences=None, documents=None), cache_dir=tmp_path)
    for plan in (saved, loaded):
        assert plan.fingerprint == in_memory.fingerprint
        for field, array in everything(in_memory).items():
            np.testing.assert_array_equal(everything(plan)[field], array)
    assert not loaded.spans.starts.flags.writeable  # memory-mapped
    assert [p.name for p in tmp_path.iterdir()] == [f"plan-{in_memory.fingerprint}"]


# --- Batches of formats, and of the other data sets that the loader takes ---


def mixture(random_store):
    stores = tuple(random_store(seed, count) for seed, count in enumerate((20, 9)))
    return Mixture(tuple(formats.plan("packed", Packed(), store, 24, 0) for store in stores),
                   Sources(("a", "b"), stores, (3, 2), stores[0].vocabulary))


def labelled(random_store):
    return arrange(units(100, 0), tiny.tokenizer().vocabulary, 0, "")


def mixed_labelled(random_store):
    parts = [arrange(units(count, 0), tiny.tokenizer().vocabulary, 0, f"{count}") for count in (60, 9)]
    return mix(("a", "b"), parts).with_counts((3, 2))


OTHERS = {"mixture": mixture, "labelled": labelled, "mixed labelled": mixed_labelled}
SIZE, STEPS, HOSTS = 6, 40, ([0, 3, 5], [1, 2, 4])


def dataset(name, random_store):
    return OTHERS[name](random_store) if name in OTHERS else make(name, random_store(7, 25), seed=3)


def run(plan, first=0, last=STEPS, indices=range(SIZE)):
    return list(batches(plan, batch_size=SIZE, indices=np.array(indices), seed=3, first_step=first, last_step=last))


def evaluated(plan, indices=range(SIZE), limit=None):
    return list(evaluation_batches(plan, batch_size=SIZE, indices=np.array(indices), limit=limit))


def assert_parts(full, parts, indices):
    for one, other in zip(full, parts, strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[indices], y), one, other)


@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_runs_resumed_at_any_step_on_several_hosts_show_the_same_batches(name, random_store):
    full = run(dataset(name, random_store))
    again = dataset(name, random_store)
    for first, host in zip((15, 16, 33), itertools.cycle(HOSTS), strict=False):  # the loader finds 16 steps together
        assert_parts(full[first:], run(again, first, indices=host), host)
    assert len({batch["example"].tobytes() for batch in full}) > 1


@pytest.mark.parametrize(("name", "limit"), [
    *((name, None) for name in (*CASES, "mixture", "labelled", "mixed labelled")),
    *((name, 10) for name in ("packed", "stream in order", "sentence_stream", "stream_pair", "mixture", "labelled"))])
def test_an_evaluation_shows_every_example_once_on_any_number_of_hosts(name, limit, random_store):
    plan = dataset(name, random_store)
    count = min(limit or plan.evaluation_examples, plan.evaluation_examples)
    full = evaluated(plan, limit=limit)
    numbers = np.concatenate([batch["example"] for batch in full])
    assert len(full) == -(-count // SIZE)
    shown = numbers[numbers >= 0]
    if name == "mixture":
        assert len(set(shown.tolist())) == count
    else:
        assert sorted(shown.tolist()) == list(range(count))
    for batch in full:
        np.testing.assert_array_equal(batch["segment_ids"].any(axis=1), batch["example"] >= 0)
    for host in HOSTS:
        assert_parts(full, evaluated(plan, host, limit), host)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if FORMATS[case.name].contiguous(
    config_of(case)) and "following" in FORMATS[case.name].fields(config_of(case))])
def test_an_example_that_is_not_reset_begins_with_the_token_that_follows_the_previous_one(name, random_store):
    shown = run(make(name, random_store(2, 25)))
    for texts in (shown, [batch["backward"] for batch in shown if "backward" in batch] or shown):
        assert texts[0]["reset"].all()
        continued = 0
        for before, after, batch in zip(texts, texts[1:], shown[1:], strict=False):
            goes_on = (after["reset"] == 0) & (batch["example"] >= 0)
            continued += goes_on.sum()
            np.testing.assert_array_equal(before["following"][goes_on], after["tokens"][goes_on, 0])
        assert continued > 0.6 * SIZE * STEPS


@pytest.mark.parametrize("name", CASES)
def test_an_end_of_text_alone_serves_all_formats_but_pairs(name, make_store):
    store = make_store([[4, 30], [5, 2]], {"eos": 1})
    if FORMATS[CASES[name].name].fields(config_of(CASES[name])).count("pair_label"):
        with pytest.raises(UserError, match="cls nor for sep"):
            make(name, store)
        return
    batch = everything(make(name, store, length=16))
    real = batch["segment_ids"] > 0
    assert real[0, 0] and (batch["tokens"][0, 0] == 1) == (CASES[name].name == "sentence_stream")
    assert (batch["tokens"][real] == 1).any() and (batch["tokens"][~real] == 1).all()


LEAST = {"segment_pair": 5, "sentence_pair": 5, "stream": 2, "stream_pair": 9}  # tokens of an example; others: 3


@pytest.mark.parametrize("name", FORMATS)
def test_the_least_length_holds_a_token_of_each_text(name, random_store):
    least = LEAST.get(name, 3)
    assert make(name, random_store(0, 3), least).examples > 0
    with pytest.raises(UserError, match=f"length is {least - 1}, .*'{name}'.* set it to {least} or more"):
        make(name, random_store(0, 3), least - 1)
