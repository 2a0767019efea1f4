"""Checkpoints: format, saving in the background, uploading, resuming, importing."""
