"""Readers of source formats: a file in, records out (see `records`).

A new format goes in three places: its name in `PreparedKind` of `pipelines/config.py`; a file here with a function
`read_NAME(file, ...) -> Iterator[Record]`; and a case of `read_records` in `dataprep/extract/parts.py`. Files are
recognised by the suffix .NAME; other suffixes are listed in `kinds.SUFFIXES`. Its profile is `configs/corpus/NAME.yaml`
and `configs/profile/NAME.yaml`.
"""
