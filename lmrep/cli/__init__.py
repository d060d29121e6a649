"""The console script `lmrep`: one module per command, with its `FLAGS` and `run(arguments)`."""
