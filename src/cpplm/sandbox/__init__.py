"""Runs untrusted programs, compilers included, so that they can do no harm: `Sandbox.probe().run(...)`."""

from cpplm.sandbox.limits import MIB, Limits, Result
from cpplm.sandbox.sandbox import FIX, Sandbox, SandboxError

__all__ = ["FIX", "MIB", "Limits", "Result", "Sandbox", "SandboxError"]
