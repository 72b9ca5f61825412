"""What `ops run` and `ops status` show on a terminal: one set of words, tables and layouts for both."""
