"""Work directories, checkpoints and their copies in remote stores."""
