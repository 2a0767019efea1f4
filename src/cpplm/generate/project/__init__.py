"""Text of the rest of a project for the front of a prompt: similar code, and what names stand for."""
