"""From a config to a finished, resumable run folder."""
