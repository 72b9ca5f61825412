"""`ops verify`: proves from an output that every prompt ended exactly once, or names what is wrong."""
