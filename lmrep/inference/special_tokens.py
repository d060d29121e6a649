"""The special tokens of a loaded run (`lmrep.inference.run.Run`): around the texts that it reads, before a document's
first token, and at the end of a continuation."""

from typing import Any

from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS
from lmrep.data.records.encoding import assemble
from lmrep.data.tokenized_text import special_tokens_around
from lmrep.data.tokenizers import bpe
from lmrep.experiment.config import ResolvedStage, stage_at
from lmrep.experiment.record import ALL_FORMATS, EXAMPLES
from lmrep.models.base import Context


def of_roles(vocabulary: Vocabulary, *roles: str) -> set[int]:
    """Returns the ids of the tokens with these roles; roles that the vocabulary lacks are skipped."""
    return {vocabulary.specials[role] for role in roles if role in vocabulary.specials}


def around(run: Any) -> tuple[list[int], list[int]]:
    """Returns the ids before and after a text, as in the format of training."""
    if pairs := run.objective.uses.text_pairs:
        return [], [pairs.end]
    stage = stage_at(run.experiment, run.step)
    if run.input_layout.cls_last and (run.converted or stage.format_name in EXAMPLES):
        return [], [*run.input_layout.tail]
    if run.converted and run.conditions_on != Context.EACH_SIDE:  # a converted ELMo has the format of its stage
        before, after = special_tokens_around(run.tokenizer)
        before = run.recorded_start["before"] if run.recorded_start else before
        end = [] if after or run.conditions_on == Context.LEFT else of_roles(run.tokenizer.vocabulary, "eos")  # T5
        return before, [*after, *end]
    return ALL_FORMATS[stage.format_name].layout(stage.format, run.tokenizer.vocabulary).around


def example(run: Any, text: str | tuple[str, str]) -> tuple[list[int], list[int]]:
    """Returns (ids, token types) of a text or a pair with special tokens: [CLS] a [SEP] b [SEP] as in BERT; <s> a
    </s></s> b </s> as in RoBERTa, for a network without token types whose tokenizer does not have `one_separator`; or
    a <sep> b <sep> <cls> as in XLNet."""
    before, after = run.special_tokens
    if run.input_layout.cls_last:
        parts = [run.tokenize(part).ids for part in ([text] if isinstance(text, str) else text)]
        unit = assemble(run.input_layout, *(ids[: len(ids) - len(before) - len(after)] for ids in parts))
        return unit.ids.tolist(), unit.types.tolist()
    if isinstance(text, str):
        ids = run.tokenize(text).ids.tolist()
        return ids, [0] * len(ids)
    first, second = (run.tokenize(part).ids.tolist() for part in text)
    one_separator = "token_type_ids" in run.model.inputs or run.tokenizer.one_separator
    if run.conditions_on == Context.BOTH and not one_separator:
        first += after
    second = second[len(before):]
    return [*first, *second], [0] * len(first) + [1] * len(second)


def start_token(stage: ResolvedStage | None, vocabulary: Vocabulary) -> int | None:
    """Returns the token before a document's first one in training; None if there is none.

    It is the special token that the stage's format puts there, for example [CLS], or the token that ends the previous
    document, if the first token attends to it. For a converted checkpoint, `stage` is None, and the token is [CLS], or
    the one that begins or ends its texts.
    """
    if stage is None:
        return next((vocabulary.specials[role] for role in ("cls", "bos", "eos") if role in vocabulary.specials), None)
    layout = FORMATS[stage.format_name].layout(stage.format, vocabulary)
    if layout.lead is not None:
        return layout.lead
    across = layout.spans_per_segment == 0 or getattr(stage.objective, "across", False)
    return layout.tail if across else None


def ends(run: Any) -> set[int]:
    """Returns the ids of the tokens that end a continuation: those that end documents, except a line break in a
    converted checkpoint, since the published implementation generates beyond it."""
    ids = of_roles(run.tokenizer.vocabulary, "eos", "sep", "eod")
    return {i for i in ids if run.tokenizer.tokens[i] != bpe.LINE_BREAK} if run.converted else ids
