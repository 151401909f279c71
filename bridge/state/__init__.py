"""State that both protocols share: topics, configs, group positions, producers, leases."""
