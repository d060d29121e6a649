"""Converts a published checkpoint, a directory in the layout of Hugging Face, of ELMo or of fastai, to a workdir;
with --to=huggingface, --to=bilm or --to=fastai, converts a workdir to such a directory.

    lmrep convert SOURCE TARGET
    lmrep convert WORKDIR TARGET --to=huggingface [--part=generator]
    lmrep convert WORKDIR TARGET --to=huggingface --sentence_transformers=mean
    lmrep convert WORKDIR TARGET --to=huggingface --checkpoints=all
    lmrep convert WORKDIR TARGET --to=bilm
    lmrep convert WORKDIR TARGET --to=fastai

SOURCE may be a model of the Hugging Face Hub: hf://google-bert/bert-base-uncased, with @REVISION if wanted.

--checkpoints=all writes a directory of each checkpoint: TARGET/main is the one that the run is loaded with. Where
checkpoint.words names words, TARGET/chck_1M is the one after a million, as the BabyLM challenge names revisions;
otherwise TARGET/step_1000 is the one of step 1,000.

The largest difference between the outputs of both networks on random ids is printed, and stored as certificate.json.
The reference is the transformers library, where it is installed; otherwise the certificate compares the network with
itself, written and read again. Tensors without a counterpart in our network are listed and kept. Pickled weights, and
configs that name code to run, are refused.

ELMo's files are named as by bilm-tf: options.json, lm_weights.hdf5 (names that end in options.json and weights.hdf5 are
found too) and, if it is there, the vocabulary, vocab*.txt, with one word per line. They need h5py:
pip install -e '.[elmo]'. The softmax is not in them.

A directory of fastai has the tensors of its AWD-LSTM language model in a file *.safetensors, with the names of fastai
0.7, 1.0 or 2, and its list of tokens as itos.json. fastai publishes pickles: the message that refuses them has the
lines of Python that convert them. A tokenizer_config.json with {"direction": "backward"} says that a model reads
documents from their end."""

from lmrep.cli.arguments import STEP, Arguments, Flag, at_least
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError

FLAGS = {
    "to": Flag("workdir", "what TARGET becomes: workdir, huggingface, bilm, ELMo's files, or fastai, ULMFiT's",
               bounds=Bounds(choices=("workdir", "huggingface", "bilm", "fastai"))),
    "part": Flag("", "which network of a run of two to write, for example generator (default: the main one)"),
    "sentence_transformers": Flag("", "write the files of the sentence-transformers library too, with this pooling: "
                                  "mean, max or cls"),
    "step": STEP,
    "checkpoints": Flag("", "all: with --to=huggingface, a directory of each checkpoint of the run"),
    "shard_mb": Flag(5000, "the largest size of a written file of tensors, in megabytes", bounds=at_least(1)),
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    flags = arguments.flags
    if len(arguments.words) != 2:
        raise UserError("lmrep convert takes two directories: lmrep convert SOURCE TARGET "
                        "[--to=huggingface|bilm|fastai]")

    from lmrep import api
    from lmrep.interop.convert import convert_checkpoints

    source, target = arguments.paths
    if flags.checkpoints:
        if flags.checkpoints != "all" or flags.to != "huggingface" or arguments.step is not None:
            raise UserError(f"--checkpoints is {flags.checkpoints!r}, with --to={flags.to} and --step="
                            f"{arguments.step}; expected --checkpoints=all --to=huggingface, without --step")
        if flags.sentence_transformers:
            raise UserError("--sentence_transformers is for one checkpoint; leave it or --checkpoints out")
        conversions = convert_checkpoints(source, target, part=flags.part, shard_mb=flags.shard_mb)
    else:
        conversions = [api.convert(source, target, to=flags.to, part=flags.part, step=arguments.step,
                                   shard_mb=flags.shard_mb, sentence_transformers=flags.sentence_transformers)]
    for converted in conversions:
        print(f"{converted.directory}: {converted.name}, {converted.parameters:,} parameters, from {source}")
        for line in converted.remarks:
            print(f"  {line}", flush=True)
