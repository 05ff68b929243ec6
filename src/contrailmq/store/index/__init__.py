"""Index files: messages by key."""
