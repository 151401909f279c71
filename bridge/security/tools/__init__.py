"""What tools need of the rules: filters, and rules as words."""
