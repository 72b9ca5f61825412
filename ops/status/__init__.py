"""`ops status`: how far a run is, how fast, when it is done, and whether anything is wrong. Reads only."""
