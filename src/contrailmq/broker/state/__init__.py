"""What a broker knows: tables of topics, groups and offsets, who is connected, who waits."""
