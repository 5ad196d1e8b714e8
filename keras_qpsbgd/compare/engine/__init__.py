"""Makes runs: in this process or on all cores, and goes on after a kill."""
