"""fastai's preprocessing. Expected words come from fastai 1.0.61's rules and from the scripts of the paper, with spaCy
3.8.18."""

import json
import sys

import pytest

from lmrep.core.errors import UserError
from lmrep.data import tokenizers
from lmrep.data.tokenizers import Config, fastai
from lmrep.data.tokenizers.fastai import FastaiPaper, FastaiV1, substitute

CASES = [  # text, words of fastai 1.0, words of the paper's scripts
    ("Great movie, NOT bad!<br /><br />I don&amp;#39;t think it's $9.99.",
     ['xxmaj', 'great', 'movie', ',', 'xxup', 'not', 'bad', '!', '\n \n ', 'i', "don&&'t", 'think', 'it', "'s",
      '$', '9.99', '.'],
     ['great', 'movie', ',', 't_up', 'not', 'bad', '!', '\n\n', 'i', "don&&'t", 'think', 'it', "'s", '$',
      '9.99', '.']),
    ('Sooooo good!!!! no no no no no way',
     ['s', 'xxrep', '5', 'o', 'good', 'xxrep', '4', '!', 'xxwrep', '5', 'no', 'way'],
     ['s', 'tk_rep', '5', 'o', 'good', 'tk_rep', '4', '!', 'tk_wrep', '5', 'no', 'way']),
    ('He said &quot;the 1 @,@ 000 @-@ year @.@ plan&quot; \\"ok\\" and a/b #1 C:\\\\dir',
     ['xxmaj', 'he', 'said', '&', "'", 'the', '1,000', '-', 'year.plan', '&', "'", '"', 'ok', '"', 'and', 'a',
      '/', 'b', '#', '1', 'c', ':', '\\', '\\', 'dir'],
     ['he', 'said', '&', "'", 'the', '1', '@,@', '000-year.plan', '&', "'", '"', 'ok', '"', 'and', 'a', '/',
      'b', '#', '1', 'c', ':', '\\', '\\', 'dir']),
    ("A U.S.A. IMDb iPhone O'Neil's e.g. I'M OK McDonald",
     ['a', 'xxup', 'u.s.a.', 'imdb', 'iphone', "o'neil", "'s", 'e.g.', 'xxup', "i'm", 'xxup', 'ok', 'mcdonald'],
     ['a', 'u.s.a', '.', 'imdb', 'iphone', "o'neil", "'s", 'e.g.', 'i', "'m", 'ok', 'mcdonald']),
    ('<unk> xxbos   spaces\n\n  and\tlines <BR/> end :-)hello:)',
     ['xxunk', 'xxbos', 'spaces', '\n \n ', 'and', '\t', 'lines', '<', 'xxup', 'br', '/', '>', 'end', ':',
      '-)hello', ':)'],
     ['u_n', 'xxbos', 'spaces', '\n\n ', 'and', '\t', 'lines', '<', 'br', '/', '>', 'end', ':', '-)hello',
      ':)']),
    ('&lt;b&gt;caf\xe9&lt;/b&gt; na\xefve \u2014 well-known 10am 5km 1/2 ...',
     ['<', 'b', '>', 'caf\xe9', '<', '/', 'b', '>', 'na\xefve', '\u2014', 'well', '-', 'known', '10', 'am',
      '5', 'km', '1', '/', '2', '...'],
     ['<', 'b', '>', 'caf\xe9', '<', '/', 'b', '>', 'na\xefve', '\u2014', 'well', '-', 'known', '10', 'am',
      '5', 'km', '1', '/', '2', '...']),
    ("\u0130stanbul STRA\xdfE 0000 (don't) rock'n'roll http://x.com/a?b=c.",
     ['xxmaj', 'i\u0307stanbul', 'stra\xdfe', 'xxrep', '4', '0', '(', 'do', "n't", ')', "rock'n'roll", 'http',
      ':', '/', '/', 'x.com', '/', 'a?b', '=', 'c.'],
     ['i\u0307stanbul', 'stra\xdfe', 'tk_rep', '4', '0', '(', 'do', "n't", ')', "rock'n'roll", 'http', ':',
      '/', '/', 'x.com', '/', 'a?b', '=', 'c.']),
]


@pytest.mark.parametrize(("text", "v1", "paper"), CASES)
def test_words_are_those_of_fastai(text, v1, paper):
    assert FastaiV1.words(text) == v1
    assert FastaiPaper.words(text) == paper


def test_words_need_spacy(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    fastai._spacy.cache_clear()
    with pytest.raises(UserError, match="spaCy, which is not installed: pip install"):
        FastaiV1.words("a text")
    fastai._spacy.cache_clear()


@pytest.mark.parametrize("cls", [FastaiV1, FastaiPaper])
def test_spans_of_changed_text_point_to_the_text(cls):
    text = "Noooo! &lt;b&gt; THE <br />end"
    changed, spans = substitute(cls.before, text)
    expected = text
    for pattern, replacement in cls.before:
        expected = pattern.sub(replacement, expected)
    assert changed == expected and len(spans) == len(changed)
    encoding = cls([*cls.roles.values(), *cls.reserved, *set(cls.words(text))]).encode(text)
    found = {token: text[start:end] for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)}
    assert found["o"] == "oooo" and found["<"] == "&lt;" and found["the"] == "THE" and found["end"] == "end"


def test_a_vocabulary_has_frequent_words_in_the_order_of_the_text():
    texts = ["b a b a The the rare", "c c c <br /><br />", "A a"]
    found = tokenizers.train(Config("fastai_v1", 64, lowercase=False), lambda: iter(texts))
    assert found.tokens == ["xxunk", "xxpad", "xxbos", "xxeos", "xxfld", "xxmaj", "xxup", "xxrep", "xxwrep",
                            "a", "c", "b", "the"]
    six = FastaiV1([*found.tokens, "6"])
    assert six.decode(six.encode_batch(["The THE the aaaaaa rare"])[0]) == "The THE the aaaaaa xxunk"
    paper = tokenizers.train(Config("fastai_paper", 64), lambda: iter(texts))
    assert paper.tokens == ["_unk_", "_pad_", "xbos", "a", "c", "b", "the"]
    assert len(tokenizers.train(Config("fastai_v1", 64, lowercase=False),
                                lambda: iter([" ".join(f"w{i}" for i in range(99))] * 2)).tokens) == 64


def test_published_vocabularies_are_read_from_json(tmp_path):
    v1 = ["xxunk", "xxpad", "xxbos", "xxeos", "xxfld", "xxrep", "xxwrep", "xxup", "xxmaj", "the", "xxfake", "xxfake"]
    paper = ["_unk_", "_pad_", "the", ",", "xbos"]
    for name, tokens in (("fastai_v1", v1), ("fastai_paper", paper)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "itos.json").write_text(json.dumps(tokens))
        for found in (tokenizers.load(tmp_path / name), tokenizers.from_vocab_file(Config(
                name, vocab_file=str(tmp_path / name / "itos.json"), lowercase=name == "fastai_paper"))):
            assert found.name == name and found.tokens == tokens and found.vocabulary.specials["pad"] == 1
    assert tokenizers.load(tmp_path / "fastai_paper").vocabulary.specials == {"unk": 0, "pad": 1, "eos": 4}


@pytest.mark.parametrize(("content", "message"), [
    ("{}", "list of texts"), ("[1]", "list of texts"), ('["xxunk", "a", "a"]', "twice"), ('["a"]', "xxunk nor _unk_"),
    ("[", "not valid JSON"), ('["_unk_", "_pad_"]', "has no xxunk")])
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "itos.json").write_text(content)
    with pytest.raises(UserError, match=message):
        tokenizers.from_vocab_file(Config("fastai_v1", vocab_file=str(tmp_path / "itos.json"), lowercase=False))


def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path):
    (tmp_path / "itos.pkl").write_bytes(b"\x80\x03]q\x00.")
    with pytest.raises(UserError, match=r"pickle.*json\.dump"):
        tokenizers.from_vocab_file(Config("fastai_v1", vocab_file=str(tmp_path / "itos.pkl"), lowercase=False))
