"""A broker among others: registration, takeover, what a slave copies."""
