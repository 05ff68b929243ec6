"""Administration of topics, groups, messages and dead letters."""
