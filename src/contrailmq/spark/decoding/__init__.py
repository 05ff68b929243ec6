"""The log's bytes as columns: scanning, vectorised decoding, queue units."""
