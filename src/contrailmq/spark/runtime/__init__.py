"""Where code runs: shipping the package, worker processes, retries."""
