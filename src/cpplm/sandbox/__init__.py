"""Runs untrusted programs, compilers included, so that they can do no harm: `Sandbox.probe().run(...)`.

Imports nothing here: the launcher process loads this package at every run.
"""
