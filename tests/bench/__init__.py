"""`make bench` and `make bench-gpu`: what the checks cost, beside plain DDP and the published design."""
