"""Jobs around a store: archive, rebuild, verify, report. Each is a function whose kernels run on any engine."""
