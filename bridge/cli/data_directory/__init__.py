"""Commands that read or write a data directory themselves: `duolog log`, `backup`, `restore`, `doctor`."""
