"""`make demo`: a whole job on embedded parts, so that promptmill can be seen at work with nothing at hand."""
