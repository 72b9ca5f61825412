"""Turns completions into parts: seals a range of the results, writes it once, and lets it go."""
