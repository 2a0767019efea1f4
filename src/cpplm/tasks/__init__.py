"""Tasks with checked answers, made of a user's own code: built, inspected, audited, graded."""
