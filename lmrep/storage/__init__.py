"""Work directories and checkpoints, on disks and in remote stores."""
