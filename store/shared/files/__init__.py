"""Files of the data directory that the log names, as objects of the stream."""
