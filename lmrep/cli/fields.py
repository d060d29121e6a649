"""Lists the fields of an experiment's config as flags, with default, allowed values and meaning.

Arguments select the fields whose path or meaning contains them: `lmrep fields learning_rate`, `lmrep fields
checkpoint.`. With --config, the values are those of that experiment; without it, the fields of every network, objective
and format are listed."""

from typing import TYPE_CHECKING

from lmrep.cli.arguments import Arguments
from lmrep.config.record import Bounds
from lmrep.core.errors import UserError

if TYPE_CHECKING:
    from lmrep.experiment.fields import Field


def run(arguments: Arguments) -> None:
    """Runs the command."""
    from lmrep.experiment.fields import list_fields

    configured = arguments.config_file or arguments.overrides
    fields = list(list_fields(arguments.load_config().to_dict() if configured else None))
    words = [word.lower() for word in arguments.words]
    matching = [field for field in fields
                if all(word in f"{field.path} {field.choice} {field.bounds.help}".lower() for word in words)]
    if not matching:
        raise UserError(f"no field has {' and '.join(map(repr, arguments.words))} in its path or its meaning; "
                        "lmrep fields lists all fields")
    print("\n".join(map(describe, matching)))


def describe(field: "Field") -> str:
    """Describes a field in two lines."""
    choice = field.choice and f"with {field.choice}"
    limits = [text for text in (field.type_name, describe_bounds(field.bounds), choice) if text]
    value = ",".join(map(str, field.value)) if isinstance(field.value, tuple | list) else field.value
    return f"--config.{field.path}={value}   ({'; '.join(limits)})\n      {field.bounds.help}"


def describe_bounds(bounds: Bounds) -> str:
    """Describes bounds in words."""
    limits = [f"{name.replace('_', ' ')} {limit:,.12g}" for name in ("at_least", "above", "at_most", "below")
              if (limit := getattr(bounds, name)) is not None]
    return ", ".join(limits) or " | ".join(map(str, bounds.choices))
