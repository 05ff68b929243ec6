"""Half messages: kept aside, decided, asked about."""
