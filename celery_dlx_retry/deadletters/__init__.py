"""Dead letters as values: filters, groups, fingerprints and exports."""
