"""What every part of a store builds on: errors, clocks, results, wake-ups, the lock of its directory."""
