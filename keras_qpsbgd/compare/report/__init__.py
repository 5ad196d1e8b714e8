"""What a comparison shows: statistics, tables, figures."""
