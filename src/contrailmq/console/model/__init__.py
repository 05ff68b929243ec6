"""What the console knows of a cluster, without any page: `console_model.py` is the front."""
