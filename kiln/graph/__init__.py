"""The graph: nodes, symbolic sizes, text form, verifier, interpreter."""
