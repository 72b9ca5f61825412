"""Turning a run's parts into a data set that trainers load."""

from __future__ import annotations
