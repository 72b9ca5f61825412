"""`ops preflight`: what would go wrong, before it does. `run_preflight` is for `ops run`, before any work."""

from ops.preflight.examine import Wanted, run_preflight
from ops.preflight.values import Check, Report, Status

__all__ = ["Check", "Report", "Status", "Wanted", "run_preflight"]
