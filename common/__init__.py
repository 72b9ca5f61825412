"""The shared vocabulary: records, settings, Redis keys, storage, errors, logging.

Every other package imports from here; nothing here imports any of them.
"""

__version__ = "0.1.0"
