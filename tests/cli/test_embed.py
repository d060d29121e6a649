"""`lmrep embed`: a text file into safetensors."""

import resource
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

import lmrep
from lmrep.core.errors import UserError
from lmrep.inference import export
from tests import given, small

LINES = ["The red cat sees the old dog.", "", "A catdog likes [MASK]  birds!", "Old.", "the red bird " * 9, "  ", "Fin"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run in `run`, and LINES in `texts.txt`."""
    home = tmp_path_factory.mktemp("embed")
    given.workdir(home)
    (home / "texts.txt").write_text("\r\n".join(LINES), newline="")  # no end of line at the end
    return home


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "run")


def embed(home, output, *words, source=None):
    return small.command("embed", f"--workdir={home}/run", f"--input={source or home / 'texts.txt'}",
                         f"--output={output}", *words)


@pytest.mark.parametrize("layers", ["all", "sum:2,3"])
def test_each_line_has_a_tensor_named_by_its_number(home, run, tmp_path, layers):
    result = embed(home, tmp_path / "v.safetensors", f"--layers={layers}")
    assert result.code == 0 and result.out == f"{tmp_path}/v.safetensors\n"
    assert "7 of 7 lines" in result.err and "tokens/s" in result.err
    found = load_file(tmp_path / "v.safetensors")
    assert found.keys() == set(map(str, range(len(LINES))))
    for i, text in enumerate(LINES):
        [alone] = run.encode([text], layers)
        assert found[str(i)].dtype == np.float32 and found[str(i)].shape == alone.hidden.shape
        np.testing.assert_allclose(found[str(i)], alone.hidden, rtol=0, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["v.safetensors"]


def test_file_metadata_describes_its_contents(home, tmp_path):
    embed(home, tmp_path / "v.safetensors", "--layers=sum:-1,0", "--words")
    with safetensors.safe_open(tmp_path / "v.safetensors", "np") as file:
        assert file.metadata() == {"layers": "sum:3,0", "vectors": "words, mean of their tokens", "step": "0"}
        assert file.get_slice("0").get_shape() == [1, 8, 32]


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_words_have_one_vector_each(home, run, tmp_path, pooling):
    assert embed(home, tmp_path / "v.safetensors", "--words", f"--pooling={pooling}").code == 0
    found = load_file(tmp_path / "v.safetensors")
    assert found["1"].shape == found["5"].shape == (1, 0, 32)
    for i, text in enumerate(LINES):
        expected = run.encode([text])[0].by_word(pooling)
        assert found[str(i)].shape == expected.shape
        np.testing.assert_allclose(found[str(i)], expected, rtol=0, atol=1e-5)


def test_pretokenized_lines_have_one_vector_for_each_word(home, run, tmp_path):
    assert embed(home, tmp_path / "v.safetensors", "--pretokenized").code == 0
    found = load_file(tmp_path / "v.safetensors")
    for i, text in enumerate(LINES):
        expected = run.encode([text], pretokenized=True)[0].by_word()
        assert found[str(i)].shape == expected.shape == (1, len(text.split()), 32)
        np.testing.assert_allclose(found[str(i)], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "max", "cls"])
def test_pooled_lines_are_the_rows_of_one_array(home, run, tmp_path, pool):
    output = tmp_path / "v.npy"
    assert embed(home, output, f"--pool={pool}").out == f"{output}\n"
    found, vectors = np.load(output, mmap_mode="r"), run.embed(LINES, pool)
    assert found.dtype == vectors.dtype == np.float32 and found.shape == vectors.shape == (len(LINES), 32)
    expected = np.stack([text.pool(pool)[-1] for text in run.encode(LINES)])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


def test_pooled_layers_are_combined(run):
    assert run.embed(LINES[:2], layers="concat:1,2").shape == (2, 64) and run.embed([]).shape == (0, 32)
    with pytest.raises(UserError, match="layers are 0,1,2,3, and a text has one pooled vector; give one layer"):
        run.embed(LINES, layers="all")


def test_large_input_is_written_as_several_files(home, run, tmp_path, monkeypatch):
    """Each file has as many lines as fit in the header."""
    many = tmp_path / "many.txt"
    many.write_text("".join(f"{line}\n" for line in LINES * 3))
    monkeypatch.setattr(export, "LINES", 5)
    monkeypatch.setattr(export, "HEADER", 1200)
    result = embed(home, tmp_path / "v.safetensors", source=many)
    assert result.code == 0
    names = result.out.split()
    assert len(names) > 1 and names[0].endswith(f"/v-00001-of-{len(names):05}.safetensors")
    files = [load_file(name) for name in names]
    assert all(int.from_bytes(Path(name).read_bytes()[:8], "little") <= 1200 for name in names)
    assert [int(i) for file in files for i in sorted(file, key=int)] == list(range(21))
    for i, hidden in {int(i): x for file in files for i, x in file.items()}.items():
        np.testing.assert_allclose(hidden, run.encode([LINES[i % 7]])[0].hidden, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LINES", 64)

    def peak(lines):
        (tmp_path / "text.txt").write_text("The red cat sees the old dog.\n" * lines)
        tracemalloc.start()
        export.embed(run, tmp_path / "text.txt", tmp_path / f"{lines}.safetensors")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(64)
    few, many = peak(128), peak(1280)
    size = (tmp_path / "1280.safetensors").stat().st_size
    assert size > 1280 * 10 * 32 * 4 and many - few < size / 3  # the header has a line a tensor


def test_empty_file_is_refused(home, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    result = embed(home, tmp_path / "v.safetensors", source=tmp_path / "empty.txt")
    assert result.code == 2 and "empty.txt is empty; give a file with a text on each line" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_long_lines_are_split_into_windows_on_request(home, run, tmp_path):
    text = "the red cat sees " * 30
    (tmp_path / "long.txt").write_text(f"Old.\n{text}\n")
    assert embed(home, tmp_path / "v.safetensors", "--long=windows", source=tmp_path / "long.txt").code == 0
    [expected] = run.encode([text], long="windows")
    np.testing.assert_allclose(load_file(tmp_path / "v.safetensors")["1"], expected.hidden, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("content", "words", "message"), [
    (None, [], "cannot read {source}: No such file or directory"),
    (b"Old.\nUn caf\xe9.\n", [], "{source} is not UTF-8 text: line 2 has the byte 0xe9; convert it"),
    (b"Old.\n" + b"cat " * 60, [], "line 2 of {source} has 62 tokens; the model takes 48 at most"),
    (b"Old.\n" + b"cat " * 600, [], "{source}, line 2 is longer than 2 kB"),
    (b"Old.\n", ["--layers=4"], "layers is '4', and there is no layer 4"),
    (b"Old.\n", ["--long=cut"], "long is 'cut'; expected one of refuse, windows"),
    (b"Old.\n", ["--words", "--pooling=max"], "words is 'max'; expected one of mean, first, last"),
    (b"Old.\n", ["--pool=mean"], "v.safetensors; vectors are written as one NumPy array, so give a name that ends in "
                                  ".npy"),
    (b"Old.\n", ["--pool=first"], "pool is 'first'; expected one of mean, cls, max"),
    (b"Old.\n", ["--pool=max", "--words"], "pool gives one vector a line, and words one a word; leave one of them out"),
    (b"Old.\n", ["--output={there}"], "{there} exists; remove it, or give another --output"),
    (b"Old.\n", ["--output={source}/v.safetensors"], "there is no directory {source}"),
    (b"Old.\n", ["--output={source}.npz"], "the output is {source}.npz; vectors are written as safetensors, so give"),
    (b"Old.\n", ["--output=/"], "give a name that ends in .safetensors"),
    (b"Old.\n", ["--input="], "lmrep embed needs --input"),
    (b"Old.\n", ["--input=/dev/null"], "/dev/null is a device; expected a regular file"),
    (b"Old.\n", ["--step=3"], "holds no checkpoint 3; it holds 0"),
    (b"Old.\n", ["Old."], "takes no argument 'Old.'"),
])
def test_embed_refuses_invalid_input(home, tmp_path, monkeypatch, content, words, message):
    monkeypatch.setattr(export, "LONGEST_LINE", 2000)
    paths = {"source": (source := tmp_path / "text.txt"), "there": (there := tmp_path / "there.safetensors")}
    there.write_bytes(b"")
    if content is not None:
        source.write_bytes(content)
    before = small.contents(tmp_path)
    result = embed(home, tmp_path / "v.safetensors", *(word.format(**paths) for word in words), source=source)
    assert result.code == 2 and message.format(**paths) in result.err, result
    assert small.contents(tmp_path) == before


def test_full_disk_leaves_no_output(home, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        result = embed(home, tmp_path / "v.safetensors", "--layers=all")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.code == 3 and "v.safetensors: File too large; nothing is written" in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_interrupted_embed_leaves_no_output(home, tmp_path):
    (tmp_path / "many.txt").write_text("The red cat sees the old dog.\n" * 200_000)
    process = small.start("embed", f"--workdir={home}/run", f"--input={tmp_path}/many.txt",
                          f"--output={tmp_path}/v.safetensors")
    small.until(lambda: len([*tmp_path.glob(".v.safetensors*")]) > 0, process)
    process.terminate()
    assert small.finish(process).code == 143 and [path.name for path in tmp_path.iterdir()] == ["many.txt"]


def test_input_that_grows_while_it_is_read_is_detected(home, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "count_lines", lambda path: 5)
    result = embed(home, tmp_path / "v.safetensors")
    assert result.code == 3 and "texts.txt changed while it was read" in result.err and list(tmp_path.iterdir()) == []
