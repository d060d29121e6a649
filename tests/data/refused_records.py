"""Labelled files that are refused: id -> the file, its content, settings, and what the message must name."""

import gzip
import json

DELIMITED = {
    "tsv unknown column": ("a.tsv", "text\tlabel\na\tx\n", {"columns": {"text": "sentense"}}, "line 1", "'sentense'"),
    "tsv misspelt column": ("a.tsv", "sentence\tlabel\na\tx\n", {"columns": {"text": "sentense"}}, "'sentence'"),
    "tsv needed field": ("a.tsv", "text\tx\na\tx\n", {"needed": ["text", "label"]}, "'label'", "{'label': 'x'}"),
    "tsv needed column": ("a.tsv", "text\tlabel\na\tx\n", {"needed": ["text2"]}, "'text2'", "text, label"),
    "tsv other separator": ("a.tsv", "body;class\na;x\n", {"columns": {"text": "body"}}, "config.data.separator=';'"),
    "csv other separator": ("a.csv", "body;class\na;x\n", {"columns": {"text": "body"}, "separator": ","},
                            "config.data.separator=';'"),
    "tsv column number": ("a.tsv", "a\tb\nc\td\n", {"columns": {"text": "2"}}, "column 2"),
    "tsv huge column": ("a.tsv", "text\na\n", {"columns": {"text": "9" * 5000}}, "line 1"),
    "tsv no columns": ("a.tsv", "gj04\t1\n", {}, "'gj04', '1'", "config.data.columns"),
    "tsv row too wide": ("a.tsv", "text\tlabel\na\tx\ty\n", {}, "line 2", "3 columns"),
    "tsv row too narrow": ("a.tsv", "a\tx\nb\n", {"columns": {"text": "1"}}, "line 2", "1 column "),
    "tsv negative column": ("a.tsv", "a\tx\nb\n", {"columns": {"text": "0", "label": "-1"}}, "line 2", "1 column "),
    "tsv wide row, last column": ("a.tsv", "1\ta\n2\tb\tc\n", {"columns": {"label": "0", "text": "-1"}}, "line 2"),
    "tsv empty text": ("a.tsv", "text\tlabel\n \tx\n", {}, "line 2", "text"),
    "tsv empty label": ("a.tsv", "text\tlabel\na b\tx\n\t\n", {}, "line 3", "label"),
    "tsv nothing before the mark": ("a.tsv", "text\tlabel\na\t:x\n", {"label_until": ":"}, "line 2",
                                    "config.data.label_until", "':x'"),
    "tsv bytes": ("a.tsv", b"text\tlabel\ncaf\xe9\tx\n", {}, "a.tsv, line 2", "0xe9", "encoding"),
    "tsv header alone": ("a.tsv", "text\tlabel\n", {}, "a.tsv"),
    "tsv empty": ("a.tsv", "", {}, "a.tsv"),
    "unknown field": ("a.tsv", "text\tlabel\na\tx\n", {"columns": {"txt": "0"}}, "'txt'", "'text'"),
    "tsv words and tags": ("a.tsv", "words\ttags\na b\tX\n", {}, "line 2", "2 words and 1 tags"),
    "tsv no header": ("a.tsv", "quality\tfirst\n1\tOne.\n", {"columns": {"text": "first"}, "header": "no"},
                      "header", "'first'"),
    "tsv control characters": ("a.tsv", b"a\0\x1b[1m\x07\tb\n", {"needed": ["text"]}, r"a\x00\x1b[1m\x07, b"),
    "tsv many columns": ("a.tsv", "\t".join("x" * i for i in range(1, 999)) + "\n", {"needed": ["text"]}, "xxx, ..."),
    "csv quote not closed": ("a.csv", 'text,label\na,x\n"b,y\n', {}, "a.csv, line 3"),
    "csv quote, damaged allowed": ("a.csv", 'text,label\na,x\n"b,y\n', {"damaged_examples": 9}, "a.csv, line 3"),
    "csv quote inside": ("a.csv", 'text,label\n"a"b,x\nc,y\n', {}, "a.csv, line 2"),
    "swag quote in header": ("a.csv", 'sent1,sent2,ending0,ending1,"label\n', {"format": "choices"}, "a.csv, line 1"),
    "swag empty": ("a.csv", "", {"format": "choices"}, "a.csv"),
    "csv unknown choice column": ("a.csv", "sent,e0,e1,e2,gold\nHe,ran,sat,slept,2\n",
                                  {"columns": {"text": "sent", "choices": "e0,e3", "label": "gold"}}, "'e3'", "e0"),
    "csv label beyond choices": ("a.csv", "sent,e0,e1,gold\nHe,ran,sat,2\n",
                                 {"columns": {"text": "sent", "choices": "e0,e1", "label": "gold"}}, "line 2", "'2'"),
    "label left out by the map": ("a.tsv", "label\ttext\nLOC:city\ta\n", {"label_map": {"LOC": "place"}}, "'LOC:city'",
                                  "'LOC'", "label_map"),
    "all labels left out": ("a.tsv", "label\ttext\nLOC\ta\n", {"label_map": {"LOC": ""}}, "a.tsv", "all 1"),
    "tag without a name": ("a.jsonl", '{"words": ["Ann", "left"], "tags": [1, 0]}', {"label_map": {"0": ""}},
                           "a.jsonl, line 1", "label_map"),
    "map of other tags": ("a.jsonl", '{"words": ["Ann"], "tags": [1]}', {"label_map": {"B": "O"}}, "label_map"),
    "held out twice": ("a.tsv", "text\na\nb\n", {"held_out": 5, "validation": "a.tsv"}, "config.data.held_out",
                       "config.data.validation"),
    "held out phrases": ("a.tsv", "text\na\nb\n", {"held_out": 5, "phrases": True}, "held_out", "phrases"),
    "held out of one": ("a.tsv", "text\na\n", {"held_out": 5}, "config.data.held_out")}
NO_ENCODINGS = {f"encoding {name}": ("a.tsv", "text\na\n", {"encoding": name}, "config.data.encoding", f"'{name}'")
                for name in ("base64", "idna", "punycode", "undefined")}
INVISIBLE = {f"invisible text {i}": ("a.jsonl", json.dumps({"text": "x"}) + "\n" + json.dumps({"text": text}), {},
                                     "a.jsonl, line 2", "text")
             for i, text in enumerate(("\u200b\u200d", "\ufeff \x00", "\u2028"))}
JSON = {
    "jsonl damaged beyond the limit": ("a.jsonl", '{"a": "b"}\n' * 3, {"columns": {"text": "c"}, "damaged_examples": 2},
                                       "more than 2", "line 1"),
    "jsonl blank label": ("a.jsonl", '{"text": "a", "label": " "}\n', {}, "line 1", "label"),
    "jsonl null label": ("a.jsonl", '{"text": "a", "label": null}\n', {"needed": ["label"]}, "line 1", "'label'"),
    "jsonl surrogate in text": ("a.jsonl", '{"text": "a \\ud800"}\n', {}, "a.jsonl, line 1: the text", "undecodable"),
    "jsonl surrogate in label": ("a.jsonl", '{"text": "a", "label": "x\\udfff"}\n', {}, "line 1: the label"),
    "jsonl surrogate in id": ("a.jsonl", '{"text": "a", "id": "\\ud8003"}\n', {}, "line 1: the id"),
    "jsonl surrogate in words": ("a.jsonl", '{"words": ["a", "\\ud800"]}\n', {}, "line 1: the words"),
    "jsonl key twice": ("a.jsonl", '{"text": "a", "label": 0, "label": 1}\n', {}, "a.jsonl, line 1", "'label'"),
    "jsonl huge number": ("a.jsonl", '{"text": "a", "label": %s}\n' % ("9" * 5000), {}, "a.jsonl, line 1"),
    "jsonl deep nesting": ("a.jsonl", '{"text": "a", "label": %s}\n' % ("[" * 5000), {}, "a.jsonl, line 1"),
    "jsonl huge label": ("a.jsonl", '{"choices": ["a", "b"], "label": "%s"}\n' % ("1" * 5000), {}, "'111"),
    "jsonl not JSON": ("a.jsonl", '{"text": "a"}\n{"text": }\n', {}, "a.jsonl, line 2", "character 10"),
    "json not JSON": ("a.json", '[{"text": "a"},\n {"text" "b"}]', {}, "a.json", "line 2"),
    "jsonl list": ("a.jsonl", '{"text": "a"}\n[1]\n', {}, "line 2"),
    "jsonl other fields": ("a.jsonl", '{"txt": "a", "b": 1}\n', {"needed": ["text"]}, "line 1", "'text'", "txt, b"),
    "json other fields": ("a.json", '{"data": [{"body": "a"}]}', {"needed": ["text"]}, "a.json, data[0]", "'text'",
                          "body"),
    "jsonl number as text": ("a.jsonl", '{"text": 5}\n', {"needed": ["text"]}, "line 1", "'text'", "5"),
    "jsonl nested field": ("a.jsonl", '{"body": {"x": 1}}\n', {"columns": {"text": "body.text"}}, "'body.text'"),
    "jsonl empty word": ("a.jsonl", '{"words": ["a", " "]}\n', {}, "line 1", "words"),
    "jsonl empty choice": ("a.jsonl", '{"choices": ["a", ""], "label": 0}\n', {}, "line 1", "choices"),
    "jsonl label beyond choices": ("a.jsonl", '{"choices": ["a", "b"], "label": 2}\n', {}, "line 1", "'2'"),
    "jsonl label of choices": ("a.jsonl", '{"choices": ["a", "b"], "label": "B"}\n', {}, "'B'", "label_map"),
    "jsonl answer elsewhere": ("a.jsonl", '{"context": "a b", "answers": [["b", 1]]}\n', {}, "line 1", "'b'",
                               "character 1"),
    "jsonl answer beyond": ("a.jsonl", '{"context": "a b", "answers": [["b", 9]]}\n', {}, "character 9"),
    "jsonl no known field": ("a.jsonl", '{"other": 1}\n', {}, "'other'", "config.data.columns"),
    "jsonl unknown choices": ("a.jsonl", '{"ctx": "He", "sol1": "c", "label": 0}', {
        "columns": {"text": "ctx", "choices": "sol1,sol3"}, "format": "choices"}, "'sol1,sol3'"),
    "no gzip file": ("a.jsonl.gz", b"plain", {"format": "jsonl"}, "a.jsonl.gz"),
    "half a gzip file": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}' * 99, mtime=0)[:-20], {"format": "jsonl"},
                         "a.jsonl.gz"),
    "unknown encoding": ("a.tsv", "text\na\n", {"encoding": "utf8x"}, "'utf8x'"),
    "encoding with a zero": ("a.tsv", "text\na\n", {"encoding": "a\0b"}, "config.data.encoding"),
    "tsv in UTF-16": ("a.tsv", "text\na\n".encode("utf-16"), {}, "a.tsv", "utf-16"),
    "txt in UTF-16": ("a.txt", "text\na\n".encode("utf-16"), {}, "a.txt", "utf-16")}

REPEATED = "#begin document\n" + "bc/cctv 0 EU NNP\n" * 20
CONLLU = "1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n2\t's\tbe\tAUX\tVBZ\t_\t0\troot\t_\t_\n"
COLUMNS = {
    "columns row too wide": ("a.conll", "a O\nb B-X I-X\n", {}, "line 2", "3 columns"),
    "columns row too narrow": ("a.conll", "a O\nb\n", {}, "line 2", "1 column"),
    "columns words alone": ("a.conll", "one\ntwo\n", {"format": "columns"}, "line 1", "1 column"),
    "columns tag number": ("a.conll", "a O\n", {"columns": {"tags": "2"}}, "'2'", "0 to 1"),
    "columns tag name": ("a.conll", "a O\n", {"columns": {"tags": "ner"}}, "'ner'"),
    "columns text": ("a.conll", "a O\n", {"needed": ["text"]}, "words", "tags", "'text'"),
    "columns no sentence": ("a.conll", "-DOCSTART- O\n\n", {}, "a.conll"),
    "columns empty tag": ("a.conll", "a\t\n", {}, "line 1", "tags"),
    "columns empty word": ("a.conll", "\tO\n", {}, "line 1", "words"),
    "columns of numbers": ("a.conll", "1 EU B-ORG\n2 is O\n\n1 Yes O\n", {}, "line 1", "{'words': '1'}"),
    "columns of tags": ("a.conll", "O what\nB-GENRE comedy\n\nO which\n", {}, "line 1", "{'words': '1', 'tags': '0'}"),
    "columns comment": ("a.conll", "EU B-ORG\n# a b\n", {}, "line 2", "3 columns"),
    "columns of one text": ("a.conll", REPEATED, {}, "line 2", "data.columns"),
    "conllu unknown column": ("a.conllu", CONLLU, {"columns": {"tags": "pos"}}, "'pos'", "upos"),
    "conllu text": ("a.conllu", CONLLU, {"columns": {"text": "form"}}, "'text'"),
    "conllu narrow": ("a.conllu", CONLLU.replace("\troot\t_", "\troot"), {}, "line 2", "9 columns")}


def squad(*questions, context="The Normans gave their name to Normandy."):
    paragraphs = [{"context": context, "qas": questions}]
    return json.dumps({"version": "2", "data": [{"title": "t", "paragraphs": paragraphs}]})


def question(name="q1", answers=(("Normandy", 31),), **more):
    return {"id": name, "question": " What? ", "answers": [{"text": t, "answer_start": s} for t, s in answers]} | more


SQUAD = {f"squad {name}": ("a.json", content, {}, *words) for name, content, *words in (
    ("answer elsewhere", squad(question(answers=[("Normandy", 30)])), "question q1", "'Normandy'", "character 30"),
    ("empty answer", squad(question(answers=[("", 3)])), "question q1", "answer"),
    ("impossible with answers", squad(question(is_impossible=True)), "question q1", "is_impossible"),
    ("answers as text", squad(question() | {"answers": "Normandy"}), "question q1", "'Normandy'", "answer_start"),
    ("answers of numbers", squad(question() | {"answers": [{"text": 5, "answer_start": 0}]}), "question q1"),
    ("no answers", squad({"id": "q3", "question": "What?"}), "question q3", "'answers'"),
    ("one id twice", squad(question(), question()), "qas[1]", "'q1'", "qas[0]"),
    ("blank question", squad(question(question="  ")), "question q1", "question"),
    ("no question", squad({"id": "q1"}), "qas[0]", "'question'"),
    ("list as id", squad(question(name=["q1"])), "qas[0]", "['q1']"),
    ("blank context", squad(question(), context=" "), "question q1", "context"),
    ("no paragraphs", '{"version": "1", "data": [{"title": "paragraphs", "paragraph": []}]}', "a.json, data[0]",
     "'paragraphs'", "paragraph"),
    ("object as data", '{"version": "1", "data": {"paragraphs": []}}', "a.json", "'data'"),
    ("no data", '{"version": "1", "data": []}', "a.json"),
    ("not JSON", '{"version": "1",\n "data": [}', "a.json", "line 2"))}
TREES = {f"tree {name}": ("a.txt", f"(3 (2 It) (4 works))\n{tree}\n", {"format": "trees"}, "a.txt, line 2", *words)
         for name, tree, *words in (
    ("not closed", "(3 (2 It) (4 works)", "1 parenthes"), ("closed twice", "(3 (2 It) (4 works)))", "')'"),
    ("two", "(3 (2 It)) (4 works)", "'('"), ("without words", "(3 (2 It) (4))"), ("without label", "(3 (2 It) ())"),
    ("without parentheses", "It works", "'It'"), ("deep", "(2 (1 a) " * 60_000, "60000"))}
TREES["tree phrases nested"] = ("a.txt", "(2 (1 a) " * 9_999 + "(1 b)" + ")" * 9_999 + "\n",
                                {"format": "trees", "phrases": True}, "line 1")
SWAG = "startphrase,sent1,sent2,ending0,ending1,label\nHe sits. He,He sits.,He,stands.,runs.,%s\n"
OTHERS = {
    "swag label": ("a.csv", SWAG % 2, {}, "line 2", "'2'", "0 to 1"),
    "swag empty choice": ("a.csv", SWAG.replace("runs.", "") % 1, {}, "line 2", "choices"),
    "codah label": ("a.tsv", "o\tHe\ta\tb\tc\td\t4\n", {"format": "choices"}, "line 1", "'4'", "0 to 3"),
    "label alone": ("b.all", "0 text\n1 \n", {}, "b.all, line 2", "'1'"),
    "label_text bytes": ("a.label", b"LOC:city Where is  caf\xe9 ?\n", {}, "line 1", "0xe9"),
    "documents without text": ("b.txt", " \n\n", {"format": "documents"}, "b.txt"),
    "unknown format": ("a.txt", "text\n", {"format": "tvs"}, "'tvs'", "'tsv'"),
    "format not clear": ("a.txt", "to be\nor not\n\nto be\n", {"needed": ["text", "label"]}, "a.txt", "data.format"),
    "numbered lines": ("a.txt", "1 a\n2 b\n3 c\n", {"needed": ["text", "label"]}, "a.txt", "data.format"),
    "two formats": ("a.txt", "1\ta b\tc\n0\td\te\n1\tf\tg\n", {"needed": ["text", "label"]},
                    "data.format=label_text", "data.format=tsv", "data.columns"),
    "no file": ("a.tsv", "text\na\n", {"train": "*.csv"}, "train", "'*.csv'"),
    "one of two paths": ("a.tsv", "text\na\n", {"train": "a.tsv,e.tsv"}, "'e.tsv'"),
    "no setting": ("a.tsv", "text\na\n", {"train": ""}, "config.data.train"),
    "unknown store": ("a.tsv", "text\na\n", {"train": "no_such_store://a.tsv"}, "no_such_store"),
    "a folder as tsv": ("d/neg/a.txt", "text\n", {"train": "d", "format": "tsv"}, "d is a folder", "tsv"),
    "a file as folders": ("a.txt", "text\n", {"format": "folders"}, "a.txt"),
    "folder misspelt": ("d/neg/a.txt", "text\n", {"train": "d", "classes": ("ned",)}, "'ned'", "'neg'"),
    "folder of files": ("d/a.txt", "text\n", {"train": "d"}, "d"),
    "folder of tables": ("d/a.tsv", "text\n", {"train": "d"}, "d/*.tsv"),
    "folder blank text": ("d/neg/1.txt", " \n", {"train": "d"}, "d/neg/1.txt", "text"),
    "folder bytes": ("d/neg/1.txt", b"one\ncaf\xe9\n", {"train": "d"}, "d/neg/1.txt, line 2", "UTF-8")}

RECORDS = DELIMITED | NO_ENCODINGS | INVISIBLE | JSON | COLUMNS | SQUAD | TREES | OTHERS

# --- Aligned files, and senses with their keys ---

PAIR = {"columns": {"text": "de", "target": "en"}, "train": "a.de"}
ALIGNED = {  # settings, lines of a.de, lines of a.en
    "parallel no suffixes": ({"columns": {}}, 2, 2, "config.data.columns"),
    "parallel other suffix": ({"columns": {"text": "fr", "target": "en"}}, 2, 2, ".fr"),
    "parallel missing file": ({"columns": {"text": "de", "target": "cs"}}, 2, 2, "a.cs"),
    "parallel lines": ({}, 2, 1, "a.en", "1 line", "a.de", "2")}

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
SENSES = {  # what is in a.data.xml and a.gold.key.txt
    "senses entity bomb": (HEAD + BOMB + SENTENCE, KEYS, "a.data.xml, line 2"),
    "senses outer entity": (HEAD + OUTSIDE + SENTENCE, KEYS, "a.data.xml, line 2"),
    "senses unknown entity": (SENTENCE.replace("&amp;</wf>", "&xxe;</wf>"), KEYS, "a.data.xml, line 4"),
    "senses mismatched tag": (SENTENCE.replace("</sentence>", ""), KEYS, "a.data.xml, line 6"),
    "senses empty": ("", KEYS, "a.data.xml"),
    "senses deep": ("<a>" * 100_000, KEYS, "a.data.xml, line 1", "16"),
    "senses long attribute": (SENTENCE.replace('lang="en"', f'lang="{"e" * 20_000}"'), KEYS, "line 1", "'lang'"),
    "senses long word": (SENTENCE.replace("The", "The" * 5_000), KEYS, "a.data.xml, line 2"),
    "senses no instance": ("<corpus><text><sentence><wf>a</wf></sentence></text></corpus>", "", "a.data.xml"),
    "senses outside": ("<corpus><instance id='x' lemma='y'>y</instance></corpus>", KEYS, "line 1", "instance"),
    "senses no lemma": (SENTENCE.replace(' lemma="light"', ""), KEYS, "a.data.xml, line 5", "'lemma'"),
    "senses blank instance": (SENTENCE.replace(">light<", "> <"), KEYS, "a.data.xml, line 5"),
    "senses id twice": (SENTENCE.replace("s0.t1", "s0.t0"), KEYS, "a.data.xml, line 5", "'d0.s0.t0'"),
    "senses no keys": (SENTENCE, None, "a.gold.key.txt"),
    "senses key missing": (SENTENCE, KEYS.split("\n")[0], "a.data.xml, line 5", "'d0.s0.t1'", "a.gold.key"),
    "senses key too many": (SENTENCE, KEYS + "d0.s1.t0 a\n", "a.gold.key.txt, line 3", "'d0.s1.t0'"),
    "senses key twice": (SENTENCE, KEYS + KEYS, "a.gold.key.txt, line 3", "'d0.s0.t0'"),
    "senses key empty": (SENTENCE, "d0.s0.t0\n" + KEYS, "a.gold.key.txt, line 1", "'d0.s0.t0'")}
