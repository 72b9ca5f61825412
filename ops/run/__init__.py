"""`ops run`: the whole flow in one command, each part a process that is started again when it dies."""
