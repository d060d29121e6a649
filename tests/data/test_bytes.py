"""The tokenizer of bytes."""

from lmrep.data.tokenizers.byte_level import Bytes

TEXT = "Caf\u00e9,\n\n  x\ty \u5927!\u00a0 it's <mask> 12"


def test_ids_are_the_bytes_after_the_special_tokens():
    [ids] = Bytes().encode_batch([TEXT])
    assert (ids - 5).tolist() == list(TEXT.encode())
    assert Bytes().decode(ids) == TEXT
    assert Bytes().size == 5 + 256 and sorted(Bytes().vocabulary.specials.values()) == [0, 1, 2, 3, 4]


def test_special_tokens_are_matched_where_requested_and_every_byte_has_its_characters():
    encoding = Bytes().encode(TEXT, specials=True)
    assert encoding.ids.tolist().count(Bytes().vocabulary.specials["mask"]) == 1
    accent = Bytes().encode("a\u00e9b")
    assert accent.offsets == [(0, 1), (1, 2), (1, 2), (2, 3)] and accent.words == [0] * 4
