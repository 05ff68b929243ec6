"""The log on its way to other machines: the stream's bytes, who serves it, who follows it."""
