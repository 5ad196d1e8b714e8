"""Statistics, tables and figures of a comparison."""
