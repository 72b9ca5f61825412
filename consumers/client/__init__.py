"""The inference client: what is asked of a server, and what its answers mean.

Decisions are pure (`request`, `turns`, `response`, `info`, `retry`); `http` alone does I/O.
"""
