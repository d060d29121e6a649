"""The special tokens of a loaded run (`lmrep.inference.run.Run`): around the texts that it reads, before a document's
first token, and at the end of a continuation."""

from typing import Any

from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS
from lmrep.data.records.encoding import assemble
from lmrep.data.tokenized_text import special_tokens_around
from lmrep.data.tokenizers import bpe
from lmrep.experiment.config import StagePlan, stage_at
from lmrep.experiment.record import ALL_FORMATS, EXAMPLES
from lmrep.models.base import Context


def of_roles(vocabulary: Vocabulary, *roles: str) -> set[int]:
    """The ids of the tokens with these roles, of those that the vocabulary has."""
    return {vocabulary.specials[role] for role in roles if role in vocabulary.specials}


def around(run: Any) -> tuple[list[int], list[int]]:
    """The ids before and after a text, of the format that the run trained with."""
    if pairs := run.objective.uses.text_pairs:
        return [], [pairs.end]
    stage = stage_at(run.experiment, run.step)
    if run.input_layout.cls_last and (run.converted or stage.format_name in EXAMPLES):
        return [], [*run.input_layout.tail]
    if run.converted and run.conditions_on != Context.EACH_SIDE:  # ELMo's have one format
        before, after = special_tokens_around(run.tokenizer)
        end = [] if after or run.conditions_on == Context.LEFT else of_roles(run.tokenizer.vocabulary, "eos")  # as T5's
        return before, [*after, *end]
    return ALL_FORMATS[stage.format_name].layout(stage.format, run.tokenizer.vocabulary).around


def example(run: Any, text: str | tuple[str, str]) -> tuple[list[int], list[int]]:
    """(ids, token types) of a text or a pair, with special tokens: [CLS] a [SEP] b [SEP] as BERT, or, for a network
    without token types whose tokenizer is not WordPiece, <s> a </s></s> b </s> as RoBERTa; a <sep> b <sep> <cls> as
    XLNet."""
    before, after = run.special_tokens
    if run.input_layout.cls_last:
        parts = [run.tokenize(each).ids for each in ([text] if isinstance(text, str) else text)]
        unit = assemble(run.input_layout, *(ids[: len(ids) - len(before) - len(after)] for ids in parts))
        return unit.ids.tolist(), unit.types.tolist()
    if isinstance(text, str):
        ids = run.tokenize(text).ids.tolist()
        return ids, [0] * len(ids)
    first, second = (run.tokenize(each).ids.tolist() for each in text)
    one_separator = "token_type_ids" in run.model.inputs or run.tokenizer.one_separator
    if run.conditions_on == Context.BOTH and not one_separator:
        first += after
    second = second[len(before):]
    return [*first, *second], [0] * len(first) + [1] * len(second)


def start_token(stage: StagePlan | None, vocabulary: Vocabulary) -> int | None:
    """The token before a document's first one, as in training; None where there is none.

    That is the special token that the stage's format puts there, [CLS] for example, or the token that ends the previous
    document, where the first token attends to it. `stage` is None for a converted checkpoint: [CLS], or the token that
    begins or ends its texts.
    """
    if stage is None:
        return next((vocabulary.specials[role] for role in ("cls", "bos", "eos") if role in vocabulary.specials), None)
    layout = FORMATS[stage.format_name].layout(stage.format, vocabulary)
    if layout.lead is not None:
        return layout.lead
    across = layout.spans_per_segment == 0 or getattr(stage.objective, "across", False)
    return layout.tail if across else None


def ends(run: Any) -> set[int]:
    """The tokens that end a continuation: those that end documents, except a line break in a converted checkpoint,
    whose published implementation generates beyond it."""
    ids = of_roles(run.tokenizer.vocabulary, "eos", "sep", "eod")
    return {i for i in ids if run.tokenizer.tokens[i] != bpe.LINE_BREAK} if run.converted else ids
