"""Files of word senses: XML of sentences and a file of keys; what is dangerous or does not fit is refused."""

import pytest

from lmrep.core.errors import UserError
from lmrep.data import records

NEEDED = ("text", "span", "lemma", "senses")
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
SENTENCE = """<corpus lang="en"><text id="d0"><sentence id="d0.s0">
<wf lemma="the" pos="DET">The</wf>
<instance id="d0.s0.t0" lemma="power_plant" pos="NOUN">power plant</instance>
<wf lemma="&amp;" pos=".">&amp;</wf>
<instance id="d0.s0.t1" lemma="light">light</instance>
</sentence></text></corpus>
"""
KEYS = "d0.s0.t0 plant%1:06:01::\nd0.s0.t1 light%1:19:00:: light%1:19:05::\n"
BOMB = '<!DOCTYPE corpus [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>\n'
OUTSIDE = '<!DOCTYPE corpus SYSTEM "file:///etc/passwd">\n'


def read(folder, xml=HEAD + SENTENCE, keys=KEYS, split="train", **settings):
    (folder / "a.data.xml").write_text(xml)
    if keys is not None:
        (folder / "a.gold.key.txt").write_text(keys)
    return records.read(records.Config(**{split: str(folder / "a.data.xml")}, **settings), split, NEEDED)


def test_each_instance_is_a_word_of_its_sentence_with_all_its_keys(tmp_path):
    plant, light = read(tmp_path)
    assert plant.id == "d0.s0.t0" and plant.where.endswith("a.data.xml, line 4") and plant.fields == {
        "text": "The power plant & light", "span": [4, 15], "lemma": "power_plant", "pos": "NOUN",
        "senses": ["plant%1:06:01::"]}
    assert light.fields == {"text": plant.fields["text"], "span": [18, 23], "lemma": "light",
                            "senses": ["light%1:19:00::", "light%1:19:05::"]}


def test_test_files_may_lack_keys(tmp_path):
    assert ["senses" in record.fields for record in read(tmp_path, keys=None, split="test")] == [False, False]


@pytest.mark.parametrize(("xml", "keys", "message"), [
    (HEAD + BOMB + SENTENCE, KEYS, r"a\.data\.xml, line 2 declares a document type"),
    (HEAD + OUTSIDE + SENTENCE, KEYS, r"a\.data\.xml, line 2 declares a document type"),
    (SENTENCE.replace("&amp;</wf>", "&xxe;</wf>"), KEYS, r"a\.data\.xml, line 4 is not well-formed XML: undefined ent"),
    (SENTENCE.replace("</sentence>", ""), KEYS, r"a\.data\.xml, line 6 is not well-formed XML: mismatched tag"),
    ("", KEYS, r"a\.data\.xml.* is not well-formed XML: no element found"),
    ("<a>" * 100_000, KEYS, r"a\.data\.xml, line 1 has more than 16 levels"),
    (SENTENCE.replace('lang="en"', f'lang="{"e" * 20_000}"'), KEYS, r"line 1: 'lang' of 'corpus' has 20,000 chara"),
    (SENTENCE.replace("The", "The" * 5_000), KEYS, r"a\.data\.xml, line 2 has a word of 15,000 characters"),
    ("<corpus><text><sentence><wf>a</wf></sentence></text></corpus>", "", r"a\.data\.xml has no instance"),
    ("<corpus><instance id='x' lemma='y'>y</instance></corpus>", KEYS, r"line 1 has the element instance outside of a"),
    (SENTENCE.replace(' lemma="light"', ""), KEYS, r"a\.data\.xml, line 5 has an instance without 'lemma'"),
    (SENTENCE.replace(">light<", "> <"), KEYS, r"a\.data\.xml, line 5 has an instance without text"),
    (SENTENCE.replace("s0.t1", "s0.t0"), KEYS, r"a\.data\.xml, line 5 has the instance 'd0\.s0\.t0' again"),
    (SENTENCE, None, r"a\.gold\.key\.txt is missing"),
    (SENTENCE, KEYS.split("\n")[0], r"a\.data\.xml, line 5: the instance 'd0\.s0\.t1' has no line in .*a\.gold\.key"),
    (SENTENCE, KEYS + "d0.s1.t0 a\n", r"a\.gold\.key\.txt, line 3 has keys of 'd0\.s1\.t0', and .* no such instance"),
    (SENTENCE, KEYS + KEYS, r"a\.gold\.key\.txt, line 3 has keys of 'd0\.s0\.t0' again"),
    (SENTENCE, "d0.s0.t0\n" + KEYS, r"a\.gold\.key\.txt, line 1 has nothing after 'd0\.s0\.t0'")])
def test_what_is_dangerous_or_does_not_fit_is_refused_in_one_message(tmp_path, xml, keys, message):
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path, xml, keys)
    assert len(str(error.value)) < 600
