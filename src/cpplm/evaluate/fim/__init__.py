"""Fill-in-the-middle: holes in code, and how well they are filled."""
