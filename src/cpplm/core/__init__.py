"""What every part stands on: errors, strict settings, storage, run log, progress, hardware."""
