"""Known data sets: the layout of their published files, their metrics, and published results.

A page of experiments/tasks names one; reports show the published figures beside a run's.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple


class KnownSet(NamedTuple):
    """A published data set."""

    task: str  # a name in `lmrep.tasks.TASKS`
    files: Mapping[str, str]  # split -> file in the folder of the published set
    data: Mapping[str, Any]  # further fields of `config.data` for these files
    tfds: Mapping[str, Any] | None = None  # fields of `config.data` for the set in TFDS; None if TFDS lacks it
    objective: Mapping[str, Any] = {}  # fields of the task
    best: str = ""  # the metric by which checkpoints are compared; "": the task's
    length: int = 128  # the most tokens of a text or pair
    # the name of a test file, without its suffix -> the file in which the benchmark wants its predictions
    submissions: Mapping[str, str] = {}
    fields: Mapping[str, Any] = {}  # other fields of the config, by dotted path
    labels: tuple[str, ...] = ()  # words for the classes that the files call 0, 1, ..
    text: Mapping[str, Any] = {}  # fields of the task text_to_text that differ from `as_text.FORMS`
    # (files, data) of another published form, which is read if a folder has its training file
    original: tuple[Mapping[str, str], Mapping[str, Any]] | None = None

    def form(self, folder: str) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Returns (files, data) of the form in which a folder has the set."""
        if self.original and any(os.path.isfile(os.path.join(folder, file)) for file in self.original[0].values()):
            return self.original
        return self.files, self.data


GLUE_FILES = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
SENTENCE = {"text": "sentence", "label": "label"}
SENTENCES = {"text": "sentence1", "text2": "sentence2", "label": "label", "id": "index"}


def _glue(
    name: str, columns: Mapping[str, str], metrics: tuple[str, ...] = ("accuracy",), task: str = "classification",
    tfds_columns: Mapping[str, str] | None = None, tfds_suffix: str = "",
    files: Mapping[str, str] = GLUE_FILES, data: Mapping[str, Any] = {}, labels: tuple[str, ...] = (),
    submissions: Mapping[str, str] = {}, original: tuple[Mapping[str, str], Mapping[str, Any]] | None = None,
    **fields: Any,
) -> KnownSet:
    """Returns a set of GLUE. In TFDS the classes "0" and "1" of the files are `labels`, and the names of the validation
    and the test split end with `tfds_suffix`."""
    objective = {} if task == "regression" else {"metrics": metrics}
    return KnownSet(
        task, files, {"columns": dict(columns), **data},
        {"tfds": f"glue/{name}", "train": "train", "validation": f"validation{tfds_suffix}",
         "test": f"test{tfds_suffix}", "test_columns": {},
         "columns": dict(tfds_columns or {**columns, "label": "label", "id": "idx"}),
         **({"label_map": {label: str(i) for i, label in enumerate(labels)}} if labels else {})},
        {**objective, **fields}, metrics[0], submissions=submissions, labels=labels, original=original)


OVERLAP = {"format.stride": 64}  # for windows of long sentences

QUESTION = {"template": "question: {question} context: {context}"}  # without a prefix, as T5's

KNOWN: Mapping[str, KnownSet] = {
    # The files of gluebenchmark.com. CoLA's have no header, but for the test set.
    "cola": _glue("cola", {"text": "3", "label": "1"}, ("matthews", "accuracy"),
                  tfds_columns={**SENTENCE, "id": "idx"}, labels=("unacceptable", "acceptable"),
                  data={"test_columns": {"text": "sentence", "id": "index"}}, submissions={"test": "CoLA.tsv"}),
    "sst2": _glue("sst2", SENTENCE, data={"test_columns": {"text": "sentence", "id": "index"}},
                  tfds_columns={**SENTENCE, "id": "idx"}, labels=("negative", "positive"),
                  submissions={"test": "SST-2.tsv"}),
    "mrpc": _glue("mrpc", {"text": "#1 String", "text2": "#2 String", "label": "Quality"}, ("f1", "accuracy"),
                  tfds_columns=SENTENCES | {"id": "idx"}, labels=("not_equivalent", "equivalent"),
                  submissions={"test": "MRPC.tsv"},
                  data={"test_columns": {"text": "#1 String", "text2": "#2 String", "id": "index"}}),
    "stsb": _glue("stsb", SENTENCES | {"label": "score"}, ("spearman",), "regression",
                  tfds_columns=SENTENCES | {"id": "idx"}, submissions={"test": "STS-B.tsv"},
                  minimum=0.0, maximum=5.0, original=(  # of ixa2.si.ehu.eus/stswiki, without a header
                      {"train": "sts-train.csv", "validation": "sts-dev.csv", "test": "sts-test.csv"},
                      {"format": "tsv", "columns": {"label": "4", "text": "5", "text2": "6"}})),
    "qqp": _glue("qqp", {"text": "question1", "text2": "question2", "label": "is_duplicate", "id": "id"},
                 ("f1", "accuracy"), labels=("not_duplicate", "duplicate"), submissions={"test": "QQP.tsv"},
                 tfds_columns={"text": "question1", "text2": "question2", "label": "label", "id": "idx"},
                 data={"damaged_examples": 100,
                       "test_columns": {"text": "question1", "text2": "question2", "id": "id"}}),
    "mnli": _glue("mnli", SENTENCES | {"label": "gold_label"}, tfds_suffix="_matched",
                  tfds_columns={"text": "premise", "text2": "hypothesis", "label": "label", "id": "idx"},
                  files={"train": "train.tsv", "validation": "dev_matched.tsv", "test": "test_matched.tsv"},
                  submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv",
                               "diagnostic": "AX.tsv", "diagnostic-full": "AX.tsv", "ax": "AX.tsv"}),
    "qnli": _glue("qnli", {"text": "question", "text2": "sentence", "label": "label", "id": "index"},
                  tfds_columns={"text": "question", "text2": "sentence", "label": "label", "id": "idx"},
                  submissions={"test": "QNLI.tsv"}),
    "rte": _glue("rte", SENTENCES, tfds_columns=SENTENCES | {"id": "idx"}, submissions={"test": "RTE.tsv"}),
    "wnli": _glue("wnli", SENTENCES, tfds_columns=SENTENCES | {"id": "idx"}, submissions={"test": "WNLI.tsv"},
                  labels=("not_entailment", "entailment")),
    # The Stanford Sentiment Treebank as phrase trees (nlp.stanford.edu/sentiment).
    "sst2_trees": KnownSet(
        "classification", {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"},
        {"format": "trees", "phrases": True,
         "label_map": {"0": "negative", "1": "negative", "2": "", "3": "positive", "4": "positive"}}),
    "sst5": KnownSet("classification", {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"},
                     {"format": "trees", "phrases": True}),
    "imdb": KnownSet("classification", {"train": "train", "validation": "test"},
                     {"format": "folders", "classes": ("pos", "neg")},
                     {"tfds": "imdb_reviews", "train": "train", "validation": "test",
                      "columns": {"text": "text", "label": "label"}},
                     length=512),
    "trec": KnownSet("classification", {"train": "train_5500.label", "validation": "TREC_10.label"},
                     {"format": "label_text", "label_until": ":", "encoding": "latin-1"},
                     {"tfds": "trec", "train": "train", "validation": "test",
                      "columns": {"text": "text", "label": "label-coarse"}}),
    "conll2003": KnownSet("tagging", {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"},
                          {"format": "columns"}, best="entity_f1", fields=OVERLAP,
                          text={"scheme": "IOB1", "metrics": ("entity_f1", "token_accuracy")}),
    "conll2000": KnownSet("tagging", {"train": "train.txt", "test": "test.txt"},
                          {"format": "columns", "held_out": 1000}, best="entity_f1", fields=OVERLAP,
                          text={"metrics": ("entity_f1", "token_accuracy")}),
    "wnut17": KnownSet("tagging", {"train": "wnut17train.conll", "validation": "emerging.dev.conll",
                                   "test": "emerging.test.annotated"}, {"format": "columns"}, best="entity_f1",
                       fields=OVERLAP, text={"metrics": ("entity_f1", "token_accuracy")}),
    "ud_pos": KnownSet("tagging", {"train": "*-ud-train.conllu", "validation": "*-ud-dev.conllu",
                                   "test": "*-ud-test.conllu"}, {"format": "conllu"}, best="token_accuracy",
                       fields=OVERLAP),
    # pilehvar.github.io/wic, or SuperGLUE's files.
    "wic": KnownSet("word_in_context", {"train": "train/train.data.txt", "validation": "dev/dev.data.txt",
                                        "test": "test/test.data.txt"},
                    {"format": "word_in_context"},
                    text={"template": "wic sentence1: {text} sentence2: {text2} word: {lemma}"}, original=(
                        {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"},
                        {"columns": {"text": "sentence1", "text2": "sentence2", "span": "start1,end1",
                                     "span2": "start2,end2", "lemma": "word", "id": "idx"}})),
    # The folder WSD_Evaluation_Framework of lcl.uniroma1.it/wsdeval.
    "word_senses": KnownSet(
        "word_senses", {"train": "Training_Corpora/SemCor/semcor.data.xml",
                        "validation": "Evaluation_Datasets/semeval2007/semeval2007.data.xml",
                        "test": "Evaluation_Datasets/ALL/ALL.data.xml"}, {"format": "word_senses"}),
    "swag": KnownSet("multiple_choice", {"train": "train.csv", "validation": "val.csv", "test": "test.csv"},
                     {"format": "choices"}),
    "squad1": KnownSet("span_extraction", {"train": "train-v1.1.json", "validation": "dev-v1.1.json"},
                       {"format": "squad"}, length=384, text=QUESTION),
    "squad2": KnownSet("span_extraction", {"train": "train-v2.0.json", "validation": "dev-v2.0.json"},
                       {"format": "squad"}, objective={"unanswerable": True}, length=384, text=QUESTION),
}

# Development-set figures as published; a row for each system, in the order of the names.
_NAMES = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
_PUBLISHED = {
    # Medians of the README of google-research/electra; STS-B is Spearman.
    "ELECTRA small": (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7),
    "ELECTRA base": (67.7, 95.1, 89.5, 91.2, 91.5, 88.8, 93.2, 82.7),
    "ELECTRA large": (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0),
    # The README of fairseq's RoBERTa.
    "RoBERTa base": (63.6, 94.8, 90.2, 91.2, 91.9, 87.6, 92.8, 78.7),
    "RoBERTa large": (68.0, 96.4, 90.9, 92.4, 92.2, 90.2, 94.7, 86.6),
    # Medians of five runs of Sanh et al., 2019.
    "BERT base": (56.3, 92.7, 88.6, 89.0, 89.6, 86.7, 91.8, 69.3, 53.5),
    "DistilBERT": (51.3, 91.3, 87.5, 86.9, 88.5, 82.2, 89.2, 59.9, 56.3),
    "ELMo with BiLSTM": (44.1, 91.5, 76.6, 70.4, 86.2, 68.6, 71.1, 53.4, 56.3),
}
_OTHERS = {
    "imdb": {"BERT base": 93.46, "DistilBERT": 92.82},  # accuracy, Sanh et al., 2019
    "trec": {"ULMFiT": 96.4, "CoVe": 95.8},  # accuracy, Howard and Ruder, 2018
    # Entity F1 on the test set, Devlin et al., 2019, Peters et al., 2018 and 2017
    "conll2003": {"BERT base, test": 92.4, "BERT large, test": 92.8, "ELMo, test": 92.22, "TagLM, test": 91.93},
    # F1, medians of the README of google-research/electra
    "conll2000": {"ELECTRA small": 96.5, "ELECTRA base": 96.8, "ELECTRA large": 97.2},
    # F1 on all test sets together, Peters et al., 2018
    "word_senses": {"first sense of WordNet, test": 65.9, "ELMo, nearest, test": 69.0},
    "swag": {"BERT large, test": 86.3},  # accuracy, Devlin et al., 2019
    "squad1": {"BERT base": 88.41, "BERT large": 90.87, "DistilBERT": 85.8},  # F1
    "squad2": {"ALBERT base": 80.0, "SpanBERT base": 83.6},  # F1
}


def published(name: str) -> dict[str, float]:
    """Returns {system: published figure in percent} of a set, on its development set unless the name of a system says
    test; {} if none is recorded."""
    if name in _NAMES:
        return {system: row[_NAMES.index(name)] for system, row in _PUBLISHED.items() if _NAMES.index(name) < len(row)}
    return dict(_OTHERS.get(name, {}))
