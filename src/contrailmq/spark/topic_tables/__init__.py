"""`pipeline tables`: one typed table for each topic, kept up to date exactly once."""
