"""Pipelines on Apache Beam: their options, and the errors of workers as messages."""

import contextlib
import importlib.util
import logging
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lmrep.core import host
from lmrep.core.errors import RunFault, UserError
from lmrep.core.messages import install_hint
from lmrep.data.store.beam import local_worker
from lmrep.data.store.scan import Progress

LOCAL = "DirectRunner"
PROCESSES = "direct_running_mode=multi_processing"
EXTRA = install_hint("beam")
RAISED = re.compile(r"^(?:lmrep\.core\.errors\.)?(UserError|ConfigError|RunFault): (.*?)(?: \[while running '.*)?$",
                    re.MULTILINE)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runner:
    """A runner of Apache Beam."""

    name: str  # DirectRunner, DataflowRunner, FlinkRunner, SparkRunner, PortableRunner or another that Beam knows
    options: tuple[str, ...] = ()  # Beam's pipeline options without their dashes, such as "project=my-project"

    @property
    def local(self) -> bool:
        """Whether all workers are on this machine."""
        return self.name == LOCAL

    @property
    def alone(self) -> bool:
        """Whether there is one worker on this machine, in this process."""
        return self.local and "direct_running_mode=in_memory" in self.options


def parse(name: str, options: str) -> Runner:
    """Returns the runner that --beam_runner and --beam_options name. Raises UserError if Apache Beam is not installed,
    or does not know the runner or the options."""
    if importlib.util.find_spec("apache_beam") is None:
        raise UserError(f"--beam_runner={name} needs Apache Beam, which is not installed: {EXTRA}")
    flags = [option.removeprefix("--") for option in filter(None, (part.strip() for part in options.split(",")))]
    if name == LOCAL:
        names = {option.partition("=")[0] for option in flags}
        if "direct_running_mode" not in names:
            flags.append(PROCESSES)
        if "direct_num_workers" not in names and "direct_running_mode=in_memory" not in flags:
            flags.append(f"direct_num_workers={host.cores()}")
    runner = Runner(name, tuple(flags))
    try:
        with contextlib.redirect_stderr(None), _silenced(logging.WARNING):  # of optional packages
            create(runner)
            make_options(runner).get_all_options()
    except ValueError as error:
        raise UserError(f"--beam_runner is {name!r}: {str(error).splitlines()[0]}; expected one that Apache Beam "
                        "knows, such as DirectRunner, DataflowRunner, FlinkRunner or SparkRunner") from error
    except ImportError as error:
        fix = "pip install 'apache-beam[gcp]'" if "Dataflow" in name else "install what it needs"
        raise UserError(f"--beam_runner={name} needs a package that is not installed ({error}): {fix}") from error
    except SystemExit:  # of the parser of options
        raise UserError(f"--beam_options={options!r} are not options of Apache Beam; expected NAME=VALUE,NAME=VALUE, "
                        "such as project=my-project,region=us-central1") from None
    return runner


def make_options(runner: Runner) -> Any:
    """Makes Beam's `PipelineOptions`."""
    from apache_beam.options.pipeline_options import PipelineOptions

    # `create` starts processes of its own
    return PipelineOptions(flags=[f"--{option}" for option in runner.options if option != PROCESSES])


def create(runner: Runner) -> Any:
    """Makes Beam's runner. DirectRunner is the one in Python, where Beam would try to download another (Prism)
    first."""
    import apache_beam

    if not runner.local:
        return apache_beam.runners.create_runner(runner.name)
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.runners.portability.portable_runner import JobServiceHandle
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    encoded = JobServiceHandle.encode_pipeline_options(make_options(runner).get_all_options())
    paths = os.pathsep.join(path for path in sys.path if path)
    processes = SubprocessSDKEnvironment.from_command_string(
        f"exec env PYTHONPATH={shlex.quote(paths)} {shlex.quote(sys.executable)} -P -m {local_worker.__name__}"
    ) if PROCESSES in runner.options else None
    return fn_runner.FnApiRunner(processes, provision_info=fn_runner.ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)))


def run(runner: Runner, what: str, construct: Callable[[Any], None], progress: Progress) -> None:
    """Runs a pipeline.

    Args:
      runner: the runner of the pipeline.
      what: the work of the pipeline, for messages.
      construct: adds transforms to a `beam.Pipeline`.
      progress: called with a line for people.

    Raises:
      UserError, RunFault: a worker raised it; RunFault for any other failure of the pipeline.
    """
    import apache_beam

    progress(f"{what} on {runner.name}")
    # Local workers log each error several times before the pipeline raises it.
    with _silenced(logging.CRITICAL if runner.local and not log.isEnabledFor(logging.DEBUG) else logging.NOTSET):
        try:
            pipeline = apache_beam.Pipeline(runner=create(runner), options=make_options(runner))
            construct(pipeline)
            pipeline.run().wait_until_finish()
        except Exception as error:
            raise _translated(error, runner, what) from error


def _translated(error: Exception, runner: Runner, what: str) -> Exception:
    """Returns the error that a worker raised. It arrives as an exception of its type with another message, or in the
    text of another exception."""
    text = "\n".join(traceback.format_exception(error)).replace("\\n", "\n")
    if raised := RAISED.findall(text):
        name, message = raised[-1]
        return RunFault(message) if name == "RunFault" else UserError(message)
    log.debug("%s", text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return RunFault(f"the pipeline that was {what} failed on {runner.name}: {lines[-1][:500]}; run again, which "
                    "continues after the last pipeline that was complete")


@contextlib.contextmanager
def _silenced(level: int) -> Iterator[None]:
    """Silences messages up to a level of all packages: Beam and those that it imports log through several loggers."""
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
