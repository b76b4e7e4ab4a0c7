"""Dataloading benchmarks: no model, only Parquet, video decoding, windows and shuffling."""
