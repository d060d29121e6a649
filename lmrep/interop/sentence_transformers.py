"""The files that make a published directory a model of the sentence-transformers library: the encoder and a pooling.

    modules.json                        the two modules
    1_Pooling/config.json               the pooling and the width of the vectors
    sentence_bert_config.json           the longest text
    config_sentence_transformers.json   the similarity by which vectors are compared
"""

from pathlib import Path

from lmrep.core.files import write_json
from lmrep.data.tokenized_text import special_tokens_around
from lmrep.inference.run import Run

MODULES = {"": "Transformer", "1_Pooling": "Pooling"}  # folder -> class, by a name that all versions know
MODES = {"mean": "mean_tokens", "max": "max_tokens", "cls": "cls_token"}  # our pooling -> the library's


def write(run: Run, pooling: str, directory: Path) -> list[str]:
    """Writes the files to a published directory of a run, and returns remarks for people. `pooling` is a key of MODES.
    Raises OSError."""
    write_json(directory / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(MODULES.items())])
    (directory / "1_Pooling").mkdir()
    write_json(directory / "1_Pooling/config.json", {
        "word_embedding_dimension": run.model.width,
        **{f"pooling_mode_{mode}": name == pooling for name, mode in MODES.items()}})
    write_json(directory / "sentence_bert_config.json", {
        "max_seq_length": run.model.max_length or None, "do_lower_case": False})  # the tokenizer does what is needed
    write_json(directory / "config_sentence_transformers.json", {
        "model_type": "SentenceTransformer", "prompts": {}, "default_prompt_name": None,
        "similarity_fn_name": "cosine"})
    own, published = run.special_tokens, special_tokens_around(run.tokenizer)
    if tuple(map(list, own)) != tuple(map(list, published)):
        return [f"vectors differ: sentence-transformers puts the tokens {published} before and after a text, and lmrep "
                f"embed {own}, as in training"]
    return []
