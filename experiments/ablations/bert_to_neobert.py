"""From BERT to NeoBERT, one flag at a time (Le Breton et al., 2025, figure 1).

    lmrep train --config=experiments/ablations/bert_to_neobert.py:size=base,up_to=norm,data=files \\
        --workdir=runs/bert-norm --config.data.files='/data/books-and-wikipedia/*.txt'

trains BERT with all changes up to one; alone=norm makes this one only, and without either it is the BERT that they are
compared with, of `bert_to_modernbert.py` without weight decay. The twelve changes, in an order that was not checked
with the paper's models M0 to M10:

    rotary      rotary positions of base 10,000 in place of learned ones
    gated       SwiGLU in place of GELU, of two thirds of the width, for as many parameters
    norm        RMS norm, and no biases
    text        all of the text (M2); before, a quarter of the documents, and the others are held out
    vocabulary  byte-pair encoding with case in place of lowercase WordPiece (M3)
    optimizer   weight decay of 0.01, and a cosine to a tenth in place of a linear decay
    masks       20 % of the tokens predicted, all of them [MASK], in place of 15 % and BERT's 80 % of them
    packing     the ends of documents packed into one sequence, in place of padding (M6)
    larger      a larger network (M7)
    deeper      the larger network with more layers and less width
    batches     larger batches for as many steps
    longer      sequences of four times the length (base: eight), with as many tokens in a batch

The paper drops another vocabulary and packing, which lower its scores: up_to= has either only as the last change.

    size    layers, width and heads   larger        deeper       sequences  batches  length  longer
    base                 12, 768, 12  16, 1056, 16  28, 768, 12        256     4096     512    4096
    medium                 8, 512, 8  12, 640, 10   18, 512, 8         256      512     128     512
    tiny                   2, 128, 4  2, 192, 4     3, 160, 4           32       48      64     256

With your own text before and after, name the files, and set the fraction that is held out:
--config.data.files='wikipedia/*.txt' --config.data.validation=0.02.

Cost: three minutes a run of size=tiny with --config.steps=800, six with a larger or deeper network, eight with larger
batches and ten with longer sequences, on one core; that of the others is not known here. Expected: `lmrep reproduce
neobert:steps` fine-tunes all of them with three seeds.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/ablations/bert_to_neobert.py:size=tiny,up_to=norm --workdir=runs/tiny-norm

size=tiny sets steps=1000, batch_size=32, length=64, vocab_size=2048, learning_rate=0.004, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon:

    size    base medium tiny
    alone   one of the changes above
    up_to   one of them: all changes from the first to this one, without those that were dropped
    data, mesh: as in bert_to_modernbert.py
"""

from pathlib import Path

from lmrep.config import loading

CHANGES = ("rotary", "gated", "norm", "text", "vocabulary", "optimizer", "masks", "packing", "larger", "deeper",
           "batches", "longer")
DROPPED = ("vocabulary", "packing")  # which lower the scores, and are not in the models after
NETWORKS = {  # (layers, width, heads) of BERT, larger, deeper; larger batches; longer sequences, as a factor
    "base": ((12, 768, 12), (16, 1056, 16), (28, 768, 12), 4096, 8),
    "medium": ((8, 512, 8), (12, 640, 10), (18, 512, 8), 512, 4),
    "tiny": ((2, 128, 4), (2, 192, 4), (3, 160, 4), 48, 4),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = loading.parse_argument(
        argument, size=("base", tuple(NETWORKS)), alone=("", ("", *CHANGES)), up_to=("", ("", *CHANGES)),
        data="python_docs", mesh="data")
    changes = {chosen.alone, chosen.up_to}
    if chosen.up_to:
        changes |= {*CHANGES[:CHANGES.index(chosen.up_to)]} - {*DROPPED}
    config = loading.load(Path(__file__).with_name("bert_to_modernbert.py"),
                          f"size={chosen.size},format=doc_sentences,data={chosen.data},mesh={chosen.mesh}")
    first, larger, deeper, batch, factor = NETWORKS[chosen.size]
    layers, width, heads = deeper if "deeper" in changes else larger if "larger" in changes else first
    config.model.update({"layers": layers, "width": width, "heads": heads, "mlp": 4 * width})
    config.optimizer.weight_decay = 0.0
    if "rotary" in changes:
        config.model.update({"positions": "rotary", "rotary_base": 10_000.0})
    if "gated" in changes:
        config.model.update({"gated": True, "activation": "silu", "mlp": 8 * -(-width // 3)})
    if "norm" in changes:
        config.model.update({"norm_kind": "rms", "bias": False})
    config.format.pack = "packing" in changes
    if "text" not in changes:
        config.data.validation = 0.75 - config.data.test
    if "vocabulary" in changes:
        config.tokenizer.update({"name": "sentencepiece_bpe", "lowercase": False})
        config.model.vocab = 0  # as many as the tokenizer has
        if chosen.size != "tiny":
            config.tokenizer.vocab_size = 32_000
    if "optimizer" in changes:
        config.optimizer.weight_decay = 0.01
        config.optimizer.schedule.update({"name": "cosine", "final": 0.1})
    if "masks" in changes:
        config.objective.update({"rate": 0.2, "mask": 1.0, "random": 0.0, "keep": 0.0})
    if "batches" in changes:
        config.batch_size = batch
    if "longer" in changes:
        config.length, config.batch_size = factor * config.length, config.batch_size // factor
        config.model.max_length = max(config.model.max_length, config.length)
    return config
