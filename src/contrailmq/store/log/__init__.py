"""The commit log: its files, its one writer, how it reaches the disk."""
