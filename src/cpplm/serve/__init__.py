"""Serving: OpenAI's HTTP API, and a web page."""
