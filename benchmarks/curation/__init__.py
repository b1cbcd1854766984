"""Does curation pay? Models trained on the same number of tokens of one text, before and after each cleaning step."""
