"""Tests of the text of a project in front of a prompt."""
