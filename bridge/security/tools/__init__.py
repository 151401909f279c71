"""What tools need of the rules: filters, and the files of other brokers."""
