"""The flag `--tiny` of the benchmarks beside this file."""

from pathlib import Path

# A small text for --tiny, as fields of a config.
TEXT = {"data.corpus": "text_files", "data.files": str(Path(__file__).parents[2] / "docs/*/*.md")}


def parse_flags(parser, **tiny):
    """Parses the command line. With --tiny, the flags named in `tiny` have the values given there."""
    parser.add_argument("--tiny", action="store_true",
                        help="try the command in seconds: small networks, few steps, one round or seed")
    flags = parser.parse_args()
    if flags.tiny:
        vars(flags).update(tiny)
    return flags
