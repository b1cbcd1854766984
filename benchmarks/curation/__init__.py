"""Does curation pay? Models trained on the same number of tokens of one text, before and after each cleaning step."""

ARMS = ("raw", "cleaned", "deduplicated", "decontaminated", "all")
HELD_OUT = "held_out"
"""The task of the held-out documents."""
