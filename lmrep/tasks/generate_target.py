"""What a run of texts from texts can be asked: the text that it generates for another one."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from lmrep.config.record import optional
from lmrep.core.errors import UserError
from lmrep.data.tokenizers import Tokenizer
from lmrep.models import decoding
from lmrep.objectives.base import Names
from lmrep.tasks import text_templates
from lmrep.tasks.capability import OfSource, PredictOfSource


class GenerateTarget(PredictOfSource):
    """Generates a text, or draws several, from a text. Options that are not given are those of `config.search`. An
    example that is a text, or a tuple of texts, has the fields of the template in their order; the template is that of
    `options.source`, or "{text}" of a mixture for which that is not given."""

    options = optional(decoding.Search, "GenerateTargetOptions", OfSource)
    sample_options = options()

    def predict(self, run: Any, texts: Sequence[Any], options: Any, names: Names) -> list[dict[str, Any]]:
        """As `PredictOfSource.predict`. Raises UserError for options that do not fit each other, and for an example
        without a field of the template."""
        given = {field.name: value for field in fields(decoding.Search)
                 if (value := getattr(options, field.name)) is not None}
        if "beams" not in given and given.get("temperature"):
            given["beams"] = 1
        examples = []
        for i, (text, name) in enumerate(zip(texts, names or [None] * len(texts), strict=True)):
            source = text.get("source", options.source) if isinstance(text, Mapping) else options.source
            examples.append(self._example(run.task_config(source).template, text, name or f"example {i}"))
        return super().predict(run.with_objective(search=given) if given else run, examples, options, names)

    @staticmethod
    def _example(template: str, text: Any, name: str) -> Any:
        if isinstance(text, Mapping):
            found = text
        else:
            texts = (text,) if isinstance(text, str) else tuple(text)
            try:
                found = text_templates.from_texts(template, texts)
            except ValueError as error:
                raise UserError(f"{name} has {len(texts)} texts; expected {error}") from None
        text_templates.require(template, found, name, "config.objective.template")
        return found

    def to_json(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        """The prediction's fields, its text as `generated`: an example may have the field `text`, too."""
        return {"generated" if name == "text" else name: value for name, value in prediction.items()}

    def to_text(self, text: Any, prediction: Mapping[str, Any], tokenizer: Tokenizer) -> str:
        """As `Predict.to_text`, a line for each text that was drawn."""
        return "\n".join(super(GenerateTarget, self).to_text(text, {"text": own}, tokenizer)
                         for own in prediction.get("texts", (prediction["text"],)))
