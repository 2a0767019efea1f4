"""Muon, AdamW and schedules."""
