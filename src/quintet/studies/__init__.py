"""Studies: what a paper's tables compare, trained under one set of seeds. Each is a YAML file in this folder."""
