"""The console script `lmrep`: one module a command, each with its `FLAGS` and `run(arguments) -> exit code`."""
