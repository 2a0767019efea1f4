"""The base of every part: errors, strict settings, storage, run log, progress, hardware."""
