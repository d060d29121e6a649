"""The files of the BabyLM challenge: how lines are cleaned, documents, and files that are missing."""

import pytest

from lmrep.core.errors import UserError
from lmrep.data.corpora import Config, babylm, open_corpus, text

LINES = {
    "childes": ("*MOT:\tdo you see the dog ?\n*MOT:\tdo you see the dog ?\n*CHI:\tdog .\n",
                ['"*MOT: do you see the dog?"', '"*CHI: dog."']),
    "bnc_spoken": ("we do n't know,really .\n.\nyes ( he said )\n\nyes\n",
                   ['"We don\'t know, really."', '"Yes (he said)"', '"Yes"']),
    "switchboard": ("A:\tWell,   no\n- B: Yes\nB: Yes\n", ['"A: Well, no"', '"B: Yes"']),
    "open_subtitles": ("- Come in .\n-Come in .\nJOHN:\n[ door ]\n\"Sit\" he said\n",
                       ['"Come in ."', "JOHN:", "[ door ]", '"Sit" he said']),
    "gutenberg": ("The ship left\nthe   harbour.\n\n\nIt was late.\n", ["The ship left the harbour.", "It was late."]),
    "simple_wiki": ("A cat[1] is an animal &amp;amp; a pet.[12]\n\nX is a village in Y.\nIt eats fish.\n",
                    ["A cat is an animal & a pet.", "It eats fish."])}


def files(directory, **texts):
    """Writes the six files, with a sentence by default."""
    directory.mkdir(exist_ok=True)
    for name in babylm.CLEANERS:
        (directory / f"{name}.train").write_text(texts.get(name, f"A sentence of {name}.\n"))
    return directory


def documents(pattern):
    return [*open_corpus(Config(corpus="babylm", files=str(pattern))).documents()]


@pytest.mark.parametrize("name", LINES)
def test_lines_are_cleaned_as_their_file_needs(tmp_path, name):
    raw, expected = LINES[name]
    (tmp_path / f"{name}.dev").write_text(raw)
    assert "\n".join(documents(tmp_path / "*.dev")).splitlines() == expected


def test_every_file_has_an_example():
    assert LINES.keys() == babylm.CLEANERS.keys()


def test_a_document_ends_at_a_heading_and_when_it_is_long(tmp_path, monkeypatch):
    article = "One line.\n\nAnother line.\n"
    files(tmp_path / "a", simple_wiki=f"= = = A title = = =\n{article}= = = B = = =\n\n= = = C = = =\nLast.\n",
          gutenberg="\n".join(f"Line {i} of a book.\n" for i in range(2000)))
    found = documents(tmp_path / "a")
    assert found[-3:] == ["One line.\nAnother line.", "Last.", '"A sentence of switchboard."']
    book = [document for document in found if "book" in document]
    assert len(book) > 3 and all(babylm.PIECE <= len(document.replace("\n", "")) < babylm.PIECE + 30
                                 for document in book[:-1])
    assert "\n".join(book).splitlines() == [f"Line {i} of a book." for i in range(2000)]
    monkeypatch.setattr(text, "CHUNK", 7)  # blocks of a file have no effect
    assert documents(tmp_path / "a/*.train") == found


def test_files_of_other_names_and_missing_files_are_refused(tmp_path):
    folder = files(tmp_path / "train_10M")
    (folder / "childes.train").rename(folder / "childes.dev")
    with pytest.raises(UserError, match=r"lacks childes\.train; expected bnc_spoken\.train, childes\.train, .*FOLDER"):
        open_corpus(Config(corpus="babylm", files=str(folder)))
    with pytest.raises(UserError, match=r"has aochildes\.train; expected bnc_spoken\.train"):
        (folder / "aochildes.train").write_text("a\n")
        open_corpus(Config(corpus="babylm", files=str(folder / "*.train")))
    with pytest.raises(UserError, match="matches no file"):
        open_corpus(Config(corpus="babylm", files=str(tmp_path / "nothing")))
    assert documents(folder / "*.dev") == ['"A sentence of childes."']


def test_the_fingerprint_changes_with_a_file(tmp_path):
    folder = files(tmp_path / "a")
    first = open_corpus(Config(corpus="babylm", files=str(folder))).fingerprint()
    assert first == open_corpus(Config(corpus="babylm", files=str(folder / "*.train"))).fingerprint()
    files(folder, childes="Other.\n")
    assert first != open_corpus(Config(corpus="babylm", files=str(folder))).fingerprint()
