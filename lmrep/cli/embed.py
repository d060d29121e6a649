"""Writes the contextual vectors of a text file to a safetensors file. Line i, from 0, becomes the float32 tensor named
`i`, [layers, tokens, width]. A line has the special tokens that the run's input format puts around a text, [CLS] and
[SEP] for example; they have vectors too, unless --words gives one vector per word. The names of special tokens in the
text, such as [MASK], are read as these tokens. With --pretokenized, each line is words separated by spaces, and has one
vector for each of them, as with --words; names of special tokens are words like others.

With --pool=mean, each line has one vector, the mean over its tokens (max: the largest values; cls: that of [CLS]), and
the output is one array, float32 [lines, width], in a .npy file; row i, from 0, is the vector of line i.

--layers is last, all (the embedding output and every layer), or numbers such as 4 or 3,4, where negative numbers count
from the last layer; sum:9,10,11,12 and concat:9,10,11,12 combine layers. The text may be larger than memory. More than
about a million lines become several files, vectors-00001-of-00003.safetensors and so on."""

from lmrep.cli.arguments import STEP, Arguments, Flag, at_least
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path
from lmrep.core.progress import line_progress

FLAGS = {
    "input": Flag(None, "a UTF-8 text file", as_path),
    "output": Flag(None, "the .safetensors file to write, or with --pool the .npy file", as_path),
    "layers": Flag("last", "the layers: last, all, 4, 3,4, -1, sum:3,4, concat:3,4"),
    "words": Flag(False, "one vector per word instead of one per token"),
    "pooling": Flag("mean", "with --words, how the vectors of a word's tokens are combined: mean, first, last"),
    "pool": Flag("", "one vector per line: mean, max or cls of its tokens; the output is a .npy file"),
    "pretokenized": Flag(False, "lines are words separated by spaces, taken as they are; one vector per word"),
    "streams": Flag(0, "of a network with a state, such as ELMo's: deal lines to this many streams, each of which "
                       "carries its state from line to line; 0: each line is read by itself",
                    bounds=at_least(0, 2**16)),
    "long": Flag("refuse", "lines longer than the model: refuse, or windows that overlap by half"),
    "step": STEP,
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir, flags = arguments.required_workdir(), arguments.flags
    for name in ("input", "output"):
        if not getattr(flags, name):
            raise UserError(f"lmrep embed needs --{name}, for example --input=texts.txt --output=vectors.safetensors")

    from lmrep import api

    words = flags.pooling if flags.words or (flags.pretokenized and not flags.pool) else ""
    with line_progress() as progress:
        files = api.embed(workdir, flags.input, flags.output, layers=flags.layers, words=words, pool=flags.pool,
                          long=flags.long, pretokenized=flags.pretokenized, streams=flags.streams, step=arguments.step,
                          progress=progress)
    for path in files:
        print(path)
