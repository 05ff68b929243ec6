"""What a store does beside its messages: write out, clean, watch its files."""
