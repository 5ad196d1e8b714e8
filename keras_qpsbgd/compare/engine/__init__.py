"""Makes runs in this process or on all cores, and resumes after a kill."""
