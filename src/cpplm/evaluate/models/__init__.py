"""The models under evaluation: ours, Hugging Face's, those behind a server."""
