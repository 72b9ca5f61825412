"""Reading prompts, and admitting them to the queue."""
