"""What every part of a store stands on: errors, clocks, results, wake-ups, the lock of its directory."""
